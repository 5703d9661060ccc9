package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// blockSize is the engines' block size in tokens. vLLM's attention for processors takes multiples of 32.
const blockSize = 32

// contextLength is the context length of the model that model.py makes, in tokens.
const contextLength = 32768

// blockBytes is the size of one block of that model in an engine: keys and values of 32 tokens in 2 layers with 2 heads of 32
// numbers of 2 bytes.
const blockBytes = 2 * blockSize * 2 * 2 * 32 * 2

// startTime is the longest time in which an engine may start. Three processes import torch, which takes a minute of CPU time.
const startTime = 15 * time.Minute

// engine is one running vLLM.
type engine struct {
	name, address  string
	events, replay string
	log            string
	front          string // the address that the gateway has, if it is not the engine's own
	transfer       int    // the port from which other engines fetch blocks; 0 for none
	worker         string // more settings of the worker in the gateway's configuration, as YAML

	program string
	args    []string
	env     []string // beside the variables of all engines
	cmd     *exec.Cmd
	ended   chan struct{}
}

// engineConfig has the common settings of the engines of one set-up.
type engineConfig struct {
	vllm, model string
	folder      string // for logs
	blocks      int    // of the KV cache
	blockBytes  int    // the size of one; 0 for the tiny model's
	maxSeqs     int    // requests in one batch
	extra       []string
	env         []string
}

// startEngine is newEngine, started.
func startEngine(name string, cfg engineConfig) (*engine, error) {
	e, err := newEngine(name, cfg)
	if err != nil {
		return nil, err
	}
	return e, e.start()
}

// newEngine returns vLLM on a free port of loopback, with its sockets of events in the folder. vLLM binds these; an endpoint
// such as tcp://127.0.0.1:5557 it would connect to.
func newEngine(name string, cfg engineConfig) (*engine, error) {
	port, err := loopback.Port()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(cfg.folder, name)
	e := &engine{
		name: name, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), events: "ipc://" + path + ".events",
		replay: "ipc://" + path + ".replay", log: path + ".log", program: cfg.vllm, env: cfg.env,
	}
	e.args = append([]string{
		"serve", cfg.model, "--served-model-name", modelName, "--host", "127.0.0.1", "--port", strconv.Itoa(port),
		"--max-model-len", strconv.Itoa(min(contextLength, (cfg.blocks-1)*blockSize)), // one block of the cache is empty
		"--max-num-seqs", strconv.Itoa(cfg.maxSeqs), "--enforce-eager", "--block-size", strconv.Itoa(blockSize),
		"--kv-cache-memory-bytes", strconv.Itoa(cfg.blocks * cmp.Or(cfg.blockBytes, blockBytes)),
		"--enable-prefix-caching", "--enable-prompt-tokens-details",
		"--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--disable-uvicorn-access-log",
		"--kv-events-config", fmt.Sprintf(
			`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%q,"topic":"kv-events"}`, e.events, e.replay),
	}, cfg.extra...)
	return e, nil
}

// start starts the process, also again after its end.
func (e *engine) start() error {
	out, err := os.OpenFile(e.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()

	e.cmd = exec.Command(e.program, e.args...)
	e.cmd.Stdout, e.cmd.Stderr = out, out
	e.cmd.Env = append(engineEnvironment(), e.env...)
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("start engine %s: %w", e.name, err)
	}

	ended := make(chan struct{})
	e.ended = ended
	cmd := e.cmd
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// engineEnvironment makes vLLM ask no server on the internet, use one thread, and serve the paths that empty its cache.
func engineEnvironment() []string {
	return append(os.Environ(), "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "OMP_NUM_THREADS=1",
		"VLLM_CPU_OMP_THREADS_BIND=nobind", "VLLM_SERVER_DEV_MODE=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")
}

// await returns when the engine is healthy.
func (e *engine) await(ctx context.Context) error { return e.awaitEvery(ctx, time.Second) }

// closely is the interval at which a state is read whose time is measured.
const closely = 20 * time.Millisecond

// awaitEvery is await, with the interval at which the engine is asked.
func (e *engine) awaitEvery(ctx context.Context, interval time.Duration) error {
	ctx, stop := context.WithTimeout(ctx, startTime)
	defer stop()
	for {
		if _, err := getText(ctx, "http://"+e.address+"/health"); err == nil {
			return nil
		}
		select {
		case <-e.ended:
			return fmt.Errorf("engine %s ended; the last lines of its log:\n%s", e.name, lastLines(e.log, 20))
		case <-ctx.Done():
			return fmt.Errorf("engine %s is not healthy: %w; the last lines of its log:\n%s",
				e.name, context.Cause(ctx), lastLines(e.log, 20))
		case <-time.After(interval):
		}
	}
}

// signal sends a signal to the engine's processes.
func (e *engine) signal(s syscall.Signal) { _ = syscall.Kill(-e.cmd.Process.Pid, s) }

// stop ends the engine's processes. All of them are in one group.
func (e *engine) stop() {
	if e.cmd == nil {
		return // it was running before
	}
	e.signal(syscall.SIGCONT)
	e.signal(syscall.SIGTERM)
	select {
	case <-e.ended:
	case <-time.After(30 * time.Second):
	}
	e.kill()
}

// kill ends the engine's processes at once.
func (e *engine) kill() {
	e.signal(syscall.SIGKILL)
	<-e.ended
}

// forget empties the engine's prefix cache.
func (e *engine) forget(ctx context.Context) error {
	_, err := doRequest(ctx, http.MethodPost, "http://"+e.address+"/reset_prefix_cache", nil)
	return err
}

// forgetAll empties the caches of engines.
func forgetAll(ctx context.Context, engines []*engine) error {
	for _, e := range engines {
		if err := e.forget(ctx); err != nil {
			return err
		}
	}
	return nil
}

// version returns the version of the engine.
func (e *engine) version(ctx context.Context) (string, error) {
	text, err := getText(ctx, "http://"+e.address+"/version")
	if err != nil {
		return "", err
	}
	var answer struct {
		Version string `json:"version"`
	}
	return answer.Version, json.Unmarshal([]byte(text), &answer)
}

// metrics returns the sum of an engine's samples of each of these names.
func (e *engine) metrics(ctx context.Context, names ...string) (map[string]float64, error) {
	text, err := getText(ctx, "http://"+e.address+"/metrics")
	if err != nil {
		return nil, err
	}

	sums := map[string]float64{}
	for line := range strings.Lines(text) {
		for _, name := range names {
			rest, found := strings.CutPrefix(line, name)
			if !found || rest == "" || rest[0] != '{' && rest[0] != ' ' {
				continue
			}
			fields := strings.Fields(rest)
			value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				return nil, fmt.Errorf("read metrics of engine %s: %w", e.name, err)
			}
			sums[name] += value
		}
	}
	return sums, nil
}

// doRequest sends a request, whose body is JSON, and returns the body of a good answer.
func doRequest(ctx context.Context, method, url string, body io.Reader) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return "", err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: status %d: %.300s", method, url, resp.StatusCode, text)
	}
	return string(text), err
}

func getText(ctx context.Context, url string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	return doRequest(ctx, http.MethodGet, url, nil)
}

// lastLines returns the end of a file.
func lastLines(path string, n int) string {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "(no log)"
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
