package openai

import (
	"bytes"
	"slices"
	"unsafe"

	"github.com/stator-project/stator/internal/jsonscan"
)

// responsesField reads the value of one top-level key of Responses.
func (p *parser) responsesField(key string) {
	r := p.req
	switch key {
	case "model", "stream", "cache_salt", "nvext", "chat_template_kwargs", "user", "session_id", "priority":
		p.field(key)
	case "input":
		p.responsesInput()
	case "instructions":
		p.system, _ = p.textOrNull(WhyField)
	case "max_output_tokens":
		v, ok := p.integer(key)
		r.setFact(MaxTokensNegative, ok && v < 0)
		p.maxTokens = clampInt32(v)
	case "tools":
		r.Tools = p.rawOrNull(key, jsonscan.Array)
		if len(bytes.Trim(r.Tools, "[] \t\r\n")) == 0 {
			r.Tools = nil
		}
	case "reasoning":
		r.ReasoningEffort, _ = p.stringIn("effort")
		p.checkEffort("", "none", "minimal", "low", "medium", "high", "xhigh", "max")
	case "truncation":
		switch how, _ := p.textOrNull(WhyField); how {
		case "disabled":
			r.Truncate = 0
		case "auto", "":
			r.Truncate = -1
		default:
			p.unread(WhyField)
		}
	case "previous_response_id":
		p.skipUnlessNull(WhyPrevious)
	case "prompt", "previous_input_messages":
		p.skipUnlessNull(WhyField)
	default:
		p.Skip()
	}
}

// skipUnlessNull skips a value that is not read unless it is null, for that reason.
func (p *parser) skipUnlessNull(why Why) {
	if p.Peek() != jsonscan.Null {
		p.unread(why)
	}
	p.Skip()
}

// responsesInput reads the input: a text of the user, or a list of items.
func (p *parser) responsesInput() {
	p.startMessages()
	p.hasPrompt = false
	p.req.AddGenerationPrompt = true
	p.req.ContinueFinalMessage = false
	switch p.Peek() {
	case jsonscan.String:
		p.hasPrompt = true
		p.addMessage(Message{Role: "user", Kind: TextContent, Content: p.string()})
	case jsonscan.Array:
		p.hasPrompt = true
		p.EachElement(func(int) {
			p.countPart()
			if p.Peek() != jsonscan.Object {
				p.skipUnread(WhyPart)
				return
			}
			p.item()
		})
	default:
		p.expectKind("input", jsonscan.String, "a string or an array of objects")
	}
}

// text is the value of a member that should be a string.
type text struct {
	value string
	given bool // and neither null nor of another kind
	null  bool
	wrong bool // of another kind
}

// item is an item of the input, with its members of all types, because the type may come last.
type item struct {
	kind, role, status, id, callID, name, namespace, arguments, encrypted text
	// input is the JSON of a custom tool's input.
	input []byte
	// content, summary and output are lists of parts, or a text.
	content, summary, output partList
}

// partList is a text or a list of parts.
type partList struct {
	given, isText bool
	text          string
	parts         []itemPart
}

// itemPart is a part of an item.
type itemPart struct {
	kind, text string
	hasText    bool
	// image is the raw JSON of an image's URL, nil for none, and detail of its detail.
	image, detail []byte
	// more is set for members that may change the prompt.
	more bool
}

// readText reads a member that should be a string.
func (p *parser) readText() text {
	switch p.Peek() {
	case jsonscan.String:
		return text{value: p.string(), given: true}
	case jsonscan.Null:
		p.Skip()
		return text{null: true}
	}
	p.Skip()
	return text{wrong: true}
}

// text returns the text that holds a member, nil for none.
func (it *item) text(member string) *text {
	switch member {
	case "type":
		return &it.kind
	case "role":
		return &it.role
	case "status":
		return &it.status
	case "id":
		return &it.id
	case "call_id":
		return &it.callID
	case "name":
		return &it.name
	case "namespace":
		return &it.namespace
	case "arguments":
		return &it.arguments
	case "encrypted_content":
		return &it.encrypted
	}
	return nil
}

// isOpen reports whether the item was cut off: vLLM lets the model continue some of these.
func (it *item) isOpen() bool {
	return it.status.value == "in_progress" || it.status.value == "incomplete"
}

