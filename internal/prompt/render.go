package prompt

import (
	"bytes"
	"strings"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// render renders a chat into dst.Text.
func (m *Model) render(req *Request, dst *Prompt) error {
	t := m.template
	if req.Tools != nil {
		t = m.withTools
	}
	if t == nil {
		return openai.Invalid("messages", "invalid_value", "This model has no chat template. Use /v1/completions, or add chat_template.jinja to the model's folder.")
	}
	vars, err := m.variables(req, dst, t.WantsParts())
	if err != nil {
		return err
	}
	text, err := t.Render(dst.Text, chattemplate.Context{Vars: vars, Now: dst.Now}, chattemplate.Limits{})
	if err != nil {
		return openai.Invalid("messages", "invalid_value", "The model's chat template refuses this conversation: %v", err)
	}
	dst.Text = text
	if req.ContinueFinalMessage {
		return dst.cutAtTag()
	}
	return nil
}

// continueTag is put behind the final message that is to be continued; what the template
// writes from there on is cut off.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// cutAtTag ends the text where the tag begins, and before the white space there if the
// template trims what follows the message.
func (p *Prompt) cutAtTag() error {
	at := bytes.LastIndex(p.Text, []byte(strings.TrimSpace(continueTag)))
	if at < 0 {
		return openai.Invalid("continue_final_message", "invalid_value",
			"continue_final_message is set, but the final message does not appear in the chat after applying the chat template. Set it to false.")
	}
	if bytes.HasPrefix(p.Text[at:], []byte(continueTag)) {
		p.Text = p.Text[:at]
	} else {
		p.Text = bytes.TrimRight(p.Text[:at], " \t\n\v\f\r")
	}
	return nil
}

// variables are what the template is rendered with, as transformers passes them.
func (m *Model) variables(req *Request, dst *Prompt, parts bool) (*chattemplate.Dict, error) {
	vars := chattemplate.NewDict(len(m.tokens) + 8)
	for _, t := range m.tokens {
		vars.Set(t.name, chattemplate.StringValue(t.text))
	}
	vars.Set("tools", chattemplate.NoneValue())
	vars.Set("documents", chattemplate.NoneValue())
	if err := addArgs(vars, req.TemplateArgs); err != nil {
		return nil, err
	}
	if req.ReasoningEffort != "" {
		vars.Set("reasoning_effort", chattemplate.StringValue(req.ReasoningEffort))
	}
	if req.Documents != nil {
		v, err := decode("documents", req.Documents)
		if err != nil {
			return nil, err
		}
		vars.Set("documents", v)
	}
	if req.Tools != nil {
		v, err := tools(req.Tools)
		if err != nil {
			return nil, err
		}
		vars.Set("tools", v)
	}
	vars.Set("add_generation_prompt", chattemplate.BoolValue(req.AddGenerationPrompt))
	vars.Set("continue_final_message", chattemplate.BoolValue(req.ContinueFinalMessage))
	messages, err := dst.messages(req, parts)
	if err != nil {
		return nil, err
	}
	vars.Set("messages", messages)
	return vars, nil
}

// addArgs adds chat_template_kwargs. They may rename special tokens, but not replace what the
// request itself says.
func addArgs(vars *chattemplate.Dict, raw []byte) error {
	if raw == nil {
		return nil
	}
	args, err := decode("chat_template_kwargs", raw)
	if err != nil {
		return err
	}
	var bad error
	args.Dict().Each(func(key string, v chattemplate.Value) {
		switch key {
		case "messages", "tools", "conversation", "chat_template", "tokenize":
			bad = openai.Invalid("chat_template_kwargs", "invalid_value", "Found unexpected chat template kwargs from request: '%s'. Remove it.", key)
		default:
			vars.Set(key, v)
		}
	})
	return bad
}

// decode reads raw JSON that the request parser has seen to be valid.
func decode(param string, raw []byte) (chattemplate.Value, error) {
	v, err := chattemplate.FromJSON(raw)
	if err != nil {
		return v, openai.Invalid(param, "invalid_json", "Invalid '%s': %v.", param, err)
	}
	return v, nil
}
