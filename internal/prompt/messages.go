package prompt

import (
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// messages are the conversation as templates see it, prepared as vLLM prepares it: only known
// members, content as a string (or as parts, where the template goes through them), the
// arguments of tool calls as dicts, developers as systems where the template knows none.
func (p *Prompt) messages(req *Request, t *chattemplate.Template) (chattemplate.Value, error) {
	parts := t.WantsParts()
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
		d.Set("content", content)
		if err := addMembers(d, m, i); err != nil {
			return content, err
		}
		p.items[i] = chattemplate.DictValue(d)
	}

	if !t.KnowsDeveloper() {
		p.items = withoutDevelopers(p.items)
	}
	if req.ContinueFinalMessage {
		final := p.items[len(p.items)-1].Dict()
		content, _ := final.Get("content")
		content, text, err := tagged(content)
		if err != nil {
			return content, err
		}
		final.Set("content", content)
		p.final = text
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
		if m.Has&openai.ReasoningMember != 0 {
			d.Set("reasoning", chattemplate.StringValue(m.Reasoning))
			d.Set("reasoning_content", chattemplate.StringValue(m.Reasoning))
		}
	case "tool":
		switch {
		case m.Has&openai.NullToolCallID != 0:
			d.Set("tool_call_id", chattemplate.NoneValue())
		case m.Has&openai.ToolCallIDMember != 0:
			d.Set("tool_call_id", chattemplate.StringValue(m.ToolCallID))
		}
	}

	if m.Has&openai.NameMember != 0 {
		d.Set("name", chattemplate.StringValue(m.Name))
	}
	if m.Has&openai.TaskMember != 0 {
		d.Set("task", chattemplate.StringValue(m.Task))
	}

	if m.Role == "developer" {
		own := chattemplate.NoneValue()
		if m.Tools != nil {
			var err error
			own, err = decode("messages["+strconv.Itoa(i)+"].tools", m.Tools)
			if err != nil {
				return err
			}
		}
		d.Set("tools", own)
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
		content, left := m.Content, true
		if m.Role == "system" {
			content, left = withoutBilling(content)
		}
		switch {
		case !parts || m.Role == "tool":
			return chattemplate.StringValue(content), nil
		case m.Kind == openai.NoContent || !left:
			return chattemplate.ListValue(nil), nil
		}
		return chattemplate.ListValue([]chattemplate.Value{text(content)}), nil
	}

	return p.parts(m, parts)
}

// parts are a message's content that was given as parts.
func (p *Prompt) parts(m *openai.Message, wanted bool) (chattemplate.Value, error) {
	var values []chattemplate.Value
	var texts, media []string
	onlyText := true
	for _, part := range m.Parts {
		d := chattemplate.NewDict(2)
		switch part.Type {
		case openai.TextPart, openai.ReferencePart:
			content, left := part.Text, true
			if m.Role == "system" {
				content, left = withoutBilling(content)
			}
			if !left {
				continue
			}
			if content != "" || wanted {
				texts = append(texts, content)
			}
			kind, field := "text", "text"
			if part.Type == openai.ReferencePart {
				kind = "tool_reference"
				field = "name"
				onlyText = false
			}
			d.Set("type", chattemplate.StringValue(kind))
			d.Set(field, chattemplate.StringValue(content))
		case openai.ImagePart, openai.AudioPart, openai.VideoPart:
			kind := [...]string{openai.ImagePart: "image", openai.AudioPart: "audio", openai.VideoPart: "video"}[part.Type]
			onlyText = false
			p.Media, media = append(p.Media, part.Hash), append(media, "<"+kind+">")
			d.Set("type", chattemplate.StringValue(kind))
		default:
			return chattemplate.NoneValue(), openai.Invalid("type", "invalid_value",
				"Unsupported chat content part type. Supported types: text, refusal, image_url, input_audio, audio_url, video_url.")
		}
		if wanted && part.Extra && part.Type != openai.ReferencePart {
			if err := addExtra(d, part.Raw); err != nil {
				return chattemplate.NoneValue(), err
			}
		}
		values = append(values, chattemplate.DictValue(d))
	}

	if wanted && (m.Role != "tool" || !onlyText) {
		return chattemplate.ListValue(values), nil
	}
	if wanted || len(texts) > 0 || len(media) == 0 {
		media = append(media, strings.Join(texts, "\n"))
	}
	return chattemplate.StringValue(strings.Join(media, "\n")), nil
}

