package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// modelName is the name under which engines and gateway serve the model.
const modelName = "tiny"

// gateway is a running `stator up` in front of engines that it has not started.
type gateway struct {
	url, admin string
	decisions  string // file of the decision log
	log        string
	cmd        *exec.Cmd
	ended      chan struct{}
}

// gatewayConfig is what a gateway is started with.
type gatewayConfig struct {
	stator, envoy, model, folder string
	block                        int    // the block size in tokens
	router                       string // the router's settings as YAML of one line
	adapters                     string // LoRA adapters, the same way
	launch                       string // engines to launch, the same way
	kv                           string // the store of KV blocks, the same way
	more                         string // another model with its workers, the same way
	env                          []string
}

// startGateway starts Stator and Envoy for running engines, and returns when all workers are ready and their caches known.
func startGateway(ctx context.Context, cfg gatewayConfig, engines []*engine) (*gateway, error) {
	listen, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	admin, err := loopback.Address()
	if err != nil {
		return nil, err
	}

	g := &gateway{
		url: "http://" + listen, admin: "http://" + admin,
		decisions: filepath.Join(cfg.folder, "decisions.jsonl"), log: filepath.Join(cfg.folder, "stator.log"),
	}
	_ = os.Remove(g.decisions)
	file := filepath.Join(cfg.folder, "stator.yaml")
	if err := os.WriteFile(file, []byte(g.configuration(cfg, engines)), 0o644); err != nil {
		return nil, err
	}

	out, err := os.OpenFile(g.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	args := []string{"up", "--config", file, "--listen-address", listen, "--admin-address", admin}
	if cfg.envoy != "" {
		args = append(args, "--envoy", cfg.envoy)
	}
	g.cmd = exec.Command(cfg.stator, args...)
	g.cmd.Stdout, g.cmd.Stderr = out, out
	g.cmd.Env = append(os.Environ(), cfg.env...)
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the gateway: %w", err)
	}
	g.ended = make(chan struct{})
	go func() {
		_ = g.cmd.Wait()
		close(g.ended)
	}()
	if err := g.await(ctx, &cfg); err != nil {
		g.stop()
		return nil, err
	}
	return g, nil
}

func (g *gateway) configuration(cfg gatewayConfig, engines []*engine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: stator.dev/v1alpha1\nkind: Stator\ndecisions: {log: %q, hashEvery: 1}\n"+
		"gateway: {passPaths: [/v1/responses, /v1/messages, /inference/v1/generate]}\nmodels:\n", g.decisions)
	fmt.Fprintf(&b, "- name: %s\n  path: %q\n  blockSize: %d\n", modelName, cfg.model, cfg.block)
	if cfg.router != "" {
		fmt.Fprintf(&b, "  router: %s\n", cfg.router)
	}
	if cfg.adapters != "" {
		fmt.Fprintf(&b, "  adapters: %s\n", cfg.adapters)
	}
	if cfg.kv != "" {
		fmt.Fprintf(&b, "  kv: %s\n", cfg.kv)
	}
	if cfg.launch != "" {
		fmt.Fprintf(&b, "  launch:\n  - %s\n", cfg.launch)
		return b.String()
	}

	fmt.Fprintln(&b, "  workers:")
	for _, e := range engines {
		fmt.Fprintf(&b, "  - {name: %s, engine: vllm, address: %q, kvEvents: %q, kvReplay: %q%s}\n",
			e.name, cmp.Or(e.front, e.address), e.events, e.replay, e.worker)
	}
	if cfg.more != "" {
		fmt.Fprintf(&b, "- %s\n", cfg.more)
	}
	return b.String()
}

