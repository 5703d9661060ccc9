package prompt_test

import (
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// TestOnlyVLLMRefuses prepares requests that vLLM refuses because of their form. With the rules of any engine
// they are accepted, and those that cannot be rendered are left unread.
func TestOnlyVLLMRefuses(t *testing.T) {
	strict := sim(t)
	loose := strict.WithRules(prompt.RulesOf("llamacpp"))
	chat := `{"model":"m","messages":[{"role":"user","content":"x"}],`
	for _, c := range []struct {
		ep     prompt.Endpoint
		body   string
		unread bool
	}{
		{prompt.Chat, chat + `"max_tokens":-1}`, false},
		{prompt.Chat, chat + `"max_tokens":200000}`, false},
		{prompt.Chat, chat + `"tool_choice":"auto"}`, false},
		{prompt.Chat, chat + `"reasoning_effort":"extreme"}`, false},
		{prompt.Chat, chat + `"truncate_prompt_tokens":200000}`, true},
		{prompt.Chat, chat + `"tools":[{"name":"f"}]}`, true},
		{prompt.Chat, chat + `"documents":[{"title":1}]}`, true},
		{prompt.Chat, chat + `"chat_template":"{{ 1 }}"}`, true},
		{prompt.Chat, chat + `"chat_template_kwargs":{"messages":[]}}`, true},
		{prompt.Chat, `{"model":"m","messages":[{"role":"user","content":null}]}`, false},
		{prompt.Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"hologram"}]}]}`, true},
		{prompt.Chat, `{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]}]}`, true},
		{prompt.Completions, `{"model":"m","prompt":"x","max_tokens":0}`, false},
		{prompt.Completions, `{"model":"m","prompt":[12,"x",34]}`, true},
		{prompt.Embeddings, `{"model":"m","input":[{"text":"x"}]}`, true},
	} {
		req := parse(t, c.ep, c.body)
		var p prompt.Prompt
		if err := strict.Prepare(req, &p); err == nil {
			t.Errorf("%s: accepted by the rules of vLLM", c.body)
		}
		if err := loose.Prepare(req, &p); err != nil || (p.Unread != openai.WhyRead) != c.unread || (len(p.Tokens) == 0) != c.unread {
			t.Errorf("%s: error %v, %d tokens, unread %v, want %v", c.body, err, len(p.Tokens), p.Unread, c.unread)
		}
	}
}

// TestNoEngineCanServe checks that every engine's pool refuses what cannot be a prompt.
func TestNoEngineCanServe(t *testing.T) {
	loose := sim(t).WithRules(prompt.AnyEngine)
	var p prompt.Prompt
	for _, body := range []string{`{"model":"m","prompt":""}`, `{"model":"m","prompt":[9999999]}`} {
		if err := loose.Prepare(parse(t, prompt.Completions, body), &p); err == nil {
			t.Errorf("%s: accepted", body)
		}
	}
}

// TestToolsOfEngines: SGLang keeps the client's order of members and adds defer_loading, and llama.cpp is read if a tool has all members
// that it shows, and no other. The texts were observed with SGLang 0.5.23's conversion.
func TestToolsOfEngines(t *testing.T) {
	m, err := sim(t).WithTemplate(`{{ tools | tojson }}`)
	if err != nil {
		t.Fatal(err)
	}
	for tools, want := range map[string]struct {
		sglang string
		llama  bool
	}{
		`[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","b":1,"a":2}}}]`: {
			`[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "b": 1, "a": 2}}, ` +
				`"defer_loading": null}]`, true},
		`[{"function":{"parameters":{},"y":1,"strict":true,"name":"f"},"type":"function"},` +
			`{"type":"function","defer_loading":true,"function":{"name":"g","strict":null}}]`: {
			`[{"type": "function", "function": {"parameters": {}, "strict": true, "name": "f", "description": null}, "defer_loading": null}, ` +
				`{"type": "function", "function": {"name": "g", "description": null, "parameters": null, "defer_loading": true}, ` +
				`"defer_loading": true}]`, false},
		`[{"type":"function","function":{"defer_loading":false,"name":"f","description":null}}]`: {
			`[{"type": "function", "function": {"defer_loading": false, "name": "f", "description": null, "parameters": null}, ` +
				`"defer_loading": null}]`, false},
	} {
		req := parse(t, prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":`+tools+`}`)
		var p prompt.Prompt
		if err := m.WithRules(prompt.RulesOf("sglang")).Prepare(req, &p); err != nil || string(p.Text) != want.sglang {
			t.Errorf("SGLang: %v\n%s, want\n%s", err, p.Text, want.sglang)
		}
		if err := m.WithRules(prompt.RulesOf("llamacpp")).Prepare(req, &p); err != nil || (p.Unread == openai.WhyRead) != want.llama {
			t.Errorf("llama.cpp: %v, unread %q: %s", err, p.Unread, tools)
		}
	}
}

