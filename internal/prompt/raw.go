package prompt

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// WithTemplate returns a copy of m that renders chats with another template.
func (m *Model) WithTemplate(source string) (*Model, error) {
	t, err := chattemplate.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("parse chat template: %w", err)
	}
	other := *m
	other.template, other.withTools = t, t
	other.inspect()
	return &other, nil
}

// RenderRaw renders the model's chat template and appends the text to dst. context is a JSON object with
// the variables of the template, as apply_chat_template passes them. The model's special tokens stand in
// for the tokens that the context does not define. The error is the template's, or names the mistake in
// the context. It is ErrStopped where done was closed; a nil done never ends the render.
func (m *Model) RenderRaw(dst, context []byte, now time.Time, done <-chan struct{}) ([]byte, error) {
	v, err := chattemplate.FromJSON(context)
	if err != nil {
		return dst, openai.Invalid("", "invalid_json", "The context is not valid JSON: %v.", err)
	}
	if v.Kind() != chattemplate.DictKind {
		return dst, openai.Invalid("", "invalid_type", "The context must be a JSON object of template variables.")
	}

	vars := v.Dict()
	for _, t := range m.tokens {
		if _, set := vars.Get(t.name); !set {
			vars.Set(t.name, chattemplate.StringValue(t.text))
		}
	}

	t := m.template
	if tools, ok := vars.Get("tools"); ok && tools.Kind() != chattemplate.None {
		t = m.withTools
	}
	if t == nil {
		return dst, openai.Invalid("", "invalid_value", "This model has no chat template. Name one with --template.")
	}

	out, err := t.Render(dst, chattemplate.Context{Vars: vars, Now: now, Done: done}, chattemplate.Limits{})
	if errors.Is(err, chattemplate.ErrStopped) {
		return dst, ErrStopped
	}
	if err != nil {
		return dst, openai.Invalid("messages", "template_error", "%v", err)
	}
	return out, nil
}
