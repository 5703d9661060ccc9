package prompt_test

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/test/race"
)

// TestPreparedLikeVLLM checks the variables that templates receive for unusual requests. Each expected text
// was observed with vLLM 0.32.0; `make oracle-vllm` compares with a running server.
func TestPreparedLikeVLLM(t *testing.T) {
	race.Skip(t)
	const (
		text  = `{{ messages | tojson }}`
		parts = `{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}` + text
		tools = `{{ tools | tojson }}`
		call  = `{"messages":[{"role":"assistant","tool_calls":[{"type":"function","index":0,"id":"1","function":{"x":1,"name":"f","arguments":`
	)
	called := func(args string) string {
		return `[{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": ` + args + `, "name": "f", "x": 1}, "type": "function", "index": 0}]}]`
	}
	for _, c := range []struct{ name, template, request, want string }{
		{"calls are ordered", text, call + `"{\"b\":1,\"a\":2}"}}]}]}`, called(`{"b": 1, "a": 2}`)},
		{"arguments that are not JSON", text, call + `"{\"a"}}]}]}`, called(`{}`)},
		{"arguments that are not an object", text, call + `"[1]"}}]}]}`, called(`{}`)},
		{"arguments in Python's extended JSON", text, call + `"{\"a\":NaN,\"b\":-Infinity}"}}]}]}`, called(`{"a": NaN, "b": -Infinity}`)},
		{"an empty name", text, `{"messages":[{"role":"user","content":"x","name":""}]}`, `[{"role": "user", "content": "x", "name": ""}]`},
		{"a task", text, `{"messages":[{"role":"user","content":"x","task":"t"}]}`, `[{"role": "user", "content": "x", "task": "t"}]`},
		{"a null tool_call_id", text, `{"messages":[{"role":"tool","content":"x","tool_call_id":null}]}`, `[{"role": "tool", "content": "x", "tool_call_id": null}]`},
		{"an empty reasoning replaces reasoning_content", text, `{"messages":[{"role":"assistant","content":"x","reasoning_content":"a","reasoning":""}]}`,
			`[{"role": "assistant", "content": "x", "reasoning": "", "reasoning_content": ""}]`},
		{"an empty part adds no line", text, `{"messages":[{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":"x"}]}]}`, `[{"role": "user", "content": "x"}]`},
		{"an empty part of a tool message adds a line", parts, `{"messages":[{"role":"tool","content":[{"type":"text","text":""},{"type":"text","text":"x"}]}]}`, `[{"role": "tool", "content": "\nx"}]`},
		{"parts keep unknown fields", parts, `{"messages":[{"role":"user","content":[{"id":1,"type":"text","name":"n","text":"x","cache_control":{"b":1,"a":2}}]}]}`,
			`[{"role": "user", "content": [{"type": "text", "text": "x", "id": 1, "cache_control": {"b": 1, "a": 2}}]}]`},
		{"a part that names a tool", parts, `{"messages":[{"role":"tool","content":[{"type":"tool_reference","name":"f"}]}]}`,
			`[{"role": "tool", "content": [{"type": "tool_reference", "name": "f"}]}]`},
		{"a developer message for a template without that role", text, `{"messages":[{"role":"system","content":"a"},{"role":"user","content":"u"},{"role":"developer","content":"b"}]}`,
			`[{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "u"}]`},
		{"a developer message for a template with that role", text + `{# 'developer' #}`, `{"messages":[{"role":"developer","content":"b"}]}`, `[{"role": "developer", "content": "b", "tools": null}]`},
		{"a billing line", text, `{"messages":[{"role":"system","content":"x-anthropic-billing-header: 1\nb"}]}`, `[{"role": "system", "content": "b"}]`},
		{"tools lose unknown fields", tools, `{"messages":[{"role":"user","content":"x"}],"tools":[{"cache":1,"function":{"y":1,"strict":null,"name":"f"},"type":"function"},
			{"type":"function","defer_loading":true,"function":{"name":"g","strict":true}}]}`,
			`[{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}, ` +
				`{"type": "function", "function": {"name": "g", "description": null, "parameters": null, "strict": true, "defer_loading": true}, "defer_loading": true}]`},
		{"reasoning_effort sets enable_thinking", `{{ enable_thinking }} {{ reasoning_effort }}`, `{"messages":[{"role":"user","content":"x"}],"reasoning_effort":"none"}`, "False none"},
		{"an explicit enable_thinking has precedence", `{{ enable_thinking }}`, `{"messages":[{"role":"user","content":"x"}],"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true}}`, "True"},
		{"arguments that are not passed to templates", `{{ padding is defined }}{{ a is defined }}{{ b is defined }}{{ continue_final_message is defined }}`,
			`{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"padding":1,"a":null,"b":"auto"}}`, "FalseFalseFalseFalse"},
	} {
		m, err := sim(t).WithTemplate(c.template)
		if err != nil {
			t.Fatal(err)
		}
		var p prompt.Prompt
		if err := m.Prepare(parse(t, prompt.Chat, `{"model":"m",`+c.request[1:]), &p); err != nil || string(p.Text) != c.want {
			t.Errorf("%s: %v\n%s, want\n%s", c.name, err, p.Text, c.want)
		}
	}
}

// TestRefusedLikeVLLM checks that Parse or Prepare refuses what vLLM 0.32.0 refuses, and accepts a few requests
// that look similar.
func TestRefusedLikeVLLM(t *testing.T) {
	m, err := sim(t).WithTemplate(`{{ messages[0].content }}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		`{"messages":[{"role":"user","content":null}]}`, `{"messages":[{"role":"user","content":"x","name":null}]}`,
		`{"messages":[{"role":"user","content":["x"]}]}`, `{"messages":[{"role":"user","content":[{"type":"input_text","text":"x"}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x","uuid":"u"}]}]}`, `{"messages":[{"role":"user","content":[{"type":"refusal","text":"x"}]}]}`,
		`{"messages":[{"role":"user","content":"x"}],"tools":[]}`, `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"x","function":{"name":"f"}}]}`,
		`{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"parameters":{}}}]}`,
		`{"messages":[{"role":"user","content":"x"}],"tool_choice":"auto"}`, `{"messages":[{"role":"user","content":"x"}],"reasoning_effort":"extreme"}`,
		`{"messages":[{"role":"user","content":"x"}],"documents":[{"title":1}]}`,
		`{"messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{}}}]}]}`,
		`{"messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"1","type":"custom","custom":{}}]}]}`,
		`{"messages":[{"role":"user","content":"x"}],"max_tokens":131073}`, `{"messages":[{"role":"user","content":"x"}],"truncate_prompt_tokens":131073}`,
		`{"messages":[{"role":"user","content":"` + strings.Repeat("the ", 131072) + `"}]}`,
	} {
		var p prompt.Prompt
		req, err := openai.Parse(prompt.Chat, []byte(`{"model":"m",`+body[1:]), openai.Limits{})
		if err == nil {
			err = m.Prepare(req, &p)
		}
		if err == nil {
			t.Errorf("%.90s was accepted, want an error", body)
		}
	}
	var p prompt.Prompt
	for _, body := range []string{
		`{"messages":[{"role":"critic","content":["x"]}]}`, `{"messages":[{"role":"user","content":["x",{"type":"text","text":"y"}]}]}`,
		`{"messages":[{"role":"user","content":"x"}],"max_tokens":131072}`, `{"messages":[{"role":"user","content":"x"}],"tool_choice":"none"}`,
	} {
		if err := m.Prepare(parse(t, prompt.Chat, `{"model":"m",`+body[1:]), &p); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}
