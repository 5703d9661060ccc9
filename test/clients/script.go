package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
)

// A scripted engine answers agents as a model would that uses tools: it thinks, calls a tool two times at once in each of the first rounds
// of a turn, and then ends the turn. A simulated engine calls no tools.

// rounds is the number of rounds of a turn in which tools are called.
const rounds = 2

// startScript returns the URL of a scripted engine, and a function that stops it.
func startScript() (url string, stop func()) {
	var answers atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answerByScript(w, r, answers.Add(1)) }))
	return server.URL, server.Close
}

// asked is a request of any of the three APIs, as far as the script needs it.
type asked struct {
	Model    string
	Messages []json.RawMessage
	Input    []json.RawMessage
	Tools    []struct {
		Name     string
		Function struct{ Name string }
	}

	id int64 // of the answer: agents take two with the same id for one
}

func answerByScript(w http.ResponseWriter, r *http.Request, id int64) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a := asked{id: id}
	if err := json.Unmarshal(text, &a); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	call := a.call()
	var events []any
	switch r.URL.Path {
	case "/v1/messages":
		events = a.message(call)
	case "/v1/responses":
		events = a.response(call)
	case "/v1/chat/completions":
		events = a.chat(call)
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		line, _ := json.Marshal(e) // of maps and strings
		if kind, ok := e.(object)["type"]; ok {
			_, _ = fmt.Fprintf(w, "event: %s\n", kind)
		}
		_, _ = fmt.Fprintf(w, "data: %s\n\n", line)
	}
	if r.URL.Path == "/v1/chat/completions" {
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}
}

type object = map[string]any

// toolCall is the call of a round.
type toolCall struct{ name, arguments string }

// call returns the call of this round: of the tool that runs commands. It is empty in the last round, and without such a tool.
func (a *asked) call() toolCall {
	results := 0
	list := append(a.Messages, a.Input...)
	for i := len(list) - 1; i >= 0 && !isPrompt(string(list[i])); i-- {
		results += strings.Count(string(list[i]), "one\\ntwo")
	}
	if results >= 2*rounds {
		return toolCall{}
	}
	for _, t := range a.Tools {
		switch name := t.Name + t.Function.Name; name {
		case "Bash", "bash":
			return toolCall{name, `{"command": "echo one; echo two", "description": "print two words"}`}
		case "exec_command":
			return toolCall{name, `{"cmd": "echo one; echo two"}`}
		}
	}
	return toolCall{}
}

// isPrompt reports whether an item is a message of the user, and not the result of a tool.
func isPrompt(item string) bool {
	return strings.Contains(item, `"role":"user"`) && !strings.Contains(item, "tool_result")
}

const thought = "The user wants two words. A command prints them."

func (a *asked) message(call toolCall) []any {
	stop := "end_turn"
	blocks := []object{{"type": "text", "text": "Both words are printed now."}}
	if call.name != "" {
		stop = "tool_use"
		blocks = []object{
			{"type": "thinking", "thinking": thought, "signature": "c2lnbmF0dXJl"},
			{"type": "text", "text": "Two commands print two words."},
		}
		for i := range 2 {
			blocks = append(blocks, object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d_%d", a.id, i), "name": call.name})
		}
	}

	usage := object{"input_tokens": 10, "output_tokens": 1}
	events := []any{object{"type": "message_start", "message": object{
		"id": fmt.Sprint("msg_", a.id), "type": "message", "role": "assistant", "model": a.Model, "content": []any{}, "usage": usage,
	}}}
	for i, b := range blocks {
		var start, delta object
		switch b["type"] {
		case "text":
			start = object{"type": "text", "text": ""}
			delta = object{"type": "text_delta", "text": b["text"]}
		case "thinking":
			start = object{"type": "thinking", "thinking": ""}
			delta = object{"type": "thinking_delta", "thinking": b["thinking"]}
		default:
			start = object{"type": "tool_use", "id": b["id"], "name": b["name"], "input": object{}}
			delta = object{"type": "input_json_delta", "partial_json": call.arguments}
		}
		events = append(events, object{"type": "content_block_start", "index": i, "content_block": start},
			object{"type": "content_block_delta", "index": i, "delta": delta})
		if b["type"] == "thinking" {
			signed := object{"type": "signature_delta", "signature": b["signature"]}
			events = append(events, object{"type": "content_block_delta", "index": i, "delta": signed})
		}
		events = append(events, object{"type": "content_block_stop", "index": i})
	}
	return append(events, object{"type": "message_delta", "delta": object{"stop_reason": stop}, "usage": object{"output_tokens": 5}},
		object{"type": "message_stop"})
}

func (a *asked) response(call toolCall) []any {
	items := []object{{"type": "message", "id": fmt.Sprint("msg_", a.id), "role": "assistant", "status": "completed", "content": []any{
		object{"type": "output_text", "text": "Both words are printed now.", "annotations": []any{}},
	}}}
	if call.name != "" {
		summary := []any{object{"type": "summary_text", "text": thought}}
		items = []object{{"type": "reasoning", "id": fmt.Sprint("rs_", a.id), "summary": summary}}
		for i := range 2 {
			id := fmt.Sprintf("call_%d_%d", a.id, i)
			items = append(items, object{"type": "function_call", "id": "fc_" + id, "call_id": id, "name": call.name,
				"arguments": call.arguments, "status": "completed"})
		}
	}

	response := object{"id": fmt.Sprint("resp_", a.id), "object": "response", "status": "in_progress", "model": a.Model, "output": []any{}}
	events := []any{object{"type": "response.created", "response": response}}
	for i, item := range items {
		events = append(events, object{"type": "response.output_item.added", "output_index": i, "item": item},
			object{"type": "response.output_item.done", "output_index": i, "item": item})
	}
	done := object{"id": fmt.Sprint("resp_", a.id), "object": "response", "status": "completed", "model": a.Model, "output": items,
		"usage": object{"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}}
	return append(events, object{"type": "response.completed", "response": done})
}

func (a *asked) chat(call toolCall) []any {
	delta, reason := object{"role": "assistant", "content": "Both words are printed now."}, "stop"
	if call.name != "" {
		var calls []any
		for i := range 2 {
			calls = append(calls, object{"index": i, "id": fmt.Sprintf("call_%d_%d", a.id, i), "type": "function",
				"function": object{"name": call.name, "arguments": call.arguments}})
		}
		delta = object{"role": "assistant", "reasoning_content": thought, "content": "Two commands.", "tool_calls": calls}
		reason = "tool_calls"
	}
	chunk := func(choices ...any) object {
		return object{"id": fmt.Sprint("chatcmpl-", a.id), "object": "chat.completion.chunk", "model": a.Model, "choices": choices}
	}
	last := chunk()
	last["choices"] = []any{}
	last["usage"] = object{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
	return []any{chunk(object{"index": 0, "delta": delta}), chunk(object{"index": 0, "delta": object{}, "finish_reason": reason}), last}
}
