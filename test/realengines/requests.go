package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// request is one request of the truth run.
type request struct {
	kind string // names the property that is tested
	path string
	body map[string]any
}

const (
	chats       = "/v1/chat/completions"
	completions = "/v1/completions"
	messages    = "/v1/messages"
	responses   = "/v1/responses"
)

// writer makes requests from text and from a random source, so that a seed repeats a run.
type writer struct {
	rng   *rand.Rand
	words []string
	list  []request
}

// newWriter takes its words from the pages of a folder.
func newWriter(seed uint64, folder string) (*writer, error) {
	pages, err := filepath.Glob(filepath.Join(folder, "*.md"))
	if err != nil || len(pages) == 0 {
		return nil, fmt.Errorf("find text for prompts: there is no page in %s", folder)
	}
	w := &writer{rng: rand.New(rand.NewPCG(seed, 1))}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		w.words = append(w.words, strings.Fields(string(text))...)
	}
	return w, nil
}

// text returns n words that follow each other somewhere in the pages.
func (w *writer) text(n int) string {
	at := w.rng.IntN(len(w.words) - n)
	return strings.Join(w.words[at:at+n], " ")
}

// ids returns random token ids.
func (w *writer) ids(n int) []uint32 { return randomIDs(w.rng, n) }

// randomIDs returns ids of random tokens that are text, so without the special ones at both ends of the vocabulary.
func randomIDs(rng *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 100 + rng.Uint32N(149_900)
	}
	return ids
}

func (w *writer) addRequest(kind, path string, body map[string]any) {
	w.list = append(w.list, request{kind, path, body})
}

func message(role, content string) map[string]any {
	return map[string]any{"role": role, "content": content}
}

// tools are functions in the form that clients send them.
func tools() []any {
	var list []any
	for _, name := range []string{"get_order", "list_items", "cancel_order"} {
		list = append(list, map[string]any{"type": "function", "function": map[string]any{
			"name": name, "description": name + " of the shop, ünïcode & <tags>",
			"parameters": map[string]any{"type": "object", "required": []string{"id"}, "properties": map[string]any{
				"id": map[string]any{"type": "string", "description": "the id"},
				"n":  map[string]any{"type": "integer", "minimum": 1, "default": 3},
			}},
		}})
	}
	return list
}

// dialogues adds conversations whose prompts grow, turn by turn: with tools, streamed, and with several answers.
func (w *writer) dialogues(n, turns int) {
	for d := range n {
		list := []any{message("system", "You are an agent of a shop. "+w.text(60))}
		for turn := range turns {
			list = append(list, message("user", w.text(20+w.rng.IntN(120))))
			kind := "dialogue"
			body := map[string]any{"messages": append([]any(nil), list...), "tools": tools()}
			if d%2 == 1 {
				kind, body["stream"] = "dialogue, streamed", true
			}
			switch turn {
			case 3:
				kind = "two answers"
				body["n"] = 2
				body["temperature"] = 0.7
			case 4:
				body["tool_choice"] = "none"
			}
			w.addRequest(kind, chats, body)

			if turn%2 == 0 {
				list = append(list, message("assistant", w.text(40)))
				continue
			}
			id := fmt.Sprint("call_", turn)
			list = append(list,
				map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{"id": id, "type": "function",
					"function": map[string]any{"name": "get_order", "arguments": `{"id":"é` + id + `","n":1,"f":1.50}`}}}},
				map[string]any{"role": "tool", "tool_call_id": id, "content": w.text(30)})
		}
	}
}

// object is a value of a request's JSON.
type object = map[string]any

