package enginesim_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// answered is an answer of Messages or Responses, or an event of its stream.
type answered struct {
	Type, ID   string
	StopReason string `json:"stop_reason"`
	Status     string
	Content    []struct{ Text string }
	Output     []struct{ Content []struct{ Text string } }
	Usage      *struct {
		Input   int `json:"input_tokens"`
		Output  int `json:"output_tokens"`
		Read    int `json:"cache_read_input_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	Delta    json.RawMessage
	Response *answered
}

// TestMessagesAndResponses: the same conversation has the same answer by both APIs, whole and as a stream, and the second request finds
// the prompt of the first in the cache.
func TestMessagesAndResponses(t *testing.T) {
	const said = "Hello there, engine"
	r := start(t, nil)
	want := r.ask("/v1/chat/completions", chat+"}").Choices[0].Message.Content
	read := func(text string) (a answered) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return a
	}

	messages := `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"` + said + `"}]`
	_, text := r.post("/v1/messages", messages+"}")
	m := read(text)
	if m.Type != "message" || m.StopReason != "max_tokens" || len(m.Content) != 1 || m.Content[0].Text != want {
		t.Errorf("messages: %s", text)
	}
	if u := m.Usage; u == nil || u.Read != 24 || u.Input != 1 || u.Output != 5 {
		t.Errorf("messages: usage in %s", text)
	}

	responses := `{"model":"tiny","max_output_tokens":5,"input":"` + said + `"`
	_, text = r.post("/v1/responses", responses+"}")
	s := read(text)
	if s.Status != "incomplete" || !strings.HasPrefix(s.ID, "resp_") || len(s.Output) != 1 || s.Output[0].Content[0].Text != want {
		t.Errorf("responses: %s", text)
	}
	if u := s.Usage; u == nil || u.Details.Cached != 24 || u.Input != 25 || u.Output != 5 {
		t.Errorf("responses: usage in %s", text)
	}

	for path, body := range map[string]string{"/v1/messages": messages, "/v1/responses": responses} {
		_, stream := r.post(path, body+`,"stream":true}`)
		text, last := "", ""
		for _, event := range strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
			name, data, _ := strings.Cut(event, "\ndata: ")
			e := read(data)
			last = e.Type
			if name != "event: "+e.Type {
				t.Errorf("%s: %s", path, event)
			}
			var part struct{ Text string }
			switch e.Type {
			case "content_block_delta":
				if err := json.Unmarshal(e.Delta, &part); err != nil {
					t.Error(err)
				}
				text += part.Text
			case "response.output_text.delta":
				if err := json.Unmarshal(e.Delta, &part.Text); err != nil {
					t.Error(err)
				}
				text += part.Text
			case "message_delta":
				if u := e.Usage; u == nil || u.Read != 24 || u.Output != 5 {
					t.Errorf("usage in %s", event)
				}
			case "response.completed":
				if u := e.Response.Usage; u == nil || u.Details.Cached != 24 || e.Response.Output[0].Content[0].Text != want {
					t.Errorf("the response in %s", event)
				}
			}
		}
		if text != want || last != map[string]string{"/v1/messages": "message_stop", "/v1/responses": "response.completed"}[path] {
			t.Errorf("%s: %q, last %s:\n%s", path, text, last, stream)
		}
	}

	status, text := r.post("/v1/messages", `{"model":"big","max_tokens":5,"messages":[]}`)
	if status != 404 || !strings.HasPrefix(text, `{"type":"error","error":{"type":"NotFoundError","message":"The model `) {
		t.Errorf("%d %s", status, text)
	}
}
