package main

import (
	"fmt"
	"slices"
	"strings"
)

// kinds are JSON values of each kind, by the word that errors use for the kind.
var kinds = []struct{ kind, value string }{
	{"boolean", `true`},
	{"number", `7`},
	{"decimal", `1.5`},
	{"string", `"low"`},
	{"array", `[]`},
	{"object", `{}`},
}

// member is a member of a request with the kinds that it may have.
type member struct {
	name string
	ok   []string
}

// chatMembers are the members of a chat that the router reads. Engines check the others.
var chatMembers = []member{
	{"model", []string{"string"}},
	{"stream", []string{"boolean"}},
	{"stream_options", []string{"object"}},
	{"max_tokens", []string{"number"}},
	{"max_completion_tokens", []string{"number"}},
	{"n", []string{"number"}},
	{"seed", []string{"number"}},
	{"user", []string{"string"}},
	{"cache_salt", []string{"string"}},
	{"priority", []string{"number"}},
	{"reasoning_effort", []string{"string"}},
	{"add_generation_prompt", []string{"boolean"}},
	{"truncate_prompt_tokens", []string{"number"}},
	{"tools", []string{"array"}},
	{"documents", []string{"array"}},
	{"chat_template_kwargs", []string{"object"}},
	{"nvext", []string{"object"}},
	{"messages", []string{"array"}},
}

// chatWith returns a chat with one more member, which comes last and therefore counts.
func chatWith(name, value string) string {
	return fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":1,%q:%s}`, name, value)
}

// chatCases: a member of the wrong kind is refused by its name. The engine checks members on which neither the
// prompt nor the route depends.
func chatCases() []testCase {
	var list []testCase
	for _, m := range chatMembers {
		for _, k := range kinds {
			if !slices.Contains(m.ok, k.kind) {
				list = append(list, post(m.name+" is a "+k.kind, chatPath, chatWith(m.name, k.value), 400, m.name))
			}
		}
	}

	text := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	return append(list,
		post("a model that is not there", chatPath, chatWith("model", `"nobody"`), 404, "model"),
		post("a model with a long name", chatPath, chatWith("model", text(100_000)), 404, "model"),
		post("max_tokens is negative", chatPath, chatWith("max_tokens", `-5`), 400, "max_tokens"),
		post("max_tokens is huge", chatPath, chatWith("max_tokens", `1e300`), 400, "max_tokens"),
		post("n is 0", chatPath, chatWith("n", `0`), 400, "n"),
		post("n is huge", chatPath, chatWith("n", `99999999999`), 400, "n"),
		post("no messages", chatPath, chatWith("messages", `[]`), 400, "messages"),
		post("a template of the client's", chatPath, chatWith("chat_template", `"{{ 1 }}"`), 400, "chat_template"),
		post("an unknown effort", chatPath, chatWith("reasoning_effort", text(50_000)), 400, "reasoning_effort"),
		post("truncation to nothing", chatPath, chatWith("truncate_prompt_tokens", `0`), 400, "truncate_prompt_tokens"),
		post("truncation above the context", chatPath, chatWith("truncate_prompt_tokens", `2000000`), 400, "truncate_prompt_tokens"),
		post("a choice of tools without tools", chatPath, chatWith("tool_choice", `"auto"`), 400, "tool_choice"),
		post("a long user", chatPath, chatWith("user", text(1<<20)), 200, ""),
		post("a long salt", chatPath, chatWith("cache_salt", text(1<<20)), 200, ""),
		post("temperature is a string", chatPath, chatWith("temperature", `"hot"`), 200, "*"),
		post("a repeated member", chatPath, chatWith("max_tokens", `1`), 200, ""),
	)
}

