package route_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestPromptsOfClientsThatBreak routes the recorded conversations of agents. As they are, they have no place that keeps caches from being
// hit. With a line before each system prompt that differs in every request they have one, for each client.
func TestPromptsOfClientsThatBreak(t *testing.T) {
	headers := map[string]func(i int) string{
		"":     func(int) string { return "" },
		"hash": func(i int) string { return fmt.Sprintf("client: 2.1.37; cch=%05xz;\n", 0xa1b2c+i) },
		"time": func(i int) string {
			return start.Add(time.Duration(i)*time.Second).Format("Now it is 15:04:05.") + "\n"
		},
		"number": func(i int) string { return fmt.Sprintf("Request %d\n", 1000+i) },
	}
	for kind, header := range headers {
		r, now := recordedRouter(t), start
		tokens := 0
		for i, parsed := range recordedRequests(t) {
			for j := range parsed.Messages {
				if m := &parsed.Messages[j]; j == 0 && m.Role == "system" {
					m.Content = header(i) + m.Content
					if m.Kind == openai.PartsContent {
						m.Parts[0].Text = header(i) + m.Parts[0].Text
					}
				}
			}
			now = now.Add(time.Second)
			d := r.Decide(&request.Request{Endpoint: parsed.Endpoint, Known: true, Parsed: parsed}, now)
			if d.Outcome != decision.Picked {
				t.Fatal(d)
			}
			tokens += d.PromptTokens - d.Cached
			r.End(d.ID, now)
		}

		found := r.Breaks(now)
		if kind == "" {
			if len(found) > 0 {
				t.Errorf("%+v", found)
			}
			continue
		}
		lost := 0
		for _, p := range found {
			if p.Kind.String() != kind || p.Role != "system" && p.Role != "developer" || p.Message != 0 {
				t.Errorf("%s: %+v", kind, p)
			}
			lost += int(p.Tokens)
		}
		if lost < tokens/2 || lost > tokens {
			t.Errorf("%s: %d of the %d computed tokens are lost by the header", kind, lost, tokens)
		}
	}
}

// recordedRequests returns the recorded requests of agents, in the order in which they were sent.
func recordedRequests(t *testing.T) (all []*prompt.Request) {
	packed, err := os.ReadFile("../prompt/testdata/clients.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		var sample struct {
			Path string
			Body json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &sample); err != nil {
			t.Fatal(err)
		}
		at, err := url.Parse(sample.Path)
		if err != nil {
			t.Fatal(err)
		}
		ep := map[string]openai.Endpoint{"/v1/chat/completions": prompt.Chat, "/v1/messages": prompt.Messages, "/v1/responses": prompt.Responses}
		parsed, err := openai.Parse(ep[at.Path], sample.Body, openai.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		parsed.Model = "m"
		all = append(all, parsed)
	}
	return all
}

// recordedRouter returns a router of one worker with a real tokenizer and chat template.
func recordedRouter(t *testing.T) *route.Router {
	m, err := prompt.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	f := fleet.New(fleet.Hooks{})
	if _, err := f.Put(fleet.Worker{Name: "w", Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	r := route.New(route.Config{PredictFor: func(fleet.Rank) time.Duration { return time.Hour }}, f, kvindex.New(kvindex.Config{}))
	m = m.WithMemory(prompt.NewMemory(prompt.MemoryConfig{MaxBytes: 16 << 20}))
	if err := r.SetModels(map[string]*serving.Config{"m": {Prompt: m, BlockSize: 16}}); err != nil {
		t.Fatal(err)
	}
	return r
}
