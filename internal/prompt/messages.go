package prompt

import (
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// messages are the conversation as templates see it, prepared as vLLM prepares it: only known
// members, content as a string (or as parts, where the template goes through them), the
// arguments of tool calls as dicts.
func (p *Prompt) messages(req *Request, parts bool) (chattemplate.Value, error) {
	p.dicts, p.items = grow(p.dicts, len(req.Messages)), grow(p.items, len(req.Messages))
	for i := range req.Messages {
		m := &req.Messages[i]
		d := &p.dicts[i]
		d.Reset()
		d.Set("role", chattemplate.StringValue(m.Role))
		content, err := p.content(m, parts)
		if err != nil {
			return content, err
		}
		if req.ContinueFinalMessage && i == len(req.Messages)-1 {
			if content, err = tagged(content); err != nil {
				return content, err
			}
		}
		d.Set("content", content)
		if err := addMembers(d, m, i); err != nil {
			return content, err
		}
		p.items[i] = chattemplate.DictValue(d)
	}
	return chattemplate.ListValue(p.items), nil
}

// grow returns a slice of length n, in s's memory where that is enough.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}

// addMembers adds what a message has besides role and content.
func addMembers(d *chattemplate.Dict, m *openai.Message, i int) error {
	switch m.Role {
	case "assistant":
		if m.ToolCalls != nil {
			calls, err := toolCalls(m.ToolCalls, i)
			if err != nil {
				return err
			}
			// An empty list is dropped: templates take its presence for a call.
			if calls.Len() > 0 {
				d.Set("tool_calls", calls)
			}
		}
		if m.HasReasoning {
			d.Set("reasoning", chattemplate.StringValue(m.Reasoning))
			d.Set("reasoning_content", chattemplate.StringValue(m.Reasoning))
		}
	case "tool":
		if m.ToolCallID != "" {
			d.Set("tool_call_id", chattemplate.StringValue(m.ToolCallID))
		}
	}
	if m.Name != "" {
		d.Set("name", chattemplate.StringValue(m.Name))
	}
	return nil
}

// content is a message's content: one string, or a list of parts.
func (p *Prompt) content(m *openai.Message, parts bool) (chattemplate.Value, error) {
	text := func(s string) chattemplate.Value {
		d := chattemplate.NewDict(2)
		d.Set("type", chattemplate.StringValue("text"))
		d.Set("text", chattemplate.StringValue(s))
		return chattemplate.DictValue(d)
	}
	if m.Kind != openai.PartsContent {
		switch {
		case !parts || m.Role == "tool":
			return chattemplate.StringValue(m.Content), nil
		case m.Kind == openai.NoContent:
			return chattemplate.ListValue(nil), nil
		}
		return chattemplate.ListValue([]chattemplate.Value{text(m.Content)}), nil
	}
	var values []chattemplate.Value
	var texts, media []string
	for _, part := range m.Parts {
		kind := ""
		switch part.Type {
		case openai.TextPart:
			values = append(values, text(part.Text))
			if part.Text != "" {
				texts = append(texts, part.Text)
			}
			continue
		case openai.ImagePart:
			kind = "image"
		case openai.AudioPart:
			kind = "audio"
		case openai.VideoPart:
			kind = "video"
		default:
			return chattemplate.NoneValue(), openai.Invalid("type", "invalid_value",
				"Unsupported chat content part type. Supported types: text, refusal, image_url, input_audio, audio_url, video_url.")
		}
		p.Media = append(p.Media, part.Hash)
		d := chattemplate.NewDict(1)
		d.Set("type", chattemplate.StringValue(kind))
		values, media = append(values, chattemplate.DictValue(d)), append(media, "<"+kind+">")
	}
	if parts && (m.Role != "tool" || len(media) > 0) {
		return chattemplate.ListValue(values), nil
	}
	return chattemplate.StringValue(strings.Join(append(media, texts...), "\n")), nil
}

// tagged puts the tag behind the text that is to be continued.
func tagged(content chattemplate.Value) (chattemplate.Value, error) {
	if content.Kind() == chattemplate.String {
		return chattemplate.StringValue(content.Text() + continueTag), nil
	}
	items := content.Items()
	for i := len(items) - 1; i >= 0; i-- {
		if text, ok := items[i].Dict().Get("text"); ok {
			items[i].Dict().Set("text", chattemplate.StringValue(text.Text()+continueTag))
			return content, nil
		}
	}
	return content, openai.Invalid("continue_final_message", "invalid_value",
		"continue_final_message is set, but the final message has no text to continue. Set it to false.")
}

// toolCalls are a message's tool calls with their arguments as dicts: clients send them as
// JSON text, templates want them as values. No arguments are an empty dict.
func toolCalls(raw []byte, i int) (chattemplate.Value, error) {
	param := "messages[" + strconv.Itoa(i) + "].tool_calls"
	calls, err := decode(param, raw)
	if err != nil {
		return calls, err
	}
	for _, c := range calls.Items() {
		fn, ok := c.Dict().Get("function")
		if !ok || fn.Kind() != chattemplate.DictKind {
			return calls, openai.Invalid(param, "invalid_type", "Invalid '%s': a call has no function. Send {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}.", param)
		}
		args, _ := fn.Dict().Get("arguments")
		switch {
		case args.Kind() == chattemplate.String && args.Text() != "":
			v, err := chattemplate.FromJSON([]byte(args.Text()))
			if err != nil {
				return calls, openai.Invalid(param, "invalid_value", "Invalid '%s': the arguments of a call are not valid JSON. Send the arguments as the model wrote them.", param)
			}
			fn.Dict().Set("arguments", v)
		case args.Kind() != chattemplate.DictKind && args.Kind() != chattemplate.ListKind:
			fn.Dict().Set("arguments", chattemplate.DictValue(&chattemplate.Dict{}))
		}
	}
	return calls, nil
}

// tools are a request's tools in the order in which vLLM hands their members on: the known
// ones first and always (None where absent), then the others as they came.
func tools(raw []byte) (chattemplate.Value, error) {
	list, err := decode("tools", raw)
	if err != nil {
		return list, err
	}
	items := list.Items()
	for i, t := range items {
		fn, ok := t.Dict().Get("function")
		if !ok || fn.Kind() != chattemplate.DictKind {
			return list, openai.Invalid("tools["+strconv.Itoa(i)+"]", "invalid_type",
				"Invalid 'tools[%d]': it has no function. Send {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}.", i)
		}
		function := ordered(fn.Dict(), "name", "description", "parameters")
		tool := ordered(t.Dict(), "type", "function")
		tool.Set("function", chattemplate.DictValue(function))
		if kind, _ := tool.Get("type"); kind.Kind() == chattemplate.None {
			tool.Set("type", chattemplate.StringValue("function"))
		}
		items[i] = chattemplate.DictValue(tool)
	}
	return list, nil
}

// ordered is d with the keys in first at the front, None where d lacks them.
func ordered(d *chattemplate.Dict, first ...string) *chattemplate.Dict {
	out := chattemplate.NewDict(d.Len() + len(first))
	for _, key := range first {
		v, ok := d.Get(key)
		if !ok {
			v = chattemplate.NoneValue()
		}
		out.Set(key, v)
	}
	d.Each(func(key string, v chattemplate.Value) { out.Set(key, v) })
	return out
}
