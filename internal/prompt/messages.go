package prompt

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// messagesValue returns the messages variable for template t, converted as vLLM converts it, or SGLang by its rules:
//   - Messages have only the members that the engine supports.
//   - Content is a string, or a list of parts if the template iterates over parts. SGLang leaves strings as they are.
//   - Arguments of tool calls are dicts.
//   - Developer messages become system messages if the template has no developer role.
//
// The value is valid until p is used again, because it is made of p's buffers.
func (p *Prompt) messagesValue(req *Request, messages []openai.Message, t *chattemplate.Template, rules Rules) (chattemplate.Value, error) {
	parts := t.WantsParts() && rules != SGLang
	most := maxArgumentValues
	p.dicts, p.items = grow(p.dicts, len(messages)), grow(p.items, len(messages))
	p.contents = grow(p.contents, len(messages))

	for i := range messages {
		m := &messages[i]
		d := &p.dicts[i]
		d.Reset()
		d.Set("role", chattemplate.StringValue(m.Role))
		content, err := p.contentValue(m, parts, &p.contents[i])
		if err != nil {
			return content, err
		}
		d.Set("content", content)
		if err := addOptionalMembers(d, m, i, req.Endpoint, rules, &most); err != nil {
			return content, err
		}
		p.items[i] = chattemplate.DictValue(d)
	}

	if !t.KnowsDeveloper() && hasDeveloper(messages) {
		p.items = convertDevelopers(p.items)
	}
	if req.ContinueFinalMessage {
		final := p.items[len(p.items)-1].Dict()
		content, _ := final.Get("content")
		content, text, err := appendContinueTag(content)
		if err != nil {
			return content, err
		}
		final.Set("content", content)
		p.final = text
	}

	return chattemplate.ListValue(p.items), nil
}

// maxArgumentValues bounds the values and keys in the arguments of all tool calls of a chat. The parser of
// requests cannot count them, because clients send arguments as strings.
const maxArgumentValues = 1 << 17

// grow returns a slice of length n. It reuses the memory of s if its capacity is enough.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}

