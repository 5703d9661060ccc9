package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestParseChat(t *testing.T) {
	body := `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":7,"n":2,"seed":-3,
	"messages":[{"role":"system","content":"a\u00e9\ud83d\ude00\n\"b\""},
	 {"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:x"}}]},
	 {"role":"assistant","content":null,"reasoning_content":"why","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
	 {"role":"tool","tool_call_id":"1","content":"42"}],
	"tools":[{"type":"function","function":{"name":"f"}}],"unknown":{"x":[1,2,{"y":null}]},"chat_template_kwargs":{"enable_thinking":false},"model":"m2"}`
	r, err := Parse(Chat, []byte(body), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Model != "m2" || !r.Stream || !r.IncludeUsage || r.MaxTokens != 7 || r.N != 2 || r.Seed != -3 || !r.HasSeed || !r.AddGenerationPrompt {
		t.Errorf("%+v", r)
	}
	m := r.Messages
	if len(m) != 4 || m[0].Content != "aé😀\n\"b\"" || m[1].Kind != PartsContent || m[1].Parts[0].Text != "hi" ||
		m[1].Parts[1].Type != ImagePart || m[1].Parts[1].Hash == [16]byte{} || m[2].Kind != NoContent || m[2].Reasoning != "why" ||
		!strings.HasPrefix(string(m[2].ToolCalls), `[{"id"`) || m[3].ToolCallID != "1" {
		t.Errorf("%+v", m)
	}
	if string(r.Tools) != `[{"type":"function","function":{"name":"f"}}]` || string(r.TemplateArgs) != `{"enable_thinking":false}` {
		t.Errorf("tools %s args %s", r.Tools, r.TemplateArgs)
	}
}

// TestPromptLogprobs: which requests need the probabilities of their own prompt.
func TestPromptLogprobs(t *testing.T) {
	for fields, want := range map[string]bool{
		`"prompt_logprobs":0`:                        true,
		`"prompt_logprobs":null`:                     false,
		`"echo":true,"logprobs":1`:                   true,
		`"logprobs":0,"echo":true`:                   true,
		`"echo":true`:                                false,
		`"logprobs":1`:                               false,
		`"echo":true,"logprobs":null`:                false,
		`"echo":false,"logprobs":2`:                  false,
		`"prompt_logprobs":1,"prompt_logprobs":null`: false,
	} {
		r, err := Parse(Completions, []byte(`{"model":"m","prompt":"x",`+fields+`}`), Limits{})
		if err != nil || r.PromptLogprobs != want {
			t.Errorf("%s: %v, %v", fields, r.PromptLogprobs, err)
		}
	}
	body := `{"model":"m","messages":[{"role":"user","content":"x"}],"echo":true,"logprobs":true,"top_logprobs":2}`
	if r, err := Parse(Chat, []byte(body), Limits{}); err != nil || !r.PromptLogprobs {
		t.Errorf("a chat: %v", err)
	}
}

func TestParsePrompts(t *testing.T) {
	for body, want := range map[string]int{
		`{"model":"m","prompt":"x"}`: 1, `{"model":"m","prompt":["x","y"]}`: 2,
		`{"model":"m","prompt":[1,2,3]}`: 1, `{"model":"m","prompt":[[1,2],[3]]}`: 2,
	} {
		r, err := Parse(Completions, []byte(body), Limits{})
		if err != nil || len(r.Prompts) != want {
			t.Errorf("%s: %v, %v", body, r, err)
		}
	}
}

// TestRefusals shows the errors that clients get. Each names the field at fault and the change to make.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		ep                Endpoint
		body, param, says string
	}{
		{Chat, ``, "", "not valid JSON: unexpected end at byte 0"},
		{Chat, `[]`, "", "must be a JSON object, but is an array"},
		{Chat, `{"model":"m","messages":[{"role":"user","content":"x"}]`, "", "expected ',' or '}' at byte 55"},
		{Chat, `{"model":"m",}`, "", "expected a string at byte 13"},
		{Chat, "{\"model\":\"\xff\"}", "", "invalid UTF-8 at byte 10"},
		{Chat, `{"model":"\ud800"}`, "", "lone surrogate"},
		{Chat, `{"messages":[{"role":"user","content":"x"}]}`, "model", "Missing required parameter: 'model'"},
		{Chat, `{"model":"m"}`, "messages", "Missing required parameter: 'messages'"},
		{Chat, `{"model":"m","messages":[]}`, "messages", "at least one message"},
		{Chat, `{"model":"m","messages":"hi"}`, "messages", "expected an array of objects, but got a string"},
		{Chat, `{"model":"m","messages":["hi"]}`, "messages[0]", "expected an object"},
		{Chat, `{"model":"m","messages":[{"content":"x"}]}`, "messages[0].role", "Use system"},
		{Chat, `{"model":"m","messages":[{"role":"user","content":5}]}`, "messages[0].content", "a string or an array of parts"},
		{Chat, `{"model":3}`, "model", "expected a string, but got a number"},
		{Chat, `{"model":"m","max_tokens":1.5}`, "max_tokens", "decimal"},
		{Chat, `{"model":"m","stream":"yes"}`, "stream", "expected a boolean, but got a string"},
		{Chat, `{"model":"m","x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, "", "too deeply"},
		{Completions, `{"model":"m"}`, "prompt", "Missing"},
		{Completions, `{"model":"m","prompt":[true]}`, "prompt", "but got a boolean"},
		{Completions, `{"model":"m","prompt":true}`, "prompt", "but got a boolean"},
		{Embeddings, `{"model":"m","messages":"hi"}`, "input", "Missing"},
		{Completions, `{"model":"m","prompt":[-1]}`, "prompt", "between 0"},
		{Embeddings, `{"model":"m","input":[]}`, "input", "empty array"},
	} {
		_, err := Parse(c.ep, []byte(c.body), Limits{})
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 || e.Type != InvalidRequest || e.Param != c.param || !strings.Contains(e.Message, c.says) {
			t.Errorf("%.60s: %+v, want param %q and %q", c.body, e, c.param, c.says)
			continue
		}
		var back struct{ Error map[string]any }
		if json.Unmarshal(e.JSON(), &back) != nil || back.Error["message"] != e.Message {
			t.Errorf("JSON of %+v is %s", e, e.JSON())
		}
	}
}
