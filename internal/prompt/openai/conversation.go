package openai

import (
	"slices"
	"strconv"
)

// addSystem adds the text of the system prompt as the first message.
func (p *parser) addSystem() {
	if p.system != "" {
		p.req.Messages = slices.Insert(p.req.Messages, 0, Message{Role: "system", Kind: TextContent, Content: p.system})
	}
	if len(p.req.Messages) == 0 {
		p.unread(WhyForm)
	}
}

// startMessages begins a list of messages, and forgets an earlier value of a repeated key.
func (p *parser) startMessages() {
	clear(p.req.Messages)
	p.req.Messages = p.req.Messages[:0]
}

// addMessage adds a message to the conversation. It fails and returns false for one beyond the limit.
func (p *parser) addMessage(m Message) bool {
	p.messageCount++
	if p.messageCount > p.lim.Messages {
		p.failInvalid(p.listName(), "holds more than "+strconv.Itoa(p.lim.Messages)+" messages")
		return false
	}
	p.req.Messages = append(p.req.Messages, m)
	return true
}

// countPart counts one more part of a message. It fails and returns false for one beyond the limit.
func (p *parser) countPart() bool {
	p.partCount++
	if p.partCount > p.lim.Parts {
		p.failInvalid(p.listName(), "holds more than "+strconv.Itoa(p.lim.Parts)+" parts in all messages")
		return false
	}
	return true
}

// listName is the member with the conversation.
func (p *parser) listName() string {
	if p.req.Endpoint == Responses {
		return "input"
	}
	return "messages"
}

// addParts stores the parts of one message in the memory of the request.
func (p *parser) addParts(parts []Part) []Part {
	all := &p.req.memory.parts
	from := len(*all)
	*all = append(*all, parts...)
	return (*all)[from:len(*all):len(*all)]
}

// setContent sets the content of a message to parts. A text alone is a string, as vLLM has it, and no parts are no content.
func (p *parser) setContent(m *Message, parts []Part) {
	switch {
	case len(parts) == 1 && parts[0].Type == TextPart:
		m.Kind, m.Content = TextContent, parts[0].Text
	case len(parts) > 0:
		m.Kind, m.Parts = PartsContent, p.addParts(parts)
	}
}