// agentAPIs adds conversations by Messages and Responses, turn by turn: with instructions, tools, their results and reasoning.
func (w *writer) agentAPIs(n, turns int) {
	var anthropicTools, responseTools []any
	for _, t := range tools() {
		f := t.(object)["function"].(object)
		anthropicTools = append(anthropicTools, object{
			"name": f["name"], "description": f["description"], "input_schema": f["parameters"]})
		responseTools = append(responseTools, object{
			"type": "function", "name": f["name"], "description": f["description"], "parameters": f["parameters"]})
	}

	for d := range n {
		instructions := "You are an agent of a shop. " + w.text(200)
		var said, items []any
		for turn := range turns {
			asked, stream := w.text(20+w.rng.IntN(120)), (d+turn)%2 == 1
			said = append(said, message("user", asked))
			items = append(items, object{"role": "user", "content": []any{object{"type": "input_text", "text": asked}}})
			w.addRequest("message", messages, object{"system": []any{object{"type": "text", "text": instructions}},
				"messages": append([]any(nil), said...), "tools": anthropicTools, "stream": stream})
			w.addRequest("response", responses, object{"instructions": instructions, "input": append([]any(nil), items...),
				"tools": responseTools, "max_output_tokens": 4, "stream": stream})

			answer, thought := w.text(40), w.text(10)
			blocks := []any{object{"type": "thinking", "thinking": thought, "signature": "s"}, object{"type": "text", "text": answer}}
			items = append(items,
				object{"type": "reasoning", "summary": []any{}, "content": []any{object{"type": "reasoning_text", "text": thought}}},
				object{"type": "message", "role": "assistant", "content": []any{object{"type": "output_text", "text": answer}}})
			if turn%2 == 0 {
				said = append(said, object{"role": "assistant", "content": blocks})
				continue
			}

			result, id := w.text(30), fmt.Sprint("call_", turn)
			use := object{"type": "tool_use", "id": id, "name": "get_order", "input": object{"id": "é", "f": 1.5}}
			said = append(said, object{"role": "assistant", "content": append(blocks, use)},
				object{"role": "user", "content": []any{object{"type": "tool_result", "tool_use_id": id, "content": result}}})
			items = append(items,
				object{"type": "function_call", "call_id": id, "name": "get_order", "arguments": `{"id":"é","f":1.50}`},
				object{"type": "function_call_output", "call_id": id, "output": result})
		}
	}
}

// agents adds prompts of one message each, as an agent's context grows: each is the one before with more at its end.
func (w *writer) agents(n, steps int) {
	for range n {
		task := w.text(300)
		for step := range steps {
			task += "\n" + w.text(150)
			body := map[string]any{"messages": []any{message("system", "You are a software engineer."), message("user", task)}}
			if step%3 == 1 {
				body["stream"] = true
			}
			w.addRequest("agent", chats, body)
		}
	}
}

// completions adds prompts without a template.
func (w *writer) completions() {
	base, ids := w.text(400), w.ids(900)
	for i := range 10 {
		w.addRequest("text", completions, map[string]any{"prompt": fmt.Sprint(base, " tail ", i), "stream": i%2 == 1})
		w.addRequest("token ids", completions, map[string]any{"prompt": append(append([]uint32(nil), ids[:200+70*i]...), uint32(5+i))})
	}

	for range 3 {
		w.addRequest("several prompts", completions, map[string]any{"prompt": []string{base + "x", w.text(100)}})
		w.addRequest("several prompts", completions, map[string]any{"prompt": [][]uint32{ids[:300], ids[100:500]}})
		w.addRequest("logprobs", completions, map[string]any{"prompt": base + " logs", "logprobs": 1})
		w.addRequest("echo", completions, map[string]any{"prompt": base + " echo", "echo": true})
		w.addRequest("prompt_logprobs", completions, map[string]any{"prompt": base + " whole", "prompt_logprobs": 1})
		w.addRequest("echo with logprobs", completions, map[string]any{"prompt": base + " whole", "echo": true, "logprobs": 1})
		special := map[string]any{"prompt": base + "<|im_start|>user\nx<|im_end|>", "add_special_tokens": false}
		w.addRequest("special tokens in text", completions, special)
	}
	for _, n := range []int{320, 321, 319, 320, 321, 319} {
		w.addRequest("whole blocks and one token around", completions, map[string]any{"prompt": ids[:n]})
	}
	for range 2 {
		long := make([]uint32, blockSize*500+7)
		for i := range long {
			long[i] = uint32(11*i%140_000 + 50)
		}
		w.addRequest("long", completions, map[string]any{"prompt": long[:blockSize*128+7]})
		w.addRequest("long", completions, map[string]any{"prompt": long})
	}
}

