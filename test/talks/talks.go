// Package talks has the three APIs of conversations as their clients use them: the bodies of requests, the items of a conversation, and the
// texts and usage of answers. The messages and responses have a tool, and the assistant's thinking, which clients send back.
package talks

import (
	"encoding/json"
	"fmt"
)

// Object is a JSON object.
type Object = map[string]any

// API is a conversation by one API.
type API struct {
	Name, Path string
	Bound      string // the member that bounds the answer
	// Body returns the body of a request with the items of the conversation so far.
	Body func(history []any) Object
	// User, Answer and Used are the items for a question, an answer, and a tool that was used with its result. Chats have no Used.
	User   func(text string) []any
	Answer func(text string) []any
	Used   func(id, result string) []any
	// Read returns the text and the usage of an answer, or of the last event of a stream that has a usage.
	Read func(data []byte) (text string, u Usage, err error)
	// Delta returns the text or the thinking of an event of a stream; nothing for other events.
	Delta func(data []byte) (text, thinking string)
}

// Usage has the tokens of a prompt, and the cached ones among them.
type Usage struct{ Prompt, Cached int }

// All returns a conversation with these instructions by each API.
func All(instructions string) []API {
	return []API{Chat(instructions), Messages(instructions), Responses(instructions)}
}

// Of returns a conversation with these instructions by the API of that name.
func Of(name, instructions string) (API, bool) {
	for _, a := range All(instructions) {
		if a.Name == name {
			return a, true
		}
	}
	return API{}, false
}

