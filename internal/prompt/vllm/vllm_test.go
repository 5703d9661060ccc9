package vllm_test

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/prompt/vllm"
)

// check parses a body and checks it.
func check(t *testing.T, ep openai.Endpoint, body string) (*openai.Request, *openai.Error) {
	t.Helper()
	req, err := openai.Parse(ep, []byte(body), openai.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return req, vllm.Check(req)
}

// TestRefused checks requests that vLLM refuses and other engines may accept. The error names the field at fault.
func TestRefused(t *testing.T) {
	chat := func(message string) string { return `{"model": "m", "messages": [` + message + `]}` }
	user := func(part string) string { return chat(`{"role": "user", "content": [` + part + `]}`) }
	with := func(members string) string {
		return `{"model": "m", "messages": [{"role": "user", "content": "x"}], ` + members + `}`
	}
	for _, c := range []struct {
		ep          openai.Endpoint
		body, param string
	}{
		{openai.Chat, chat(`{"role": "user", "content": null}`), "messages[0].content"},
		{openai.Chat, chat(`{"role": "assistant", "content": "x", "name": null}`), "messages[0].name"},
		{openai.Chat, user(`"x"`), "messages[0].content"},
		{openai.Chat, user(`{"type": "input_text", "text": "x"}`), "messages[0].content"},
		{openai.Chat, user(`{"type": "text", "text": "x", "uuid": "u"}`), "messages[0].content[0].uuid"},
		{openai.Chat, user(`{"type": "hologram", "hologram": "x"}`), "type"},
		{openai.Chat, with(`"chat_template": "x"`), "chat_template"},
		{openai.Chat, with(`"reasoning_effort": "enormous"`), "reasoning_effort"},
		{openai.Chat, with(`"truncate_prompt_tokens": 0`), "truncate_prompt_tokens"},
		{openai.Chat, with(`"tool_choice": "auto"`), "tool_choice"},
		{openai.Chat, with(`"continue_final_message": true`), "continue_final_message"},
		{openai.Chat, with(`"max_tokens": 0`), "max_tokens"},
		{openai.Chat, with(`"max_tokens": -1`), "max_tokens"},
		{openai.Chat, with(`"max_completion_tokens": 0`), "max_completion_tokens"},
		{openai.Completions, `{"model":"m","prompt":"x","max_tokens":0}`, "max_tokens"},
		{openai.Completions, `{"model":"m","prompt":[1,"x"]}`, "prompt"},
		{openai.Completions, `{"model":"m","prompt":[[1],["x"]]}`, "prompt"},
		{openai.Completions, `{"model":"m","prompt":{"prompt_string":"x"}}`, "prompt"},
		{openai.Embeddings, `{"model":"m","input":[{"text":"x"}]}`, "input"},
	} {
		if _, err := check(t, c.ep, c.body); err == nil || err.Param != c.param || err.Status != 400 {
			t.Errorf("%s: %+v, want an error about %s", c.body, err, c.param)
		}
	}
}

// TestAccepted checks requests that vLLM documents. Unread is set for those whose prompt is not text.
func TestAccepted(t *testing.T) {
	user := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"},`
	for _, c := range []struct {
		ep     openai.Endpoint
		body   string
		unread bool
	}{
		{openai.Completions, `{"model":"m","prompt":"x","max_tokens":0,"echo":true}`, false},
		{openai.Completions, `{"model":"m","prompt":"x","max_tokens":5,"temperature":NaN,"logit_bias":{"1":-Infinity}}`, false},
		{openai.Completions, `{"model":"m","prompt_embeds":"AAAA"}`, true},
		{openai.Completions, `{"model":"m","prompt":"x","prompt_embeds":["AAAA"]}`, true},
		{openai.Completions, `{"model":"m","prompt":"x","prompt_embeds":null}`, false},
		{openai.Embeddings, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, true},
		{openai.Embeddings, `{"model":"m","input":"x"}`, false},
		{openai.Chat, user + `{"type":"image_embeds","image_embeds":"AAAA"}]}]}`, true},
		{openai.Chat, user + `{"type":"audio_embeds","audio_embeds":"AAAA"}]}]}`, true},
		{openai.Chat, user + `{"type":"image_url","image_url":{"url":"x"},"uuid":"u"}]}]}`, false},
		{openai.Chat, `{"model":"m","messages":[{"role":"tool","content":"x","name":null},{"role":"assistant","content":null}]}`, false},
	} {
		if req, err := check(t, c.ep, c.body); err != nil || (req.Unread != openai.WhyRead) != c.unread {
			t.Errorf("%s: error %v, unread %v, want %v", c.body, err, req.Unread, c.unread)
		}
	}
}

// TestMessagesNameTheRule checks that a client can mend the request with the message alone.
func TestMessagesNameTheRule(t *testing.T) {
	_, err := check(t, openai.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":-1}`)
	if err == nil || !strings.Contains(err.Message, "'max_tokens': it must be at least 1") {
		t.Error(err)
	}
}
