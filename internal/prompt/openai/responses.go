package openai

import (
	"bytes"
	"slices"

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
