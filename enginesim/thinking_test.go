package enginesim_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stator-project/stator/enginesim"
)

// TestThinking reads the same answer of three APIs, as a whole and as a stream. Its first tokens are thinking, and a completion has none.
func TestThinking(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.ThinkTokens = 3 })
	const chat = `{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"hi"}]`

	var whole struct{ Choices []struct{ Message part } }
	_, body := r.post("/v1/chat/completions", chat+"}")
	if err := json.Unmarshal([]byte(body), &whole); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	all := whole.Choices[0].Message
	if len(strings.Fields(all.Reasoning)) != 3 || len(strings.Fields(all.Content)) != 5 {
		t.Errorf("a whole answer: %s", body)
	}

	var streamed part
	_, events := r.post("/v1/chat/completions", chat+`,"stream":true}`)
	for data := range strings.SplitSeq(events, "\n\n") {
		data = strings.TrimPrefix(data, "data: ")
		if data == "" || data == "[DONE]" {
			continue
		}
		var e struct{ Choices []struct{ Delta part } }
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		streamed.Reasoning += e.Choices[0].Delta.Reasoning
		streamed.Content += e.Choices[0].Delta.Content
	}
	if streamed != all {
		t.Errorf("a stream has %+v, the whole answer %+v", streamed, all)
	}

	// Both APIs of agents have the same thinking, in a part of its own before the text.
	for path, agents := range map[string]string{
		"/v1/messages":  `{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"hi"}]`,
		"/v1/responses": `{"model":"tiny","max_output_tokens":8,"input":"hi"`,
	} {
		_, body := r.post(path, agents+"}")
		if p := partsOf(t, body); p != all {
			t.Errorf("%s: %s", path, body)
		}
		var p part
		_, events := r.post(path, agents+`,"stream":true}`)
		for line := range strings.Lines(events) {
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			var e struct {
				Type     string
				Delta    json.RawMessage
				Response json.RawMessage
			}
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			var block struct{ Text, Thinking string }
			switch e.Type {
			case "content_block_delta":
				_ = json.Unmarshal(e.Delta, &block)
			case "response.output_text.delta":
				_ = json.Unmarshal(e.Delta, &block.Text)
			case "response.reasoning_text.delta":
				_ = json.Unmarshal(e.Delta, &block.Thinking)
			case "response.completed":
				if last := partsOf(t, string(e.Response)); last != all {
					t.Errorf("%s: the last event has %+v", path, last)
				}
			}
			p.Content += block.Text
			p.Reasoning += block.Thinking
		}
		if p != all || strings.Count(events, "_start\",\"index\"") != strings.Count(events, "_stop\",\"index\"") {
			t.Errorf("%s: a stream has %+v:\n%s", path, p, events)
		}
	}

	if _, body := r.post("/v1/completions", `{"model":"tiny","max_tokens":8,"prompt":"hi"}`); strings.Contains(body, "reasoning") {
		t.Errorf("a completion: %s", body)
	}
}

// part is an answer without its form.
type part struct{ Content, Reasoning string }

// partsOf returns the parts of an answer of Messages or Responses.
func partsOf(t *testing.T, body string) (p part) {
	t.Helper()
	var answer struct {
		Content []struct{ Type, Text, Thinking string }
		Output  []struct {
			Type    string
			Content []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, b := range answer.Content {
		p.Content += b.Text
		p.Reasoning += b.Thinking
	}
	for _, item := range answer.Output {
		if item.Type == "reasoning" {
			p.Reasoning += item.Content[0].Text
		} else {
			p.Content += item.Content[0].Text
		}
	}
	return p
}
