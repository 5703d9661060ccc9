package prompt

import (
	"bytes"
	"strings"
	"unicode"

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
		return openai.Invalid("messages", "invalid_value", "This model has no chat template. Use /v1/completions, or add "+
			"chat_template.jinja to the model's folder.")
	}

	vars, err := m.variables(req, dst, t)
	if err != nil {
		return err
	}

	text, err := t.Render(dst.Text, chattemplate.Context{Vars: vars, Now: dst.Now}, chattemplate.Limits{})
	if err != nil {
		return openai.Invalid("messages", "invalid_value", "The model's chat template refuses this conversation: %v", err)
	}

	dst.Text = text
	if req.ContinueFinalMessage {
		if !t.ReadsContent() {
			return notContinued()
		}
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
	if at < 0 || !bytes.Contains(p.Text, []byte(strings.TrimFunc(p.final, isSpace))) {
		return notContinued()
	}

	if bytes.HasPrefix(p.Text[at:], []byte(continueTag)) {
		p.Text = p.Text[:at]
	} else {
		p.Text = bytes.TrimRightFunc(p.Text[:at], isSpace)
	}
	return nil
}

func notContinued() error {
	return openai.Invalid("continue_final_message", "invalid_value",
		"continue_final_message is set, but the final message does not appear in the chat after applying the chat template. Set it to "+
			"false.")
}

// isSpace is Python's str.isspace.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

// variables are what the template is rendered with, as transformers passes them.
func (m *Model) variables(req *Request, dst *Prompt, t *chattemplate.Template) (*chattemplate.Dict, error) {
	vars := chattemplate.NewDict(len(m.tokens) + 8)
	for _, t := range m.tokens {
		vars.Set(t.name, chattemplate.StringValue(t.text))
	}
	vars.Set("tools", chattemplate.NoneValue())
	vars.Set("documents", chattemplate.NoneValue())
	args, err := addArgs(vars, req.TemplateArgs)
	if err != nil {
		return nil, err
	}

	if req.ReasoningEffort != "" {
		vars.Set("reasoning_effort", chattemplate.StringValue(req.ReasoningEffort))
		// Who asks for reasoning need not know the name of the switch.
		if _, said := args.Get("enable_thinking"); !said {
			vars.Set("enable_thinking", chattemplate.BoolValue(req.ReasoningEffort != "none"))
		}
	}

	if req.Documents != nil {
		v, err := decode("documents", req.Documents)
		if err != nil {
			return nil, err
		}
		for i, document := range v.Items() {
			if !allStrings(document) {
				return nil, openai.Invalid("documents", "invalid_type", "Invalid 'documents[%d]': expected an object of strings. Send "+
					"{\"title\", \"text\"}.", i)
			}
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
	messages, err := dst.messages(req, t)
	if err != nil {
		return nil, err
	}

	vars.Set("messages", messages)
	return vars, nil
}

func allStrings(v chattemplate.Value) bool {
	if v.Kind() != chattemplate.DictKind {
		return false
	}
	all := true
	v.Dict().Each(func(_ string, member chattemplate.Value) { all = all && member.Kind() == chattemplate.String })
	return all
}

// addArgs adds chat_template_kwargs. They may rename special tokens, but not replace what the
// request itself says.
func addArgs(vars *chattemplate.Dict, raw []byte) (*chattemplate.Dict, error) {
	if raw == nil {
		return &chattemplate.Dict{}, nil
	}
	args, err := decode("chat_template_kwargs", raw)
	if err != nil {
		return nil, err
	}

	var bad error
	args.Dict().Each(func(key string, v chattemplate.Value) {
		switch key {
		case "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs", "continue_final_message",
			"tokenize":
			// apply_chat_template's own parameters: they do not reach the template.
		case "messages", "tools", "conversation", "chat_template", "return_assistant_tokens_mask":
			bad = openai.Invalid("chat_template_kwargs", "invalid_value",
				"Found unexpected chat template kwargs from request: '%s'. Remove it.", key)
		default:
			// To vLLM these two say nothing, as if the key were absent.
			if v.Kind() == chattemplate.None || v.Kind() == chattemplate.String && v.Text() == "auto" {
				return
			}
			vars.Set(key, v)
		}
	})

	return args.Dict(), bad
}

// decode reads raw JSON that the request parser has seen to be valid.
func decode(param string, raw []byte) (chattemplate.Value, error) {
	v, err := chattemplate.FromJSON(raw)
	if err != nil {
		return v, openai.Invalid(param, "invalid_json", "Invalid '%s': %v.", param, err)
	}
	return v, nil
}