// corners adds chats with fields that few clients send, twice, so that the second finds the first in a cache.
func (w *writer) corners() {
	start := []any{message("system", w.text(60)), message("user", w.text(100))}
	then := func(more ...any) []any { return append(append([]any(nil), start...), more...) }
	base := w.text(200)
	parts := []any{map[string]any{"type": "text", "text": w.text(50)}, map[string]any{"type": "text", "text": w.text(30)}}
	unicode := strings.Repeat("e\u0301 \u1e9b\u0323 👨‍👩‍👧 日本語 עברית\u00a0\u3000\t\r\n  ", 25)

	for range 2 {
		for kind, body := range map[string]map[string]any{
			"no thinking":          {"messages": start, "chat_template_kwargs": map[string]any{"enable_thinking": false}},
			"no generation prompt": {"messages": start, "add_generation_prompt": false},
			"continued": {"messages": then(message("assistant", "I think that ")), "add_generation_prompt": false,
				"continue_final_message": true},
			"parts": {"messages": []any{map[string]any{"role": "user", "content": parts}}},
			"reasoning": {"messages": then(map[string]any{"role": "assistant", "content": "ok then", "reasoning": "deep thought"},
				message("user", "next"))},
			"thoughts in text":   {"messages": then(message("assistant", "<think>\nhm\n</think>\n\nok"), message("user", "next"))},
			"special tokens":     {"messages": []any{message("user", "a<|im_end|>\n<|im_start|>system\nb "+base)}},
			"unicode":            {"messages": []any{message("user", unicode)}},
			"truncated":          {"messages": []any{message("user", base)}, "truncate_prompt_tokens": 100},
			"JSON":               {"messages": start, "response_format": map[string]any{"type": "json_object"}},
			"developer":          {"messages": []any{message("developer", base), message("user", "hi")}},
			"name":               {"messages": []any{map[string]any{"role": "user", "name": "bob", "content": base}}},
			"empty":              {"messages": []any{message("user", "")}},
			"documents":          {"messages": start, "documents": []any{map[string]any{"title": "t", "text": "x"}}},
			"required tool":      {"messages": start, "tools": tools(), "tool_choice": "required", "max_tokens": 8},
			"session":            {"messages": start, "session_id": "s1", "user": "u1", "priority": 0},
			"logprobs of a chat": {"messages": start, "logprobs": true, "top_logprobs": 2},
		} {
			w.addRequest(kind, chats, body)
		}
	}
}

// salts adds chats and messages whose caches must stay apart.
func (w *writer) salts() {
	text := "salted " + w.text(300)
	for _, salt := range []string{"A", "B", "A", "B", "C", "A", "", "A", "", "B"} {
		body := map[string]any{"messages": []any{message("user", text)}}
		if salt != "" {
			body["cache_salt"] = salt
		}
		w.addRequest("salt", chats, body)
		w.addRequest("salt of a message", messages, body)
	}
}

// refusals adds requests that engines refuse, each followed by one that must not be expected to find anything of it.
func (w *writer) refusals() {
	for range 4 {
		text := w.text(300)
		w.addRequest("refused", chats, map[string]any{"messages": []any{message("user", text)}, "n": 2})
		w.addRequest("after a refusal", chats, map[string]any{"messages": []any{message("user", text)}})
	}
	w.addRequest("refused", completions, map[string]any{"prompt": ""})
}

// requests returns the requests of the truth run.
func (w *writer) requests() []request {
	w.dialogues(16, 6)
	w.agents(7, 15)
	w.agentAPIs(8, 12)
	w.completions()
	w.corners()
	w.salts()
	w.refusals()
	return w.list
}
