package openai

import (
	"bytes"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/jsonscan"
	"github.com/zeebo/xxh3"
)

// messagesField reads the value of one top-level key of Messages.
func (p *parser) messagesField(key string) {
	switch key {
	case "model", "stream", "max_tokens", "cache_salt", "nvext", "chat_template_kwargs":
		p.field(key)
	case "messages":
		p.anthropicMessages()
	case "system":
		p.anthropicSystem()
	case "tools":
		p.req.Tools = p.rawOrNull(key, jsonscan.Array)
	case "thinking":
		p.req.ThinkingDisabled = false
		if kind, ok := p.stringIn("type"); ok && !slices.Contains([]string{"enabled", "disabled", "adaptive"}, kind) {
			p.unread(WhyField)
		} else {
			p.req.ThinkingDisabled = kind == "disabled"
		}
	case "output_config":
		p.req.ReasoningEffort, _ = p.stringIn("effort")
		p.checkEffort("", "low", "medium", "high", "xhigh", "max")
	default:
		p.Skip()
	}
}

// checkEffort leaves a request unread whose effort is not one of a list.
func (p *parser) checkEffort(known ...string) {
	if !slices.Contains(known, p.req.ReasoningEffort) {
		p.req.ReasoningEffort = ""
		p.unread(WhyField)
	}
}

// block is a content block of Messages, with its members of all types, because the type may come last.
type block struct {
	kind string
	// text is the text of a block of type text or thinking; hasText is set unless it is absent or null.
	text    string
	hasText bool
	// id, callID and name are of a use of a tool and its result.
	id, callID, name string
	// input is the raw JSON of the arguments of a tool, and source of an image; nil if absent or null.
	input, source []byte
	// result is the text of a tool's result, and images and references its other items.
	result             string
	images, references []Part
}

// anthropicMessages reads the conversation.
func (p *parser) anthropicMessages() {
	p.startMessages()
	p.hasMessages = false
	if !p.expectKind("messages", jsonscan.Array, "an array of objects") {
		return
	}
	p.hasMessages = true
	p.EachElement(func(int) {
		if p.Peek() != jsonscan.Object {
			p.skipUnread(WhyPart)
			return
		}
		p.anthropicMessage()
	})
}

// anthropicMessage reads one message.
func (p *parser) anthropicMessage() {
	role, text := "", ""
	isText, isList := false, false
	p.object(func(key string) {
		switch key {
		case "role":
			role, _ = p.textOrNull(WhyPart)
		case "content":
			p.blocks = p.blocks[:0]
			isText, isList = p.Peek() == jsonscan.String, p.Peek() == jsonscan.Array
			switch {
			case isText:
				text = p.string()
			case isList:
				p.EachElement(func(int) { p.block() })
			default:
				p.skipUnread(WhyPart)
			}
		default:
			p.Skip()
		}
	})

	known := role == "user" || role == "assistant" || role == "system"
	if !known || !isText && !isList {
		p.unread(WhyPart)
	}
	switch {
	case p.Err != nil || p.req.Unread != WhyRead:
	case role == "system":
		if isText && !strings.HasPrefix(text, billingPrefix) {
			p.addSystemMessage(text)
		} else if isList {
			p.addSystemMessage(p.systemText())
		}
	case isText:
		p.addMessage(Message{Role: role, Kind: TextContent, Content: text})
	default:
		p.addBlocks(role)
	}
}

// billingPrefix begins a system text that Claude Code adds, and that differs in every request. vLLM leaves the text out.
const billingPrefix = "x-anthropic-billing-header"

// addSystemMessage adds a system message within the conversation, unless it is empty.
func (p *parser) addSystemMessage(text string) {
	if text != "" {
		p.addMessage(Message{Role: "system", Kind: TextContent, Content: text})
	}
}

// systemText joins the text blocks of a system prompt.
func (p *parser) systemText() string {
	p.texts = p.texts[:0]
	for i := range p.blocks {
		b := &p.blocks[i]
		switch {
		case b.kind == "tool_addition" || b.kind == "tool_removal":
			p.unread(WhyTool)
		case b.kind == "text" && !strings.HasPrefix(b.text, billingPrefix):
			p.texts = append(p.texts, b.text)
		}
	}
	return strings.Join(p.texts, "")
}

// anthropicSystem reads the member system.
func (p *parser) anthropicSystem() {
	p.system = ""
	p.blocks = p.blocks[:0]
	switch p.Peek() {
	case jsonscan.String:
		p.system = p.string()
	case jsonscan.Array:
		p.EachElement(func(int) { p.block() })
		p.system = p.systemText()
	case jsonscan.Null:
		p.Skip()
	default:
		p.skipUnread(WhyPart)
	}
}