// item reads one item and adds it to the conversation.
func (p *parser) item() {
	var it item
	p.object(func(key string) {
		switch key {
		case "content":
			it.content = p.readParts()
		case "summary":
			it.summary = p.readParts()
		case "output":
			it.output = p.readParts()
		case "input":
			it.input = p.rawText()
		default:
			if t := it.text(key); t != nil {
				*t = p.readText()
				return
			}
			p.Skip()
		}
	})

	p.req.AddGenerationPrompt = true
	p.req.ContinueFinalMessage = false
	if p.Err != nil || p.req.Unread != WhyRead {
		return
	}
	known := !it.status.wrong && slices.Contains([]string{"", "in_progress", "completed", "incomplete"}, it.status.value)
	if !known || !p.convert(&it) {
		p.unread(WhyPart)
	}
}

// convert adds an item to the conversation as vLLM does: parts of one turn of the assistant become one message. It returns false for an
// item that is not known exactly.
func (p *parser) convert(it *item) bool {
	switch it.kind.value {
	case "", "message":
		if it.kind.wrong || it.kind.null {
			return false
		}
		if it.role.value == "assistant" {
			return p.addAnswer(it)
		}
		return p.addInput(it)
	case "function_call":
		if it.id.wrong || it.namespace.wrong || !it.arguments.given {
			return false
		}
		name := it.name.value
		if it.namespace.value != "" {
			name = it.namespace.value + "__" + name
		}
		return p.addCall(it, Call{ID: it.callID.value, Name: name, Arguments: it.arguments.value})
	case "custom_tool_call":
		if it.input == nil {
			return false
		}
		return p.addCall(it, Call{ID: it.callID.value, Name: it.name.value, Arguments: `{"input":` + string(it.input) + `}`})
	case "function_call_output", "custom_tool_call_output":
		return p.addOutput(it)
	case "reasoning":
		return p.addReasoning(it)
	}
	return false
}

// answering returns the last message, if it is the assistant's, and nil otherwise.
func (p *parser) answering() *Message {
	if n := len(p.req.Messages); n > 0 && p.req.Messages[n-1].Role == "assistant" {
		return &p.req.Messages[n-1]
	}
	return nil
}

// addCall adds a call of a tool to the assistant's message.
func (p *parser) addCall(it *item, call Call) bool {
	if !it.callID.given || !it.name.given {
		return false
	}
	if m := p.answering(); m != nil {
		m.Calls = append(m.Calls, call)
		return true
	}
	p.addMessage(Message{Role: "assistant", Calls: []Call{call}})
	return true
}

// addReasoning adds reasoning: its first part, or the first part of its summary.
func (p *parser) addReasoning(it *item) bool {
	badID := it.id.wrong || it.id.null
	isOpaque := it.encrypted.wrong || it.encrypted.value != ""
	if it.isOpen() || badID || isOpaque || it.content.isText || !it.summary.given || it.summary.isText ||
		!allOf(it.content.parts, "reasoning_text") || !allOf(it.summary.parts, "summary_text") {
		return false
	}

	text := ""
	if parts := slices.Concat(it.content.parts, it.summary.parts); len(parts) > 0 {
		text = parts[0].text
	}
	if m := p.answering(); m != nil && m.Has&ReasoningMember == 0 {
		m.Has |= ReasoningMember
		m.Reasoning = text
		return true
	}
	p.addMessage(Message{Role: "assistant", Has: ReasoningMember, Reasoning: text})
	return true
}

// allOf reports whether all parts are texts of one type.
func allOf(parts []itemPart, kind string) bool {
	return !slices.ContainsFunc(parts, func(part itemPart) bool { return part.kind != kind || !part.hasText })
}

// addAnswer adds the assistant's text, of which vLLM takes the first part.
func (p *parser) addAnswer(it *item) bool {
	open := it.isOpen()
	text := it.content.text
	if it.content.isText && open {
		return false
	}
	if !it.content.isText {
		parts := it.content.parts
		hasMore := slices.ContainsFunc(parts, func(part itemPart) bool { return part.more })
		if len(parts) == 0 || hasMore || !allOf(parts, "output_text") || !it.kind.given || it.id.wrong || it.id.null || it.status.null {
			return false
		}
		text = parts[0].text
	}

	p.req.AddGenerationPrompt = !open
	p.req.ContinueFinalMessage = open
	if m := p.answering(); m != nil && m.Kind == NoContent {
		m.Kind, m.Content = TextContent, text
		return true
	}
	p.addMessage(Message{Role: "assistant", Kind: TextContent, Content: text})
	return true
}

