package scenario

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// agent is a conversation by one API: with instructions, and by the two APIs of agents also with a tool and reasoning.
type agent struct {
	path  string
	bound string // the member that bounds the answer
	body  func(history []any) map[string]any
	// user, answer and used are the items of the history for a question, an answer, and a tool that was used with its result.
	user   func(text string) []any
	answer func(text string) []any
	used   func(id, result string) []any
	// read returns the text of an answer, or of the last event of its stream, and the cached tokens of its prompt.
	read func(data []byte) (text string, cached int, err error)
	// delta returns the text of an event.
	delta func(data []byte) string
}

// instructions are some eight thousand tokens, of which each agent has its own.
func instructions(topic string) string {
	return "You keep the records of " + topic + ". " +
		strings.Repeat("You answer from the records of "+topic+" alone, and you say so when they are silent. ", 400)
}

type object = map[string]any

// messagesAgent speaks Anthropic's API.
func messagesAgent(topic string) agent {
	type block struct{ Type, Text string }
	schema := object{"type": "object", "properties": object{"year": object{"type": "integer"}}}
	return agent{
		path: "/v1/messages", bound: "max_tokens",
		body: func(history []any) map[string]any {
			return object{
				"model": "sim", "max_tokens": 12, "messages": history, "thinking": object{"type": "adaptive"},
				"system": []any{
					object{"type": "text", "text": fmt.Sprintf("x-anthropic-billing-header: cch=%d;", len(history))},
					object{"type": "text", "text": instructions(topic), "cache_control": object{"type": "ephemeral"}},
				},
				"tools": []any{object{"name": "look_up", "description": "Looks up a year.", "input_schema": schema}},
			}
		},
		user: func(text string) []any { return []any{object{"role": "user", "content": text}} },
		answer: func(text string) []any {
			return []any{object{"role": "assistant", "content": []any{
				object{"type": "thinking", "thinking": "The records may have it.", "signature": "s"}, object{"type": "text", "text": text},
			}}}
		},
		used: func(id, result string) []any {
			return []any{
				object{"role": "assistant", "content": []any{object{"type": "tool_use", "id": id, "name": "look_up", "input": object{"year": 1900}}}},
				object{"role": "user", "content": []any{object{"type": "tool_result", "tool_use_id": id, "content": result}}},
			}
		},
		read: func(data []byte) (string, int, error) {
			var a struct {
				Content []block
				Usage   *struct {
					Cached int `json:"cache_read_input_tokens"`
				}
			}
			if err := json.Unmarshal(data, &a); err != nil || a.Usage == nil {
				return "", 0, fmt.Errorf("%w: no usage in %s", err, data)
			}
			text := ""
			for _, b := range a.Content {
				text += b.Text
			}
			return text, a.Usage.Cached, nil
		},
		delta: func(data []byte) string {
			var e struct{ Delta block }
			_ = json.Unmarshal(data, &e)
			return e.Delta.Text
		},
	}
}

