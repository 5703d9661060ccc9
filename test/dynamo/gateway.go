package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/test/process"
)

// gateway is a running `stator up`.
type gateway struct {
	*process.Gateway
	decisions string // file of the decision log
}

// startGateway starts Stator and Envoy for the workers, and returns when the cache states of all are exact.
func (b *bench) startGateway(ctx context.Context, workers []*worker) (*gateway, error) {
	g := &gateway{decisions: filepath.Join(b.folder, "decisions.jsonl")}
	var text strings.Builder
	fmt.Fprintf(&text, "apiVersion: stator.dev/v1alpha1\nkind: Stator\ndecisions: {log: %q}\nmodels:\n", g.decisions)
	fmt.Fprintf(&text, "- name: %s\n  path: %q\n  blockSize: %d\n  workers:\n", modelName, b.model, blockSize)
	for _, w := range workers {
		fmt.Fprintf(&text, "  - {name: %s, engine: dynamo, address: %q, kvEvents: %q, kvReplay: %q}\n",
			w.name, w.address, w.events, w.replay)
	}

	b.progressf("wait for the gateway")
	var err error
	g.Gateway, err = process.StartGateway(ctx, process.GatewayConfig{
		Stator: b.stator, Envoy: b.envoy, Folder: b.folder, Configuration: text.String(), Patience: patience,
		Ready: func(ctx context.Context, g *process.Gateway) error { return g.Exact(ctx) },
	})
	return g, err
}

// patience is the longest time until processes are ready.
const patience = 2 * time.Minute

// answer is a client's answer to one turn.
type answer struct {
	decision       string // the id of the decision
	prompt, cached int    // tokens, as Dynamo reports them
	text           string
}

// message is a part of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chat sends one turn of a conversation.
func (g *gateway) chat(ctx context.Context, messages []message) (a answer, err error) {
	body, err := json.Marshal(map[string]any{"model": modelName, "messages": messages, "max_tokens": 8})
	if err != nil {
		return a, err
	}
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("content-type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("a turn was answered with status %d: %.300s (%w)", resp.StatusCode, text, err)
	}

	var parts struct {
		Choices []struct {
			Message message `json:"message"`
		} `json:"choices"`
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(text, &parts); err != nil {
		return a, fmt.Errorf("read an answer: %w", err)
	}
	if len(parts.Choices) == 0 {
		return a, fmt.Errorf("an answer has no choice: %.300s", text)
	}
	return answer{
		decision: resp.Header.Get("x-stator-decision"), text: parts.Choices[0].Message.Content,
		prompt: parts.Usage.Prompt, cached: parts.Usage.Details.Cached,
	}, nil
}

// readDecisions returns the decisions of the log by their ids.
func (g *gateway) readDecisions() (map[string]*decisionlog.Decision, error) {
	file, err := os.Open(g.decisions)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()

	all := map[string]*decisionlog.Decision{}
	lines := decisionlog.NewReader(file)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if line.Decision != nil {
			all[line.Decision.ID] = line.Decision
		}
	}
}

// examine runs the doctor, and returns its output.
func (b *bench) examine(ctx context.Context, g *gateway) string {
	b.progressf("stator doctor")
	out, err := exec.CommandContext(ctx, b.stator, "doctor", "--config", g.File,
		"--admin-address", strings.TrimPrefix(g.Admin, "http://")).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		text += " (" + err.Error() + ")"
	}
	return text
}
