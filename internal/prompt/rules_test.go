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
