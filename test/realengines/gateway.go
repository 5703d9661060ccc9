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
	"path/filepath"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
)

// modelName is the name under which engines and gateway serve the model.
const modelName = "tiny"

// gateway is a running `stator up` in front of engines that it has not started.
type gateway struct {
	*process.Gateway
	decisions string // file of the decision log
}

// gatewayConfig has the settings of a gateway.
type gatewayConfig struct {
	stator, envoy, model, folder string
	block                        int    // the block size in tokens
	router                       string // the router's settings as YAML of one line
	adapters                     string // LoRA adapters, the same way
	launch                       string // engines to launch, the same way
	kv                           string // the store of KV blocks, the same way
	migration                    string // of streams, the same way
	more                         string // another model with its workers, the same way
	hints                        bool   // the hints of all clients count
	env                          []string
}

// startGateway starts Stator and Envoy for running engines, and returns when all workers are ready and their caches known. A gateway that
// launches engines itself is ready when it serves.
func startGateway(ctx context.Context, cfg gatewayConfig, engines []*engine) (*gateway, error) {
	g := &gateway{decisions: filepath.Join(cfg.folder, "decisions.jsonl")}
	_ = os.Remove(g.decisions)
	start := process.GatewayConfig{
		Stator: cfg.stator, Envoy: cfg.envoy, Folder: cfg.folder, Env: cfg.env, Configuration: g.configuration(cfg, engines),
		Ready: func(ctx context.Context, g *process.Gateway) error { return g.Exact(ctx, modelName) },
	}
	if cfg.launch != "" {
		start.Ready, start.Patience = nil, startTime
	}
	var err error
	g.Gateway, err = process.StartGateway(ctx, start)
	return g, err
}

// startBeside starts Stator and Envoy in front of engines at these addresses, without a configuration.
func startBeside(ctx context.Context, cfg gatewayConfig, ready func(context.Context, *process.Gateway) error, to ...string,
) (*gateway, error) {
	g := &gateway{decisions: filepath.Join(cfg.folder, "decisions.jsonl")}
	_ = os.Remove(g.decisions)
	var err error
	g.Gateway, err = process.StartGateway(ctx, process.GatewayConfig{
		Stator: cfg.stator, Envoy: cfg.envoy, Folder: cfg.folder, Env: cfg.env, To: to, Args: []string{"--decision-log", g.decisions},
		Ready: ready,
	})
	return g, err
}

// configuration returns the text of the configuration.
func (g *gateway) configuration(cfg gatewayConfig, engines []*engine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: stator.dev/v1alpha1\nkind: Stator\ndecisions: {log: %q, hashEvery: 1}\n"+
		"gateway: {passPaths: [/v1/messages/count_tokens, /inference/v1/generate], hintsFrom: %s}\nmodels:\n",
		g.decisions, map[bool]string{false: "trusted", true: "everyone"}[cfg.hints])
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
	if cfg.migration != "" {
		fmt.Fprintf(&b, "  migration: %s\n", cfg.migration)
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

// answer is an answer as a client received it, with the engine's report in it.
type answer struct {
	status   int
	decision string // the id of the decision
	usage    usage
	ids      []uint32 // the prompt's token ids, if the request asked for them
	text     string   // the body of an error
	took     time.Duration
}

// usage is the part of an answer that counts tokens.
type usage struct {
	Prompt  int     `json:"prompt_tokens"`
	Details details `json:"prompt_tokens_details"`

	// These are the members of responses and messages. Of a message the input has neither the cached tokens nor those that were
	// cached now.
	Input        int     `json:"input_tokens"`
	InputDetails details `json:"input_tokens_details"`
	Read         int     `json:"cache_read_input_tokens"`
	Created      int     `json:"cache_creation_input_tokens"`
}

type details struct {
	Cached int `json:"cached_tokens"`
}

// ofPrompt returns the usage with the members of chats.
func (u usage) ofPrompt() usage {
	if u.Input+u.Read+u.Created > 0 {
		u.Prompt = u.Input + u.Read + u.Created
		u.Details.Cached = u.Read + u.InputDetails.Cached
	}
	return u
}

// part is an answer, or one event of a stream.
type part struct {
	Usage     *usage   `json:"usage"`
	Response  *part    `json:"response"` // in the events of a response
	PromptIDs []uint32 `json:"prompt_token_ids"`
	Choices   []struct {
		PromptIDs []uint32 `json:"prompt_token_ids"`
	} `json:"choices"`
}

// send sends a request with the fields of a body, and defaults for the others, and reads the answer to its end.
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
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+path, bytes.NewReader(raw))
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
	return a, a.readBody(text, full["stream"] == true)
}

// sendGood is send for a request that must be answered well.
func (g *gateway) sendGood(ctx context.Context, path string, body map[string]any) (answer, error) {
	a, err := g.send(ctx, path, body)
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("status %d: %.300s", a.status, a.text)
	}
	return a, err
}

// readBody reads the usage and the token ids from the body of an answer.
func (a *answer) readBody(body []byte, streamed bool) error {
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
		if p.Response != nil {
			p.Usage = p.Response.Usage
		}
		if p.Usage != nil {
			a.usage = p.Usage.ofPrompt()
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