// responsesAgent speaks OpenAI's newer API, and keeps the conversation itself.
func responsesAgent(topic string) agent {
	return agent{
		path: "/v1/responses", bound: "max_output_tokens",
		body: func(history []any) map[string]any {
			return object{
				"model": "sim", "max_output_tokens": 12, "input": history, "instructions": instructions(topic), "store": false,
				"tools": []any{
					object{"type": "function", "name": "look_up", "parameters": object{"type": "object"}, "strict": false},
					object{"type": "web_search"},
				},
			}
		},
		user: func(text string) []any {
			return []any{object{"role": "user", "content": []any{object{"type": "input_text", "text": text}}}}
		},
		answer: func(text string) []any {
			return []any{
				object{"type": "reasoning", "summary": []any{}, "content": []any{object{"type": "reasoning_text", "text": "It may be there."}}},
				object{"type": "message", "role": "assistant", "content": []any{object{"type": "output_text", "text": text}}},
			}
		},
		used: func(id, result string) []any {
			return []any{
				object{"type": "function_call", "call_id": id, "name": "look_up", "arguments": `{"year": 1900}`},
				object{"type": "function_call_output", "call_id": id, "output": result},
			}
		},
		read: func(data []byte) (string, int, error) {
			type response struct {
				Output []struct{ Content []struct{ Text string } }
				Usage  *struct {
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"input_tokens_details"`
				}
			}
			var a struct {
				response
				Response *response // in the last event of a stream
			}
			err := json.Unmarshal(data, &a)
			r := &a.response
			if a.Response != nil {
				r = a.Response
			}
			if err != nil || r.Usage == nil || len(r.Output) == 0 {
				return "", 0, fmt.Errorf("%w: no usage in %s", err, data)
			}
			return r.Output[len(r.Output)-1].Content[0].Text, r.Usage.Details.Cached, nil
		},
		delta: func(data []byte) string {
			var e struct{ Type, Delta string }
			if json.Unmarshal(data, &e) != nil || e.Type != "response.output_text.delta" {
				return ""
			}
			return e.Delta
		},
	}
}

// chatAgent speaks OpenAI's older API.
func chatAgent(topic string) agent {
	type content struct{ Content string }
	return agent{
		path: chatPath, bound: "max_tokens",
		body: func(history []any) map[string]any {
			system := []any{object{"role": "system", "content": instructions(topic)}}
			return object{"model": "sim", "max_tokens": 12, "messages": append(system, history...)}
		},
		user:   func(text string) []any { return []any{object{"role": "user", "content": text}} },
		answer: func(text string) []any { return []any{object{"role": "assistant", "content": text}} },
		read: func(data []byte) (string, int, error) {
			var a struct {
				Choices []struct{ Message content }
				Usage   *struct {
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			if err := json.Unmarshal(data, &a); err != nil || a.Usage == nil {
				return "", 0, fmt.Errorf("%w: no usage in %s", err, data)
			}
			text := ""
			for _, c := range a.Choices {
				text += c.Message.Content
			}
			return text, a.Usage.Details.Cached, nil
		},
		delta: func(data []byte) string {
			var e struct{ Choices []struct{ Delta content } }
			if json.Unmarshal(data, &e) != nil || len(e.Choices) == 0 {
				return ""
			}
			return e.Choices[0].Delta.Content
		},
	}
}

// ask sends one turn, as a stream or not, and returns its answer. more has further members of the request; headers come in pairs.
func (a *agent) ask(g *gateway, history []any, stream bool, more object, headers ...string) (decision, text string, cached int, err error) {
	request := a.body(history)
	request["stream"] = stream
	if stream && a.path == chatPath {
		request["stream_options"] = object{"include_usage": true}
	}
	maps.Copy(request, more)
	body, err := json.Marshal(request)
	if err != nil {
		return "", "", 0, err
	}
	r, err := g.send(g.t.Context(), http.MethodPost, a.path, body, headers...)
	if err != nil || r.status != http.StatusOK {
		return "", "", 0, fmt.Errorf("status %d, %w: %s", r.status, err, r.body)
	}
	if !stream {
		text, cached, err = a.read([]byte(r.body))
		return r.decision, text, cached, err
	}

	// The usage is in the last event that has one.
	usage := []byte(nil)
	lines := bufio.NewScanner(strings.NewReader(r.body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		text += a.delta(data)
		if bytes.Contains(data, []byte(`"usage"`)) {
			usage = bytes.Clone(data)
		}
	}
	_, cached, err = a.read(usage)
	return r.decision, text, cached, err
}

// TestAgentsFindTheirCaches: conversations of twelve turns by both APIs of agents, beside each other through four engines, find their
// prompts cached in every turn but the first, on one worker each, and engines serve the tokens from caches that routers promised.
func TestAgentsFindTheirCaches(t *testing.T) {
	t.Parallel()
	const turns = 12
	g := up(t, "--workers", "4")
	agents := []agent{messagesAgent("the lighthouse of Ushant"), responsesAgent("the harbour of Brest")}

	var all sync.WaitGroup
	for _, a := range agents {
		all.Go(func() {
			var history []any
			promised, served := 0, 0
			workers := map[string]bool{}
			for turn := range turns {
				history = append(history, a.user(fmt.Sprintf("Question %d: what do the records say of year %d?", turn, 1900+turn))...)
				id, text, cached, err := a.ask(g, history, turn%2 == 1, nil)
				if err != nil || text == "" {
					t.Errorf("%s, turn %d: %q, %v", a.path, turn, text, err)
					return
				}
				d := g.decision(id)
				workers[d.Worker] = true
				promised += d.Overlap * d.BlockSize
				served += cached
				if turn > 0 && cached < d.PromptTokens*9/10 {
					t.Errorf("%s, turn %d: %d of %d tokens cached", a.path, turn, cached, d.PromptTokens)
				}
				history = append(history, a.answer(text)...)
				if turn%3 == 2 {
					history = append(history, a.used(fmt.Sprint("call_", turn), "The records are silent.")...)
				}
			}
			if len(workers) != 1 {
				t.Errorf("%s: its turns were served by %v", a.path, workers)
			}
			if least, most := min(promised, served), max(promised, served); least*100 < most*99 {
				t.Errorf("%s: %d tokens were promised and %d served from caches", a.path, promised, served)
			}
		})
	}
	all.Wait()

	for _, reason := range []string{"part", "field", "tool", "form", "engine", "harmony"} {
		if n := g.metric("stator_route_unread_requests_total", `reason="`+reason+`"`); n != 0 {
			t.Errorf("%g requests were not read: %s", n, reason)
		}
	}
	g.assertServed(turns * len(agents))
}