// messageCases: messages and their parts.
func messageCases() []testCase {
	chat := func(message string) string {
		return fmt.Sprintf(`{"model":"sim","max_tokens":1,"messages":[%s]}`, message)
	}
	members := []member{
		{"role", []string{"string"}},
		{"content", []string{"string", "array"}},
		{"name", []string{"string"}},
		{"tool_call_id", []string{"string"}},
		{"tool_calls", []string{"array"}},
		{"reasoning", []string{"string"}},
		{"reasoning_content", []string{"string"}},
	}
	var list []testCase
	for _, m := range members {
		for _, k := range kinds {
			if !slices.Contains(m.ok, k.kind) {
				body := chat(fmt.Sprintf(`{"role":"assistant","content":"hi",%q:%s}`, m.name, k.value))
				list = append(list, post(m.name+" is a "+k.kind, chatPath, body, 400, "messages[0]."+m.name))
			}
		}
	}
	for _, k := range kinds {
		if k.kind != "object" {
			list = append(list, post("a message is a "+k.kind, chatPath, chat(k.value), 400, "messages[0]"))
		}
	}

	part := func(p string) string { return chat(`{"role":"user","content":[` + p + `]}`) }
	for _, k := range kinds {
		if k.kind != "string" && k.kind != "object" {
			list = append(list, post("a part is a "+k.kind, chatPath, part(k.value), 400, "messages[0].content[0]"))
		}
		if k.kind != "string" {
			list = append(list,
				post("a part's type is a "+k.kind, chatPath, part(`{"type":`+k.value+`,"text":"x"}`), 400, "messages[0].content[0].type"),
				post("a part's text is a "+k.kind, chatPath, part(`{"type":"text","text":`+k.value+`}`), 400,
					"messages[0].content[0].text"))
		}
	}

	call := func(c string) string {
		return chat(`{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[` + c + `]}`)
	}
	return append(list,
		post("no role", chatPath, chat(`{"content":"hi"}`), 400, "messages[0].role"),
		post("no content of a user", chatPath, chat(`{"role":"user","content":null}`), 400, "messages[0].content"),
		post("an unknown role", chatPath, chat(`{"role":"wizard","content":"hi"}`), 200, "*"),
		post("a part without a type", chatPath, part(`{"text":"x"}`), 400, "messages[0].content[0].type"),
		post("a text part without a text", chatPath, part(`{"type":"text"}`), 400, "messages[0].content[0].text"),
		post("a part of an unknown type", chatPath, part(`{"type":"smell","smell":"rose"}`), 400, "*"),
		post("a call that is a number", chatPath, call(`1`), 400, "messages[1].tool_calls[0]"),
		post("a call without a function", chatPath, call(`{"id":"1","type":"function"}`), 400, "messages[1].tool_calls"),
		post("a call of another type", chatPath, call(`{"id":"1","type":"spell","function":{"name":"f","arguments":"{}"}}`), 400,
			"messages[1].tool_calls"),
		post("arguments that are no JSON", chatPath, call(`{"id":"1","type":"function","function":{"name":"f","arguments":"{"}}`), 200, ""),
		postLarge("300,000 empty messages", chatPath, func() []byte {
			return []byte(chat(strings.TrimSuffix(strings.Repeat(`{"role":"user","content":""},`, 300_000), ",")))
		}, 400, "messages"),
		postLarge("300,000 empty parts", chatPath, func() []byte {
			return []byte(part(strings.TrimSuffix(strings.Repeat(`{"type":"text","text":""},`, 300_000), ",")))
		}, 400, "*"),
		postLarge("300,000 parts of bare strings", chatPath, func() []byte {
			return []byte(part(strings.TrimSuffix(strings.Repeat(`"",`, 300_000), ",")))
		}, 400, "*"),
		postLarge("an image of 15 MB", chatPath, func() []byte {
			image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 15<<20) + `"}}`
			return []byte(part(image + `,{"type":"text","text":"what is it?"}`))
		}, 400, "messages"), // the model reads text only
	)
}