// addExtra adds what a part has beyond the members that are known.
func addExtra(d *chattemplate.Dict, raw []byte) error {
	v, err := decode("messages", raw)
	if err != nil {
		return err
	}

	v.Dict().Each(func(key string, v chattemplate.Value) {
		if !openai.PartField(key) {
			d.Set(key, v)
		}
	})
	return nil
}

// billing begins a line that Claude Code puts into system messages and that differs in every request.
// vLLM drops the line, because it would make every prompt a new one.
const billing = "x-anthropic-billing-header"

// withoutBilling is text without that line, and whether anything is left.
func withoutBilling(text string) (string, bool) {
	if !strings.HasPrefix(text, billing) {
		return text, true
	}
	_, rest, _ := strings.Cut(text, "\n")
	return rest, rest != ""
}

// withoutDevelopers are messages with developers made systems, and all that systems say in one
// message at the front, for a template that knows no developers. Without developers they stay
// as they are.
func withoutDevelopers(messages []chattemplate.Value) []chattemplate.Value {
	var says []string
	found, late := false, false
	rest := make([]chattemplate.Value, 1, len(messages)+1)
	for i, m := range messages {
		switch role, _ := m.Dict().Get("role"); role.Text() {
		case "developer":
			found = true
		case "system":
		default:
			rest = append(rest, m)
			continue
		}
		late = late || i > 0
		if text := joined(m.Dict()); text != "" {
			says = append(says, text)
		}
	}

	switch {
	case !found:
		return messages
	case !late:
		first := chattemplate.NewDict(4)
		messages[0].Dict().Each(func(key string, v chattemplate.Value) {
			if key != "tools" {
				first.Set(key, v)
			}
		})
		first.Set("role", chattemplate.StringValue("system"))
		messages[0] = chattemplate.DictValue(first)
		return messages
	}

	system := chattemplate.NewDict(2)
	system.Set("role", chattemplate.StringValue("system"))
	system.Set("content", chattemplate.StringValue(strings.Join(says, "\n\n")))
	rest[0] = chattemplate.DictValue(system)
	return rest
}

// joined is the text of a message: of its parts, a line each.
func joined(m *chattemplate.Dict) string {
	content, _ := m.Get("content")
	if content.Kind() == chattemplate.String {
		return content.Text()
	}

	var texts []string
	for _, part := range content.Items() {
		if text, ok := part.Dict().Get("text"); ok {
			texts = append(texts, text.Text())
		}
	}
	return strings.Join(texts, "\n")
}

// tagged puts the tag behind the text that is to be continued, and returns that text as well.
func tagged(content chattemplate.Value) (_ chattemplate.Value, text string, _ error) {
	if content.Kind() == chattemplate.String {
		return chattemplate.StringValue(content.Text() + continueTag), content.Text(), nil
	}
	items := content.Items()
	for i := len(items) - 1; i >= 0; i-- {
		if text, ok := items[i].Dict().Get("text"); ok {
			items[i].Dict().Set("text", chattemplate.StringValue(text.Text()+continueTag))
			return content, text.Text(), nil
		}
	}
	return content, "", openai.Invalid("continue_final_message", "invalid_value",
		"continue_final_message is set, but the final message has no text to continue. Set it to false.")
}

