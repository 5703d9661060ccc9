package enginesim_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// withIDs is an event of a stream that was asked for with return_token_ids.
type withIDs struct {
	Choices []struct {
		Text   string
		Delta  struct{ Content string }
		IDs    []int  `json:"token_ids"`
		Prompt []int  `json:"prompt_token_ids"`
		Reason string `json:"finish_reason"`
	}
	Prompt []int `json:"prompt_token_ids"`
}

// idsOf returns the ids of the prompt and of the answer, the text, and the reason for the end.
func (r *running) idsOf(path, body string) (prompt, ids []int, text, reason string) {
	r.t.Helper()
	_, events := r.post(path, body)
	for data := range strings.SplitSeq(events, "\n\n") {
		data = strings.TrimPrefix(data, "data: ")
		if data == "" || data == "[DONE]" {
			continue
		}
		var e withIDs
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			r.t.Fatalf("%v: %s", err, data)
		}
		prompt = append(prompt, e.Prompt...)
		for _, c := range e.Choices {
			prompt = append(prompt, c.Prompt...)
			ids = append(ids, c.IDs...)
			text += c.Text + c.Delta.Content
			reason += c.Reason
		}
	}
	return prompt, ids, text, reason
}

// TestStreamsGoOnByTokenIDs continues streams by the ids of their prompts and of their first tokens. The rest is the rest of the stream,
// and the prompt is found in the cache.
func TestStreamsGoOnByTokenIDs(t *testing.T) {
	r := start(t, nil)
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}]`},
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}],"max_tokens":20`},
		{"/v1/completions", `"prompt":"a prompt"`},
		{"/v1/completions", `"prompt":"a prompt","max_tokens":null`},
	} {
		prompt, ids, text, reason := r.idsOf(c.path, `{"model":"tiny","stream":true,"return_token_ids":true,`+c.body+"}")
		if len(prompt) == 0 || len(ids) < 16 || reason == "" {
			t.Fatalf("%s: %d ids of the prompt, %d of the answer, %q", c.body, len(prompt), len(ids), reason)
		}
		left := "null"
		if reason == "length" {
			left = fmt.Sprint(len(ids) - 5)
		}
		tokens, err := json.Marshal(slices.Concat(prompt, ids[:5]))
		if err != nil {
			t.Fatal(err)
		}
		rest := fmt.Sprintf(`{"model":"tiny","stream":true,"return_token_ids":true,"prompt":%s,"max_tokens":%s}`, tokens, left)
		_, more, end, last := r.idsOf("/v1/completions", rest)
		if !slices.Equal(more, ids[5:]) || !strings.HasSuffix(text, end) || last != reason {
			t.Errorf("%s: %v %q %s after %v %q %s", c.body, more, end, last, ids, text, reason)
		}
	}
}