// TestMessagesOfSGLang: SGLang leaves texts as they are for a template that reads parts, and shows calls with an index and reasoning before
// them. The texts were observed with SGLang 0.5.23's conversion.
func TestMessagesOfSGLang(t *testing.T) {
	m, err := sim(t).WithTemplate(`{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}{{ messages | tojson }}{{ none_given is defined }}`)
	if err != nil {
		t.Fatal(err)
	}
	const messages = `[{"role":"system","content":"a"},{"role":"user","content":"u"},{"role":"assistant","content":null,"reasoning_content":"hm",` +
		`"tool_calls":[{"id":"1","type":"function","x":1,"function":{"name":"f","arguments":"{\"b\":1,\"a\":2}","y":1}}]},` +
		`{"role":"tool","tool_call_id":"1","content":"r"},{"role":"assistant","content":"ok","tool_calls":[]},{"role":"user","content":"v"}]`
	const want = `[{"role": "system", "content": "a"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "", ` +
		`"reasoning_content": "hm", "tool_calls": [{"id": "1", "index": null, "type": "function", "function": {"name": "f", ` +
		`"arguments": {"b": 1, "a": 2}}}]}, {"role": "tool", "content": "r", "tool_call_id": "1"}, {"role": "assistant", "content": "ok", ` +
		`"tool_calls": []}, {"role": "user", "content": "v"}]True`

	req := parse(t, prompt.Chat, `{"model":"m","chat_template_kwargs":{"none_given":null},"messages":`+messages+`}`)
	var p prompt.Prompt
	if err := m.WithRules(prompt.RulesOf("sglang")).Prepare(req, &p); err != nil || string(p.Text) != want {
		t.Errorf("%v, unread %q\n%s, want\n%s", err, p.Unread, p.Text, want)
	}
}

// TestChatsOfEngines: chats that engines render in another way than vLLM are not read for them. Both were compared: llama.cpp's server by
// its counts of tokens, and SGLang 0.5.23's conversion by its text.
func TestChatsOfEngines(t *testing.T) {
	const (
		user  = `{"role":"user","content":"x"}`
		tools = `,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{}}}]`
	)
	for _, c := range []struct {
		messages, more string
		llama, sglang  bool
	}{
		{user, "", true, true},
		{`{"role":"system","content":"a"},` + user + `,{"role":"assistant","content":"b"},{"role":"system","content":"c"},` + user, "", true, true},
		{user, tools + `,"tool_choice":"required"`, true, true},
		{user, tools + `,"tool_choice":"none"`, true, false},
		{user, tools + `,"tool_choice":{"type":"function","function":{"name":"f"}}`, true, false},
		{user + `,{"role":"assistant","content":"b"}`, "", false, false},
		{`{"role":"system","content":"x-anthropic-billing-header: a\nb"},` + user, "", false, false},
		{`{"role":"user","content":[{"type":"text","text":"a"}]}`, "", true, false}, // the template reads parts
		{`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "", true, false},
		{`{"role":"developer","content":"a"},` + user, "", true, false},
		{`{"role":"user","content":"a","name":"n"}`, "", true, false},
		{user, `,"reasoning_effort":"low"`, true, false},
		{user, `,"add_generation_prompt":false`, true, false},
		{user, `,"truncate_prompt_tokens":5`, false, false},
		{user, `,"documents":[{"title":"t"}]`, false, false},
		{user, `,"add_special_tokens":true`, false, false},
		{`{"role":"user","content":[]},` + user, "", true, false},
		{user + `,{"role":"assistant","content":"b","reasoning_content":"c"},` + user, "", true, true},
		{user + `,{"role":"assistant","content":"b","reasoning":"c"},` + user, "", true, false},
		{user + `,{"role":"user","content":"x","task":"t"}`, "", true, false},
	} {
		req := parse(t, prompt.Chat, `{"model":"m","messages":[`+c.messages+`]`+c.more+`}`)
		for engine, read := range map[string]bool{"llamacpp": c.llama, "sglang": c.sglang, "vllm": true} {
			var p prompt.Prompt
			if err := sim(t).WithRules(prompt.RulesOf(engine)).Prepare(req, &p); err != nil || (p.Unread == openai.WhyRead) != read {
				t.Errorf("%s: %v, unread %q: %s%s", engine, err, p.Unread, c.messages, c.more)
			}
		}
	}
}