// toolCalls are a message's tool calls with their arguments as dicts: clients send them as
// JSON text, templates want them as values. What is not the text of an object is an empty dict,
// so that a slip of the model's does not end the conversation.
func toolCalls(raw []byte, i int) (chattemplate.Value, error) {
	param := "messages[" + strconv.Itoa(i) + "].tool_calls"
	calls, err := decode(param, raw)
	if err != nil {
		return calls, err
	}

	items := calls.Items()
	for k, c := range items {
		fn, _ := c.Dict().Get("function")
		if !isString(c.Dict(), "id") || !isString(c.Dict(), "type") || fn.Kind() != chattemplate.DictKind ||
			!isString(fn.Dict(), "name") || !isString(fn.Dict(), "arguments") {
			return calls, openai.Invalid(param, "invalid_type", "Invalid '%s': a call lacks a member, or one has the wrong type. "+
				"Send {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}, the arguments as a string.", param)
		}
		if kind, _ := c.Dict().Get("type"); kind.Text() != "function" {
			return calls, openai.Invalid(param, "invalid_value", "Invalid '%s': chat completions only support assistant tool_calls of "+
				"type 'function'.", param)
		}
		function := ordered(fn.Dict(), "arguments", "name")
		text, _ := function.Get("arguments")
		args, err := chattemplate.FromPythonJSON([]byte(text.Text()))
		if err != nil || args.Kind() != chattemplate.DictKind {
			args = chattemplate.DictValue(&chattemplate.Dict{})
		}
		function.Set("arguments", args)
		call := ordered(c.Dict(), "id", "function", "type")
		call.Set("function", chattemplate.DictValue(function))
		items[k] = chattemplate.DictValue(call)
	}

	return calls, nil
}

func isString(d *chattemplate.Dict, key string) bool {
	v, ok := d.Get(key)
	return ok && v.Kind() == chattemplate.String
}

// tools are a request's tools as vLLM hands them on: the members that it knows in its own
// order, None for a description or parameters that are absent, and no others.
func tools(raw []byte) (chattemplate.Value, error) {
	list, err := decode("tools", raw)
	if err != nil {
		return list, err
	}

	items := list.Items()
	if len(items) == 0 {
		return list, openai.Invalid("tools", "empty_array", "Invalid 'tools': empty array. Either provide at least one tool or omit "+
			"the field entirely.")
	}

	for i, t := range items {
		if t.Kind() != chattemplate.DictKind {
			return list, badTool(i, "it is not an object")
		}
		tool, reason := cleanTool(t.Dict())
		if reason != "" {
			return list, badTool(i, reason)
		}
		items[i] = chattemplate.DictValue(tool)
	}

	return list, nil
}

func badTool(i int, reason string) error {
	return openai.Invalid("tools["+strconv.Itoa(i)+"]", "invalid_type",
		"Invalid 'tools[%d]': %s. Send {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}.", i, reason)
}

// cleanTool is one tool, or the reason why it is none.
func cleanTool(t *chattemplate.Dict) (_ *chattemplate.Dict, reason string) {
	fn, _ := t.Get("function")
	if fn.Kind() != chattemplate.DictKind {
		return nil, "it has no function"
	}
	if kind, ok := t.Get("type"); ok && (kind.Kind() != chattemplate.String || kind.Text() != "function") {
		return nil, "its type is not function"
	}

	later, _ := t.Get("defer_loading")
	tool, function := chattemplate.NewDict(3), chattemplate.NewDict(5)
	for _, m := range []struct {
		name string
		kind chattemplate.Kind
		kept bool // where it is None
	}{{"name", chattemplate.String, false}, {"description", chattemplate.String, true}, {"parameters", chattemplate.DictKind, true},
		{"strict", chattemplate.Bool, false}, {"defer_loading", chattemplate.Bool, false}} {
		v, ok := fn.Dict().Get(m.name)
		if !ok {
			v = chattemplate.NoneValue()
		}
		if m.name == "defer_loading" && v.Kind() == chattemplate.None {
			v = later
		}
		none := v.Kind() == chattemplate.None || v.Kind() == chattemplate.Undefined
		if !none && v.Kind() != m.kind || none && m.name == "name" {
			return nil, "the " + m.name + " of its function is missing or has the wrong type"
		}
		if !none || m.kept {
			function.Set(m.name, v)
		}
	}

	tool.Set("type", chattemplate.StringValue("function"))
	tool.Set("function", chattemplate.DictValue(function))
	if later.Kind() == chattemplate.Bool {
		tool.Set("defer_loading", later)
	}
	return tool, ""
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
