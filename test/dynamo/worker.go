package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// child is a running process with its log.
type child struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
}

// start starts a program whose output goes to a log in the folder of the run.
func (b *bench) start(name string, env []string, program string, args ...string) (*child, error) {
	c := &child{name: name, log: filepath.Join(b.folder, name+".log"), ended: make(chan struct{})}
	out, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()

	c.cmd = exec.Command(program, args...)
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is for this program, which then stops its children
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// stop ends the process, by force after a while.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(20 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}

// await calls ready until it returns nil. It fails when the process ends, or after two minutes.
func (c *child) await(ctx context.Context, ready func() error) error {
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-c.ended:
			return fmt.Errorf("%s ended; the last lines of its log:\n%s", c.name, lastLines(c.log))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the last lines of its log:\n%s", c.name, err, lastLines(c.log))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lastLines returns the end of a log.
func lastLines(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// worker is a mocker of Dynamo with a frontend that sends requests to nothing else.
type worker struct {
	name, address    string
	events, replay   string
	mocker, frontend *child
}

// startWorker starts a mocker and its frontend. A discovery folder for each pair keeps the frontends apart.
func (b *bench) startWorker(name string) (*worker, error) {
	var ports [3]string
	for i := range ports {
		port, err := loopback.Port()
		if err != nil {
			return nil, err
		}
		ports[i] = strconv.Itoa(port)
	}
	home := filepath.Join(b.folder, name)
	if err := os.MkdirAll(filepath.Join(home, "discovery"), 0o755); err != nil {
		return nil, err
	}

	env := []string{
		"HOME=" + home, "TMPDIR=" + home, "DYN_FILE_KV=" + filepath.Join(home, "discovery"), "DYN_LOG=warn", "HF_HUB_OFFLINE=1",
		"DYN_TCP_RPC_HOST=127.0.0.1", "DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1", "DYN_EVENT_PLANE_HOST=127.0.0.1",
		"DYN_SELF_HOST_METADATA=0",
	}
	planes := []string{"--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"}
	w := &worker{name: name, address: "127.0.0.1:" + ports[0], events: "tcp://127.0.0.1:" + ports[1], replay: "tcp://127.0.0.1:" + ports[2]}

	var err error
	w.mocker, err = b.start("mocker-"+name, env, b.python, append([]string{
		"-m", "dynamo.mocker", "--model-path", b.model, "--model-name", modelName, "--num-workers", "1",
		"--block-size", strconv.Itoa(blockSize), "--num-gpu-blocks-override", "4096", "--speedup-ratio", "1",
		"--zmq-kv-events-ports", ports[1], "--zmq-replay-ports", ports[2],
	}, planes...)...)
	if err != nil {
		return nil, err
	}
	w.frontend, err = b.start("frontend-"+name, env, b.python, append([]string{
		"-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", ports[0], "--router-mode", "round-robin",
	}, planes...)...)
	if err != nil {
		w.mocker.stop()
		return nil, err
	}
	return w, nil
}

func (w *worker) stop() {
	w.frontend.stop()
	w.mocker.stop()
}

// await returns when the frontend serves the model.
func (w *worker) await(ctx context.Context) error {
	ready := func() error {
		select {
		case <-w.mocker.ended:
			return errors.New("the mocker ended; the last lines of its log:\n" + lastLines(w.mocker.log))
		default:
		}
		_, err := get(ctx, "http://"+w.address+"/v1/models/"+url.PathEscape(modelName)+"/ready")
		return err
	}
	return w.frontend.await(ctx, ready)
}

// version returns the release of the frontend.
func (w *worker) version(ctx context.Context) (string, error) {
	var page struct {
		Info struct {
			Version string `json:"version"`
		} `json:"info"`
	}
	err := getJSON(ctx, "http://"+w.address+"/openapi.json", &page)
	return page.Info.Version, err
}

// getJSON reads a page of JSON into v.
func getJSON(ctx context.Context, at string, v any) error {
	text, err := get(ctx, at)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// get reads a page.
func get(ctx context.Context, at string) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()

	text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %.300s", at, resp.StatusCode, text)
	}
	return text, err
}

// makeModel makes the folder of a tiny model without weights, which a mocker does not load.
func makeModel(vocabulary, folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(vocabulary, name))
		if err != nil {
			return "", fmt.Errorf("read the vocabulary (test/oracle/vocabularies.sh fetches it): %w", err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return "", err
		}
	}
	const config = `{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 256,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768,
"vocab_size": 151680, "bos_token_id": 151643, "eos_token_id": 151645, "torch_dtype": "bfloat16"}
`
	return folder, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644)
}