// addInput adds a message of the user, the system or the developer.
func (p *parser) addInput(it *item) bool {
	if it.isOpen() || !slices.Contains([]string{"user", "system", "developer"}, it.role.value) {
		return false
	}
	m := Message{Role: it.role.value}
	if !p.setItemContent(&m, &it.content) {
		return false
	}
	p.addMessage(m)
	return true
}

// addOutput adds the output of a tool.
func (p *parser) addOutput(it *item) bool {
	m := Message{Role: "tool", Has: ToolCallIDMember, ToolCallID: it.callID.value}
	custom := it.kind.value == "custom_tool_call_output"
	switch {
	case it.callID.wrong || it.id.wrong || it.name.wrong || it.namespace.wrong:
		return false
	case custom && (!it.callID.given || !it.output.isText):
		return false
	case !it.output.isText && it.id.given: // such an item has two readings
		return false
	case !it.callID.given:
		m.Has |= NullToolCallID
	}
	if !p.setItemContent(&m, &it.output) {
		return false
	}
	p.addMessage(m)
	return true
}

// autoDetail is the JSON of an image's detail that vLLM adds for templates.
var autoDetail = []byte(`{"detail":"auto"}`)

// setItemContent sets the content of a message to a text, or to parts that are texts and images.
func (p *parser) setItemContent(m *Message, content *partList) bool {
	if !content.given {
		return false
	}
	if content.isText {
		m.Kind, m.Content = TextContent, content.text
		return true
	}

	p.parts = p.parts[:0]
	for i := range content.parts {
		part := &content.parts[i]
		switch {
		case part.more:
			return false
		case part.kind == "input_text" && part.hasText:
			p.parts = append(p.parts, Part{Text: part.text, Loose: true})
		case part.kind == "input_image" && part.image != nil && (part.detail == nil || string(part.detail) == `"auto"`):
			image := imagePart(part.image)
			if m.Role != "tool" || part.detail != nil {
				image.Extra, image.Raw = true, autoDetail
			}
			p.parts = append(p.parts, image)
		default:
			return false
		}
	}
	m.Kind, m.Parts = PartsContent, p.addParts(p.parts)
	return true
}

// readParts reads a text or a list of parts. Null is as if it was absent.
func (p *parser) readParts() (list partList) {
	switch p.Peek() {
	case jsonscan.String:
		return partList{given: true, isText: true, text: p.string()}
	case jsonscan.Null:
		p.Skip()
		return partList{}
	case jsonscan.Array:
	default:
		p.skipUnread(WhyPart)
		return partList{}
	}

	list.given = true
	p.EachElement(func(int) {
		p.countPart()
		if p.Peek() != jsonscan.Object {
			p.skipUnread(WhyPart)
			return
		}
		list.parts = append(list.parts, p.itemPart())
	})
	return list
}

// itemPart reads one part.
func (p *parser) itemPart() (part itemPart) {
	p.object(func(key string) {
		switch key {
		case "type":
			part.kind = p.readText().value
		case "text":
			t := p.readText()
			part.text, part.hasText = t.value, t.given
		case "image_url":
			part.image = p.rawText()
		case "detail":
			part.detail = p.rawText()
		case "annotations", "logprobs":
			raw := bytes.TrimSpace(p.Skip())
			isEmpty := bytes.HasPrefix(raw, []byte("[")) && len(bytes.Trim(raw, "[] \t\r\n")) == 0
			part.more = part.more || !isEmpty && (key == "annotations" || string(raw) != "null")
		case "file_id", "prompt_cache_breakpoint":
			part.more = part.more || p.Peek() != jsonscan.Null
			p.Skip()
		default:
			p.Skip() // vLLM drops other members
		}
	})
	return part
}

// rawText returns the JSON of a string, and nil for a value of another kind.
func (p *parser) rawText() []byte {
	kind, from := p.Peek(), p.At
	p.Skip()
	if kind != jsonscan.String || p.Err != nil {
		return nil
	}
	return p.Src[from:p.At]
}

// stringOf returns bytes of the body as a string, without a copy.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
