package prompt

import (
	"slices"
	"strconv"
	"strings"

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