// addOptionalMembers adds the members of a message other than role and content to d. I is the message's
// index, for errors. The values in arguments of tool calls are deducted from *most.
func addOptionalMembers(d *chattemplate.Dict, m *openai.Message, i int, ep openai.Endpoint, rules Rules, most *int) error {
	reasoning := m.Role == "assistant" && m.Has&openai.ReasoningMember != 0
	if reasoning && rules == SGLang {
		d.Set("reasoning_content", chattemplate.StringValue(m.Reasoning))
	}

	switch m.Role {
	case "assistant":
		if len(m.Calls) > 0 {
			calls, err := callsValue(m.Calls, ep, most)
			if err != nil {
				return err
			}
			d.Set("tool_calls", calls)
		}
		if m.ToolCalls != nil {
			calls, err := toolCallsValue(m.ToolCalls, i, rules, most)
			if err != nil {
				return err
			}
			// vLLM drops an empty list, because many templates test only whether the member exists.
			if calls.Len() > 0 || rules == SGLang {
				d.Set("tool_calls", calls)
			}
		}
		if reasoning && rules != SGLang {
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
		tools := chattemplate.NoneValue()
		if m.Tools != nil {
			var err error
			tools, err = decodeJSON("messages["+strconv.Itoa(i)+"].tools", m.Tools)
			if err != nil {
				return err
			}
		}
		d.Set("tools", tools)
	}

	return nil
}

// contentValue returns a message's content: a list of parts where parts is set, else one string. Tool
// messages have a string in both cases, unless they contain more than text. Buffer becomes a list of one text.
func (p *Prompt) contentValue(m *openai.Message, parts bool, buffer *chattemplate.TextContent) (chattemplate.Value, error) {
	if m.Kind != openai.PartsContent {
		content, left := m.Content, true
		if m.Role == "system" {
			content, left = removeBillingLine(content)
		}
		switch {
		case !parts || m.Role == "tool":
			return chattemplate.StringValue(content), nil
		case m.Kind == openai.NoContent || !left:
			return chattemplate.ListValue(nil), nil
		}
		return buffer.Set(content), nil
	}

	return p.partsValue(m, parts)
}

// partsValue returns the content of a message that the request gives as parts. It returns a list of parts
// where asParts is set. Otherwise it returns one string: a placeholder for each image, audio or video, then
// the texts, each on its own line.
func (p *Prompt) partsValue(m *openai.Message, asParts bool) (chattemplate.Value, error) {
	var values []chattemplate.Value
	var texts, media []string
	onlyText := true
	for _, part := range m.Parts {
		d := chattemplate.NewDict(2)
		switch part.Type {
		case openai.TextPart, openai.ReferencePart:
			content, left := part.Text, true
			if m.Role == "system" && part.IsOwn() {
				content, left = removeBillingLine(content)
			}
			if !left {
				continue
			}
			if content != "" || asParts {
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
			return chattemplate.NoneValue(), openai.Invalid("type", "invalid_value", "Unsupported chat content part type.")
		}
		if asParts && part.Extra && part.Type != openai.ReferencePart {
			if err := addExtraFields(d, part.Raw); err != nil {
				return chattemplate.NoneValue(), err
			}
		}
		values = append(values, chattemplate.DictValue(d))
	}

	if asParts && (m.Role != "tool" || !onlyText) {
		return chattemplate.ListValue(values), nil
	}
	if asParts || len(texts) > 0 || len(media) == 0 {
		media = append(media, strings.Join(texts, "\n"))
	}
	return chattemplate.StringValue(strings.Join(media, "\n")), nil
}

// addExtraFields adds the fields of a part to d that the parser does not handle itself, such as
// cache_control.
func addExtraFields(d *chattemplate.Dict, raw []byte) error {
	v, err := decodeJSON("messages", raw)
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

// billingPrefix begins a line that Claude Code adds to system messages and that differs in every request.
// vLLM removes the line, because with it no two prompts would share cached blocks.
const billingPrefix = "x-anthropic-billing-header"

// removeBillingLine returns text without a first line that begins with billingPrefix. Left is false if
// the text has nothing else.
func removeBillingLine(text string) (rest string, left bool) {
	if !strings.HasPrefix(text, billingPrefix) {
		return text, true
	}
	_, rest, _ = strings.Cut(text, "\n")
	return rest, rest != ""
}

// hasDeveloper reports whether a message is a developer's.
func hasDeveloper(messages []openai.Message) bool {
	return slices.ContainsFunc(messages, func(m openai.Message) bool { return m.Role == "developer" })
}

// convertDevelopers changes developer messages into system messages, for a template without a developer
// role. If a developer or system message is not the first message, all their texts are joined into one
// system message at the front, because such templates accept only that. There is a developer message.
func convertDevelopers(messages []chattemplate.Value) []chattemplate.Value {
	var systemTexts []string
	late := false // whether an instruction is not the first message
	rest := make([]chattemplate.Value, 1, len(messages)+1)
	for i, m := range messages {
		switch role, _ := m.Dict().Get("role"); role.Text() {
		case "developer", "system":
		default:
			rest = append(rest, m)
			continue
		}
		late = late || i > 0
		if text := messageText(m.Dict()); text != "" {
			systemTexts = append(systemTexts, text)
		}
	}

	if !late {
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
	system.Set("content", chattemplate.StringValue(strings.Join(systemTexts, "\n\n")))
	rest[0] = chattemplate.DictValue(system)
	return rest
}

// messageText returns the text of a message. The texts of its parts are joined by newlines.
func messageText(m *chattemplate.Dict) string {
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

// appendContinueTag returns content with the continueTag after its last text, and that text without the
// tag. It changes the part in place where content is a list of parts.
func appendContinueTag(content chattemplate.Value) (_ chattemplate.Value, text string, _ error) {
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

// toolCallsValue returns the tool calls of message i for templates. Clients send arguments as JSON text,
// but templates need dicts. Arguments that are not a JSON object become an empty dict: a model wrote them,
// and its mistake must not make the conversation unusable. The values of arguments are deducted from *most.
func toolCallsValue(raw []byte, i int, rules Rules, most *int) (chattemplate.Value, error) {
	param := "messages[" + strconv.Itoa(i) + "].tool_calls"
	calls, err := decodeJSON(param, raw)
	if err != nil {
		return calls, err
	}

	items := calls.Items()
	for k, c := range items {
		fn, _ := c.Dict().Get("function")
		if !isString(c.Dict(), "id") || !isString(c.Dict(), "type") || fn.Kind() != chattemplate.DictKind ||
			!isString(fn.Dict(), "name") || !isString(fn.Dict(), "arguments") {
			return calls, vllmRule(openai.Invalid(param, "invalid_type", "Invalid '%s': a call lacks a member, or one has the wrong type. "+
				"Send {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}, the arguments as a string.", param))
		}
		if kind, _ := c.Dict().Get("type"); kind.Text() != "function" {
			return calls, vllmRule(openai.Invalid(param, "invalid_value", "Invalid '%s': chat completions only support assistant "+
				"tool_calls of type 'function'.", param))
		}
		function := withKeysFirst(fn.Dict(), "arguments", "name")
		text, _ := function.Get("arguments")
		args, err := argumentsValue(param, text.Text(), most)
		if err != nil {
			return calls, err
		}
		function.Set("arguments", args)
		call := withKeysFirst(c.Dict(), "id", "function", "type")
		call.Set("function", chattemplate.DictValue(function))
		if rules == SGLang {
			call = sglangCall(call, function)
		}
		items[k] = chattemplate.DictValue(call)
	}

	return calls, nil
}

// argumentsValue returns the arguments of a tool call as a dict, from their JSON text. Param is the field with the call, for errors.
func argumentsValue(param, text string, most *int) (chattemplate.Value, error) {
	args, err := chattemplate.FromPythonJSON(unsafe.Slice(unsafe.StringData(text), len(text)), most)
	if errors.Is(err, chattemplate.ErrTooManyValues) {
		return args, openai.Invalid(param, "invalid_value",
			"Invalid '%s': the arguments of all tool calls together hold more than %d "+
				"values and keys. Send fewer.", param, maxArgumentValues)
	}
	if err != nil || args.Kind() != chattemplate.DictKind {
		args = chattemplate.DictValue(&chattemplate.Dict{})
	}
	return args, nil
}

// isString reports whether d has a string under key.
func isString(d *chattemplate.Dict, key string) bool {
	v, ok := d.Get(key)
	return ok && v.Kind() == chattemplate.String
}

// toolsValue returns the tools variable for templates, converted as vLLM converts it. Each tool has only the
// members that vLLM supports, in vLLM's order. An absent description or absent parameters are None. Engines with other rules convert
// some tools in another way: see [Rules.toolOf].
func toolsValue(raw []byte, rules Rules) (chattemplate.Value, error) {
	list, err := decodeJSON("tools", raw)
	if err != nil {
		return list, err
	}

	items := list.Items()
	if len(items) == 0 {
		return list, vllmRule(openai.Invalid("tools", "empty_array", "Invalid 'tools': empty array. Either provide at least one tool "+
			"or omit the field entirely."))
	}

	for i, t := range items {
		if t.Kind() != chattemplate.DictKind {
			return list, invalidTool(i, "it is not an object")
		}
		tool, reason := toolValue(t.Dict())
		if reason != "" {
			return list, invalidTool(i, reason)
		}
		tool, ok := rules.toolOf(t.Dict(), tool)
		if !ok {
			return list, &unreadError{openai.WhyTool}
		}
		items[i] = chattemplate.DictValue(tool)
	}

	return list, nil
}

// invalidTool returns the error for tool i of a request.
func invalidTool(i int, reason string) error {
	return vllmRule(openai.Invalid("tools["+strconv.Itoa(i)+"]", "invalid_type",
		"Invalid 'tools[%d]': %s. Send {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}.", i, reason))
}

// toolValue returns one tool for templates, or the reason why t is not a valid tool. Defer_loading may be a
// member of the tool or of its function; the function's member has precedence.
func toolValue(t *chattemplate.Dict) (_ *chattemplate.Dict, reason string) {
	fn, _ := t.Get("function")
	if fn.Kind() != chattemplate.DictKind {
		return nil, "it has no function"
	}
	if kind, ok := t.Get("type"); ok && (kind.Kind() != chattemplate.String || kind.Text() != "function") {
		return nil, "its type is not function"
	}

	deferLoading, _ := t.Get("defer_loading")
	tool, function := chattemplate.NewDict(3), chattemplate.NewDict(5)
	for _, m := range []struct {
		name string
		kind chattemplate.Kind
		kept bool // present in the result even if it is None
	}{{"name", chattemplate.String, false}, {"description", chattemplate.String, true}, {"parameters", chattemplate.DictKind, true},
		{"strict", chattemplate.Bool, false}, {"defer_loading", chattemplate.Bool, false}} {
		v, ok := fn.Dict().Get(m.name)
		if !ok {
			v = chattemplate.NoneValue()
		}
		if m.name == "defer_loading" && v.Kind() == chattemplate.None {
			v = deferLoading
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
	if deferLoading.Kind() == chattemplate.Bool {
		tool.Set("defer_loading", deferLoading)
	}
	return tool, ""
}

// withKeysFirst returns a copy of d with the keys of first at the front, in that order. A key that d does
// not have is None. The order matters, because templates write dicts as JSON into the prompt.
func withKeysFirst(d *chattemplate.Dict, first ...string) *chattemplate.Dict {
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
