package prompt

import (
	"bytes"
	"errors"
	"strings"
	"unicode"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// render renders a chat into dst.Text. A chat whose final message is continued ends after that message.
func (m *Model) render(req *Request, dst *Prompt) error {
	t := m.template
	if req.Tools != nil {
		t = m.withTools
	}
	if t == nil {
		return openai.Invalid("messages", "invalid_value", "This model has no chat template. Use /v1/completions, or add "+
			"chat_template.jinja to the model's folder.")
	}

	vars, err := m.templateVariables(req, dst, t)
	if err != nil {
		return err
	}

	text, err := t.Render(dst.Text, chattemplate.Context{Vars: vars, Now: dst.Now, Done: dst.Done}, chattemplate.Limits{})
	if errors.Is(err, chattemplate.ErrStopped) {
		return ErrStopped
	}
	if err != nil {
		return openai.Invalid("messages", "invalid_value", "The model's chat template refuses this conversation: %v", err)
	}

	dst.Text = text
	if req.ContinueFinalMessage {
		if !t.ReadsContent() {
			return continuationError()
		}
		return dst.cutAtTag()
	}
	return nil
}

// continueTag marks the end of the final message, if the engine continues that message. It is appended to
// the message before rendering; cutAtTag removes the tag and all text after it. Its last character is a
// space, so that cutAtTag can detect a template that trims messages.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// cutAtTag ends p.Text before the continueTag. If the template has trimmed the message, and with it the
// space at the end of the tag, cutAtTag also removes the white space before the tag, as transformers does.
func (p *Prompt) cutAtTag() error {
	at := bytes.LastIndex(p.Text, []byte(strings.TrimSpace(continueTag)))
	if at < 0 || !bytes.Contains(p.Text, []byte(strings.TrimFunc(p.final, isSpace))) {
		return continuationError()
	}

	if bytes.HasPrefix(p.Text[at:], []byte(continueTag)) {
		p.Text = p.Text[:at]
	} else {
		p.Text = bytes.TrimRightFunc(p.Text[:at], isSpace)
	}
	return nil
}

// continuationError returns the error for a template that does not render the final message.
func continuationError() error {
	return openai.Invalid("continue_final_message", "invalid_value",
		"continue_final_message is set, but the final message does not appear in the chat after applying the chat template. Set it to "+
			"false.")
}

// isSpace reports whether Python's str.isspace is true for r.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

// templateVariables returns the variables for template t, as transformers passes them: special tokens,
// chat_template_kwargs, documents, tools and messages. Later variables replace earlier ones of the same
// name, so the order of the steps matters.
func (m *Model) templateVariables(req *Request, dst *Prompt, t *chattemplate.Template) (*chattemplate.Dict, error) {
	vars := &dst.vars
	vars.Reset()
	for _, t := range m.tokens {
		vars.Set(t.name, chattemplate.StringValue(t.text))
	}
	vars.Set("tools", chattemplate.NoneValue())
	vars.Set("documents", chattemplate.NoneValue())
	args, err := addTemplateArgs(vars, req.TemplateArgs, m.rules)
	if err != nil {
		return nil, err
	}

	effort := req.ReasoningEffort
	if req.ThinkingDisabled {
		effort = m.disabledEffort
	}
	if effort != "" {
		vars.Set("reasoning_effort", chattemplate.StringValue(effort))
		// Many templates read enable_thinking instead of reasoning_effort. Setting both makes
		// reasoning_effort effective for every model.
		if _, set := args.Get("enable_thinking"); !set {
			vars.Set("enable_thinking", chattemplate.BoolValue(effort != "none"))
		}
	}

	if req.Documents != nil {
		v, err := decodeJSON("documents", req.Documents)
		if err != nil {
			return nil, err
		}
		for i, document := range v.Items() {
			if !allStrings(document) {
				return nil, vllmRule(openai.Invalid("documents", "invalid_type", "Invalid 'documents[%d]': expected an object of strings. "+
					"Send {\"title\", \"text\"}.", i))
			}
		}
		vars.Set("documents", v)
	}

	if req.Tools != nil {
		v, err := m.toolsOf(req)
		if err != nil {
			return nil, err
		}
		vars.Set("tools", v)
	}

	vars.Set("add_generation_prompt", chattemplate.BoolValue(req.AddGenerationPrompt))
	messages, err := dst.messagesValue(req, m.chatOf(req), t, m.rules)
	if err != nil {
		return nil, err
	}

	vars.Set("messages", messages)
	return vars, nil
}

// allStrings reports whether v is a dict whose values are all strings.
func allStrings(v chattemplate.Value) bool {
	if v.Kind() != chattemplate.DictKind {
		return false
	}
	all := true
	v.Dict().Each(func(_ string, member chattemplate.Value) { all = all && member.Kind() == chattemplate.String })
	return all
}

// noArgs are the chat_template_kwargs of a request without any. They are only read.
var noArgs chattemplate.Dict

// addTemplateArgs adds chat_template_kwargs to vars and returns them. They may replace special tokens. They
// must not replace a variable that comes from a field of the request, such as messages or tools.
func addTemplateArgs(vars *chattemplate.Dict, raw []byte, rules Rules) (*chattemplate.Dict, error) {
	if raw == nil {
		return &noArgs, nil
	}
	args, err := decodeJSON("chat_template_kwargs", raw)
	if err != nil {
		return nil, err
	}

	var bad error
	args.Dict().Each(func(key string, v chattemplate.Value) {
		switch key {
		case "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs", "continue_final_message",
			"tokenize":
			// These are parameters of apply_chat_template itself, which does not pass them to templates.
		case "messages", "tools", "conversation", "chat_template", "return_assistant_tokens_mask":
			bad = vllmRule(openai.Invalid("chat_template_kwargs", "invalid_value",
				"Found unexpected chat template kwargs from request: '%s'. Remove it.", key))
		default:
			// vLLM treats a key with one of these two values as absent.
			absent := v.Kind() == chattemplate.None || v.Kind() == chattemplate.String && v.Text() == "auto"
			if !absent || rules == SGLang {
				vars.Set(key, v)
			}
		}
	})

	return args.Dict(), bad
}

// decodeJSON decodes the raw JSON of a request's field. Param names the field in the error.
func decodeJSON(param string, raw []byte) (chattemplate.Value, error) {
	v, err := chattemplate.FromPythonJSON(raw, nil)
	if err != nil {
		return v, openai.Invalid(param, "invalid_json", "Invalid '%s': %v.", param, err)
	}
	return v, nil
}
