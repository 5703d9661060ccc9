package enginesim_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stator-project/stator/enginesim"
)

// TestThinking reads the same answer as a whole and as a stream. Its first tokens are thinking, and a completion has none.
func TestThinking(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.ThinkTokens = 3 })
	const chat = `{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"hi"}]`

	type part struct{ Content, Reasoning string }
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

	if _, body := r.post("/v1/completions", `{"model":"tiny","max_tokens":8,"prompt":"hi"}`); strings.Contains(body, "reasoning") {
		t.Errorf("a completion: %s", body)
	}
}