// promptCases: prompts of completions and inputs of embeddings.
func promptCases() []testCase {
	var list []testCase
	shape := func(path, key, value string) string {
		return fmt.Sprintf(`{"model":"sim","max_tokens":1,%q:%s}`, key, value)
	}
	for _, e := range []struct{ path, key string }{{completionsPath, "prompt"}, {embeddingsPath, "input"}} {
		bad := []struct{ name, value, param string }{
			{"a boolean", `true`, e.key},
			{"a number", `5`, e.key},
			{"an empty array", `[]`, e.key},
			{"an array of booleans", `[true]`, e.key},
			{"strings and numbers", `["a",1]`, e.key},
			{"numbers and strings", `[1,"a"]`, e.key},
			{"arrays and strings", `[[1],"a"]`, e.key},
			{"an array in an array in an array", `[[[1]]]`, e.key},
			{"an empty array of tokens", `[[]]`, e.key + "[0]"},
			{"a negative token", `[-1]`, e.key},
			{"a token that is a decimal", `[1.5]`, e.key},
			{"a token above 2^31", `[4294967296]`, e.key},
			{"a token above 2^63", `[99999999999999999999999]`, e.key},
			{"a token that is null", `[1,null]`, e.key},
			{"null", `null`, e.key},
		}
		for _, b := range bad {
			list = append(list, post(e.key+" is "+b.name, e.path, shape(e.path, e.key, b.value), 400, b.param))
		}
		list = append(list,
			post("no "+e.key, e.path, `{"model":"sim"}`, 400, e.key),
			post("no model for "+e.key, e.path, fmt.Sprintf(`{%q:"hi"}`, e.key), 400, "model"),
			post("two strings as "+e.key, e.path, shape(e.path, e.key, `["a","b"]`), 200, ""),
			postLarge("5,000 strings as "+e.key, e.path, func() []byte {
				return []byte(shape(e.path, e.key, "["+strings.TrimSuffix(strings.Repeat(`"a",`, 5000), ",")+"]"))
			}, 400, e.key),
			postLarge("2,500,000 tokens as "+e.key, e.path, func() []byte {
				return []byte(shape(e.path, e.key, "["+strings.TrimSuffix(strings.Repeat("1,", 2_500_000), ",")+"]"))
			}, 400, "*"),
		)
	}

	members := []member{
		{"stream", []string{"boolean"}}, {"max_tokens", []string{"number"}}, {"n", []string{"number"}},
		{"add_special_tokens", []string{"boolean"}}, {"truncate_prompt_tokens", []string{"number"}}, {"user", []string{"string"}},
	}
	for _, m := range members {
		for _, k := range kinds {
			if !slices.Contains(m.ok, k.kind) {
				body := fmt.Sprintf(`{"model":"sim","prompt":"hi",%q:%s}`, m.name, k.value)
				list = append(list, post("a completion's "+m.name+" is a "+k.kind, completionsPath, body, 400, m.name))
			}
		}
	}

	of := func(size int, pattern string) func() []byte {
		return func() []byte {
			return []byte(shape(completionsPath, "prompt", `"`+strings.Repeat(pattern, size/len(pattern))+`"`))
		}
	}
	const large = 15 << 20
	return append(list,
		post("the largest max_tokens", completionsPath, `{"model":"sim","prompt":"hi","max_tokens":2147483647}`, 400, "max_tokens"),
		post("a token out of the vocabulary", completionsPath, `{"model":"sim","prompt":[2147483647]}`, 400, "prompt"),
		post("an empty prompt", completionsPath, `{"model":"sim","prompt":"","max_tokens":1}`, 400, "prompt"),
		postLarge("15 MB of words", completionsPath, of(large, "lorem ipsum "), 400, "input_tokens"),
		postLarge("15 MB of one letter", completionsPath, of(large, "a"), 400, "input_tokens"),
		postLarge("15 MB of spaces", completionsPath, of(large, " "), 400, "input_tokens"),
		postLarge("15 MB of line ends", completionsPath, of(large, `\n`), 400, "input_tokens"),
		postLarge("15 MB of digits", completionsPath, of(large, "7"), 400, "input_tokens"),
		postLarge("15 MB of emoji", completionsPath, of(large, "🦀"), 400, "input_tokens"),
		postLarge("15 MB of one combining mark", completionsPath, of(large, "\u0301"), 400, "input_tokens"),
		postLarge("1 MB of one letter", completionsPath, of(1<<20, "a"), 400, "input_tokens"),
	)
}