// Chat is OpenAI's older API. Without instructions it has no message of the system.
func Chat(instructions string) API {
	type content struct{ Content, Reasoning string }
	return API{
		Name: "chat", Path: "/v1/chat/completions", Bound: "max_tokens",
		Body: func(history []any) Object {
			if instructions != "" {
				history = append([]any{Object{"role": "system", "content": instructions}}, history...)
			}
			return Object{"model": "sim", "max_tokens": 12, "messages": history}
		},
		User:   func(text string) []any { return []any{Object{"role": "user", "content": text}} },
		Answer: func(text string) []any { return []any{Object{"role": "assistant", "content": text}} },
		Read: func(data []byte) (text string, u Usage, err error) {
			var a struct {
				Choices []struct{ Message content }
				Usage   *struct {
					Prompt  int `json:"prompt_tokens"`
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			if err := json.Unmarshal(data, &a); err != nil || a.Usage == nil {
				return "", u, fmt.Errorf("%w: no usage in %s", err, data)
			}
			for _, c := range a.Choices {
				text += c.Message.Content
			}
			return text, Usage{a.Usage.Prompt, a.Usage.Details.Cached}, nil
		},
		Delta: func(data []byte) (text, thinking string) {
			var e struct{ Choices []struct{ Delta content } }
			if json.Unmarshal(data, &e) != nil || len(e.Choices) == 0 {
				return "", ""
			}
			return e.Choices[0].Delta.Content, e.Choices[0].Delta.Reasoning
		},
	}
}

// Messages is Anthropic's API. The instructions follow a text that differs in every request, as Claude Code sends it.
func Messages(instructions string) API {
	type block struct{ Type, Text, Thinking string }
	schema := Object{"type": "object", "properties": Object{"year": Object{"type": "integer"}}}

	return API{
		Name: "messages", Path: "/v1/messages", Bound: "max_tokens",
		Body: func(history []any) Object {
			return Object{
				"model": "sim", "max_tokens": 12, "messages": history, "thinking": Object{"type": "adaptive"},
				"system": []any{
					Object{"type": "text", "text": fmt.Sprintf("x-anthropic-billing-header: cch=%d;", len(history))},
					Object{"type": "text", "text": instructions, "cache_control": Object{"type": "ephemeral"}},
				},
				"tools": []any{Object{"name": "look_up", "description": "Looks up a year.", "input_schema": schema}},
			}
		},
		User: func(text string) []any { return []any{Object{"role": "user", "content": text}} },
		Answer: func(text string) []any {
			return []any{Object{"role": "assistant", "content": []any{
				Object{"type": "thinking", "thinking": "The records may have it.", "signature": "s"}, Object{"type": "text", "text": text},
			}}}
		},
		Used: func(id, result string) []any {
			use := Object{"type": "tool_use", "id": id, "name": "look_up", "input": Object{"year": 1900}}
			return []any{
				Object{"role": "assistant", "content": []any{use}},
				Object{"role": "user", "content": []any{Object{"type": "tool_result", "tool_use_id": id, "content": result}}},
			}
		},
		Read: func(data []byte) (text string, u Usage, err error) {
			var a struct {
				Content []block
				Usage   *struct {
					Input  int `json:"input_tokens"`
					Cached int `json:"cache_read_input_tokens"`
				}
			}
			if err := json.Unmarshal(data, &a); err != nil || a.Usage == nil {
				return "", u, fmt.Errorf("%w: no usage in %s", err, data)
			}
			for _, b := range a.Content {
				text += b.Text
			}
			return text, Usage{a.Usage.Input + a.Usage.Cached, a.Usage.Cached}, nil
		},
		Delta: func(data []byte) (text, thinking string) {
			var e struct{ Delta block }
			_ = json.Unmarshal(data, &e)
			return e.Delta.Text, e.Delta.Thinking
		},
	}
}

// Responses is OpenAI's newer API, of a client that keeps the conversation itself.
func Responses(instructions string) API {
	return API{
		Name: "responses", Path: "/v1/responses", Bound: "max_output_tokens",
		Body: func(history []any) Object {
			return Object{
				"model": "sim", "max_output_tokens": 12, "input": history, "instructions": instructions, "store": false,
				"tools": []any{
					Object{"type": "function", "name": "look_up", "parameters": Object{"type": "object"}, "strict": false},
					Object{"type": "web_search"},
				},
			}
		},
		User: func(text string) []any {
			return []any{Object{"role": "user", "content": []any{Object{"type": "input_text", "text": text}}}}
		},
		Answer: func(text string) []any {
			thinking := Object{"type": "reasoning_text", "text": "It may be there."}
			return []any{
				Object{"type": "reasoning", "summary": []any{}, "content": []any{thinking}},
				Object{"type": "message", "role": "assistant", "content": []any{Object{"type": "output_text", "text": text}}},
			}
		},
		Used: func(id, result string) []any {
			return []any{
				Object{"type": "function_call", "call_id": id, "name": "look_up", "arguments": `{"year": 1900}`},
				Object{"type": "function_call_output", "call_id": id, "output": result},
			}
		},
		Read: readResponse,
		Delta: func(data []byte) (text, thinking string) {
			var e struct{ Type, Delta string }
			if json.Unmarshal(data, &e) != nil {
				return "", ""
			}
			switch e.Type {
			case "response.output_text.delta":
				return e.Delta, ""
			case "response.reasoning_text.delta":
				return "", e.Delta
			}
			return "", ""
		},
	}
}

// readResponse is Read of Responses.
func readResponse(data []byte) (text string, u Usage, err error) {
	type response struct {
		Output []struct {
			Type    string
			Content []struct{ Text string }
		}
		Usage *struct {
			Input   int `json:"input_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		}
	}
	var a struct {
		response
		Response *response // in the last event of a stream
	}

	err = json.Unmarshal(data, &a)
	r := &a.response
	if a.Response != nil {
		r = a.Response
	}
	if err != nil || r.Usage == nil {
		return "", u, fmt.Errorf("%w: no usage in %s", err, data)
	}
	for _, item := range r.Output {
		if item.Type == "message" && len(item.Content) > 0 {
			text += item.Content[0].Text
		}
	}
	return text, Usage{r.Usage.Input, r.Usage.Details.Cached}, nil
}