// await returns when the gateway serves and, unless it launches engines, the cache states of all ranks are exact.
func (g *gateway) await(ctx context.Context, cfg *gatewayConfig) error {
	events, limit := true, time.Minute
	if cfg.launch != "" {
		events, limit = false, startTime
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	for {
		_, err := getText(ctx, g.admin+"/readyz")
		if err == nil && events {
			err = g.exact(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-g.ended:
			return fmt.Errorf("the gateway ended; the last lines of its log:\n%s", lastLines(g.log, 20))
		case <-ctx.Done():
			return fmt.Errorf("the gateway is not ready: %w; the last lines of its log:\n%s", err, lastLines(g.log, 20))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// exact returns an error unless all ranks are ready, and the cache states of those that serve the chat model are exact.
func (g *gateway) exact(ctx context.Context) error {
	ranks, err := g.ranks(ctx)
	if err != nil {
		return err
	}
	for _, r := range ranks {
		if r.State != "ready" {
			return fmt.Errorf("%s is %s", r.Worker, r.State)
		}
		if r.Model == modelName && r.Cache != "exact" {
			return fmt.Errorf("the cache state of %s is %s", r.Worker, r.Cache)
		}
	}
	return nil
}

// rankState is what the gateway knows of a rank.
type rankState struct {
	Worker  string `json:"worker"`
	Address string `json:"address"`
	Model   string `json:"model"`
	State   string `json:"state"`
	Cache   string `json:"cache_state"`
}

func (g *gateway) ranks(ctx context.Context) ([]rankState, error) {
	text, err := getText(ctx, g.admin+"/debug/fleet?format=json")
	if err != nil {
		return nil, err
	}
	var page struct {
		Ranks []rankState `json:"ranks"`
	}
	err = json.Unmarshal([]byte(text), &page)
	return page.Ranks, err
}

// stop ends the gateway.
func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-g.ended:
	case <-time.After(20 * time.Second):
		_ = g.cmd.Process.Kill()
		<-g.ended
	}
}

// answer is what a client received, and what the engine reports in it.
type answer struct {
	status   int
	decision string // the id of the decision
	usage    usage
	ids      []uint32 // the prompt's token ids, where they were asked for
	text     string   // the body of an error
	took     time.Duration
}

// usage is the part of an answer that counts tokens.
type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// part is an answer, or one event of a stream.
type part struct {
	Usage     *usage   `json:"usage"`
	PromptIDs []uint32 `json:"prompt_token_ids"`
	Choices   []struct {
		PromptIDs []uint32 `json:"prompt_token_ids"`
	} `json:"choices"`
}

// send sends a request with more fields than those of the body, and reads the answer to its end.
func (g *gateway) send(ctx context.Context, path string, body map[string]any) (answer, error) {
	full := map[string]any{"model": modelName, "max_tokens": 4, "temperature": 0}
	for k, v := range body {
		full[k] = v
	}
	if full["stream"] == true {
		full["stream_options"] = map[string]any{"include_usage": true}
	}
	raw, err := json.Marshal(full)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, bytes.NewReader(raw))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")

	begun := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	a := answer{status: resp.StatusCode, decision: resp.Header.Get("X-Stator-Decision"), took: time.Since(begun)}
	if err != nil || a.status != http.StatusOK {
		a.text = string(text)
		return a, err
	}
	return a, a.read(text, full["stream"] == true)
}

// sendGood is send for a request that must be answered well.
func (g *gateway) sendGood(ctx context.Context, path string, body map[string]any) (answer, error) {
	a, err := g.send(ctx, path, body)
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("status %d: %.300s", a.status, a.text)
	}
	return a, err
}

// read reads the usage and the token ids from the body of an answer.
func (a *answer) read(body []byte, streamed bool) error {
	parts := [][]byte{body}
	if streamed {
		parts = nil
		for line := range bytes.Lines(body) {
			if data, found := bytes.CutPrefix(line, []byte("data: {")); found {
				parts = append(parts, append([]byte("{"), data...))
			}
		}
	}

	for _, raw := range parts {
		var p part
		if err := json.Unmarshal(raw, &p); err != nil {
			return fmt.Errorf("read an answer: %w", err)
		}
		if p.Usage != nil {
			a.usage = *p.Usage
		}
		// Streams have the ids once for each answer: in its first event, or in its first choice.
		if len(a.ids) == 0 {
			a.ids = p.PromptIDs
		}
		for _, c := range p.Choices {
			if len(a.ids) == 0 {
				a.ids = c.PromptIDs
			}
		}
	}
	return nil
}
