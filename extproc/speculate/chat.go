package speculate

import (
	"github.com/stator-project/stator/internal/jsonscan"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// chat is the answer to a chat. Its events have parts of the texts, and whole answers all of them under another name.
type chat struct {
	content, reasoning []byte
	older              []byte // the thinking in its older member; an engine may send both
	calls              []call

	call  call // the parts of a call of a tool that the event has
	index int  // of that call; the place in the list if the event does not name it
}

// call is a call of a tool.
type call struct{ id, name, arguments []byte }

func (c *chat) member(s *scanner) {
	if string(s.key) != "choices" {
		s.skip()
		return
	}
	// A client that asks for several answers sends back one of them, and it is not known which.
	s.list("choices", func(i int) {
		if i > 0 {
			s.Fail("not one choice")
			return
		}
		s.object("a choice", func() { c.choiceMember(s) })
	})
}

// ended does nothing: the members of chats need no order.
func (c *chat) ended(*scanner) {}

// choiceMember reads a member of the choice.
func (c *chat) choiceMember(s *scanner) {
	switch string(s.key) {
	case "index":
		if string(s.skip()) != "0" {
			s.Fail("not the first choice")
		}
	case "delta", "message":
		s.object("the message", func() { c.messageMember(s) })
	case "finish_reason":
		s.reason()
	default:
		s.skip()
	}
}

// messageMember reads a member of the message, or of its next part.
func (c *chat) messageMember(s *scanner) {
	switch string(s.key) {
	case "content":
		s.text(&c.content)
	case "reasoning":
		s.text(&c.reasoning)
	case "reasoning_content":
		s.text(&c.older)
	case "tool_calls":
		if s.Peek() != jsonscan.Array {
			s.ExpectWord("null")
			return
		}
		s.EachElement(func(i int) { c.toolCall(s, i) })
	case "function_call":
		// No engine sends calls of this old form, which have no id, and whose results have a role of their own.
		if string(s.skip()) != "null" {
			s.Fail("a call of the old form")
		}
	default:
		s.skip()
	}
}

// toolCall reads a call of a tool, or its next part. Only parts have an index; whole calls come in their order.
func (c *chat) toolCall(s *scanner, i int) {
	c.call, c.index = call{}, i
	s.object("a call", func() { c.callMember(s) })
	if s.Err != nil || c.index >= maxParts || c.index > len(c.calls) {
		s.Fail("calls of tools are not in order")
		return
	}

	if c.index == len(c.calls) {
		c.calls = append(c.calls, call{})
	}
	to := &c.calls[c.index]
	to.id = append(to.id, c.call.id...)
	to.name = append(to.name, c.call.name...)
	to.arguments = append(to.arguments, c.call.arguments...)
}

// callMember reads a member of a call.
func (c *chat) callMember(s *scanner) {
	switch string(s.key) {
	case "index":
		c.index = s.index("a call")
	case "id":
		s.text(&c.call.id)
	case "type":
		var kind []byte
		s.text(&kind)
		if len(kind) > 0 && string(kind) != "function" {
			s.Fail("a call is of another type")
		}
	case "function":
		s.object("the function of a call", func() { c.functionMember(s) })
	default:
		s.skip()
	}
}

// functionMember reads the name or the arguments of a call.
func (c *chat) functionMember(s *scanner) {
	switch string(s.key) {
	case "name":
		s.text(&c.call.name)
	case "arguments":
		s.text(&c.call.arguments)
	default:
		s.skip()
	}
}

func (c *chat) appendTurn(b []byte, thinking openai.Members, text string) (turn []byte, ok bool) {
	b = append(b, `{"role":"assistant","content":`...)
	if len(c.calls) > 0 && len(c.content) == 0 { // engines send null then, and clients send it back
		b = append(b, "null"...)
	} else {
		b = openai.AppendString(b, string(c.content))
	}
	// The member that the client used before counts, and not the engine's: templates see both names.
	reasoning := c.reasoning
	if len(reasoning) == 0 {
		reasoning = c.older
	}
	if thinking != 0 && len(reasoning) > 0 {
		member := `,"reasoning":`
		if thinking&openai.FromReasoningContent != 0 {
			member = `,"reasoning_content":`
		}
		b = openai.AppendString(append(b, member...), string(reasoning))
	}
	if len(c.calls) == 0 {
		return appendUser(append(b, '}'), text), true
	}

	// Clients send the results of several calls in their order.
	b = c.appendCalls(append(b, `,"tool_calls":[`...))
	b = openai.AppendString(append(b, `]},{"role":"tool","tool_call_id":`...), string(c.calls[0].id))
	b = openai.AppendString(append(b, `,"content":`...), text)
	return append(b, '}'), true
}

// appendCalls appends the calls of tools, as elements of a list.
func (c *chat) appendCalls(b []byte) []byte {
	for i := range c.calls {
		if i > 0 {
			b = append(b, ',')
		}
		one := &c.calls[i]
		b = openai.AppendString(append(b, `{"id":`...), string(one.id))
		b = append(b, `,"type":"function","function":{"name":`...)
		b = openai.AppendString(b, string(one.name))
		b = openai.AppendString(append(b, `,"arguments":`...), string(one.arguments))
		b = append(b, "}}"...)
	}
	return b
}