// block reads one content block into p.blocks.
func (p *parser) block() {
	p.countPart()
	if p.Peek() != jsonscan.Object {
		p.skipUnread(WhyPart)
		return
	}

	var b block
	var text, thinking string
	var hasText, hasThinking bool
	p.object(func(key string) {
		switch key {
		case "type":
			b.kind, _ = p.textOrNull(WhyPart)
		case "text":
			text, hasText = p.textOrNull(WhyPart)
		case "thinking":
			thinking, hasThinking = p.textOrNull(WhyPart)
		case "id":
			b.id, _ = p.textOrNull(WhyPart)
		case "tool_use_id":
			b.callID, _ = p.textOrNull(WhyPart)
		case "name":
			b.name, _ = p.textOrNull(WhyPart)
		case "input":
			b.input = p.objectOrNull()
		case "source":
			b.source = p.objectOrNull()
		case "content":
			p.toolResult(&b)
		default:
			p.Skip()
		}
	})
	b.text, b.hasText = text, hasText
	if b.kind == "thinking" {
		b.text, b.hasText = thinking, hasThinking
	}
	p.blocks = append(p.blocks, b)
}

// toolResult reads the content of a tool's result: a string, or a list of items. Items of other types are left out.
func (p *parser) toolResult(b *block) {
	b.result = ""
	b.images = nil
	b.references = nil

	if p.Peek() != jsonscan.Array {
		b.result, _ = p.textOrNull(WhyPart)
		return
	}

	p.texts = p.texts[:0]
	p.EachElement(func(int) {
		p.countPart()
		if p.Peek() != jsonscan.Object {
			p.skipUnread(WhyPart)
			return
		}
		var kind, text, reference, name string
		var source []byte
		p.object(func(key string) {
			switch key {
			case "type":
				kind, _ = p.textOrNull(WhyPart)
			case "text":
				text, _ = p.textOrNull(WhyPart)
			case "source":
				source = p.objectOrNull()
			case "tool_name":
				reference, _ = p.textOrNull(WhyPart)
			case "name":
				name, _ = p.textOrNull(WhyPart)
			default:
				p.Skip()
			}
		})

		if reference == "" {
			reference = name
		}
		switch {
		case kind == "text":
			p.texts = append(p.texts, text)
		case kind == "image" && source == nil:
			p.unread(WhyPart)
		case kind == "image":
			b.images = append(b.images, imagePart(source))
		case kind == "tool_reference" && reference != "":
			b.references = append(b.references, Part{Type: ReferencePart, Text: reference})
		}
	})
	b.result = strings.Join(p.texts, "\n")
}

// imagePart returns the part of an image. Equal sources are equal images.
func imagePart(source []byte) Part { return Part{Type: ImagePart, Hash: xxh3.Hash128(source).Bytes()} }

// addBlocks adds the messages that the blocks of a message of a user or an assistant make. Results of tools precede the rest.
func (p *parser) addBlocks(role string) {
	own := Message{Role: role}
	p.parts, p.texts = p.parts[:0], p.texts[:0]
	for i := range p.blocks {
		b := &p.blocks[i]
		fits := true
		switch b.kind {
		case "text":
			if b.text != "" {
				p.parts = append(p.parts, Part{Text: b.text})
			}
		case "image":
			fits = role == "user"
			if len(bytes.Trim(b.source, "{} \t\r\n")) > 0 {
				p.parts = append(p.parts, imagePart(b.source))
			}
		case "thinking":
			fits = role == "assistant"
			if b.hasText {
				p.texts = append(p.texts, b.text)
				own.Has |= ReasoningMember
			}
		case "tool_use":
			fits = role == "assistant" && b.id != ""
			own.Calls = append(own.Calls, Call{ID: b.id, Name: b.name, Arguments: stringOf(b.input)})
		case "tool_result":
			fits = role == "user"
			p.addToolResult(b)
		case "redacted_thinking", "tool_reference":
		default:
			fits = false
		}
		if !fits {
			p.unread(WhyPart)
			return
		}
	}

	own.Reasoning = strings.Join(p.texts, "")
	p.setContent(&own, p.parts)
	if role == "assistant" || own.Kind != NoContent {
		p.addMessage(own)
	}
}

// addToolResult adds the messages of a tool's result: its text, its images as a message of the user, and the tools to which it refers.
func (p *parser) addToolResult(b *block) {
	answer := Message{Role: "tool", ToolCallID: b.callID, Has: ToolCallIDMember}
	text := answer
	text.Kind, text.Content = TextContent, b.result
	p.addMessage(text)
	if len(b.images) > 0 {
		p.addMessage(Message{Role: "user", Kind: PartsContent, Parts: p.addParts(b.images)})
	}
	if len(b.references) > 0 {
		answer.Kind, answer.Parts = PartsContent, p.addParts(b.references)
		p.addMessage(answer)
	}
}
