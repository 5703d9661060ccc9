package speculate

import (
	"bytes"
	"strconv"

	"github.com/stator-project/stator/internal/jsonscan"
	"github.com/stator-project/stator/internal/prompt/openai"
)

const (
	// MaxAnswer bounds the texts of an answer, and the JSON text of one that is no stream, in bytes.
	MaxAnswer = 1 << 20
	// maxLine bounds a line of a stream, in bytes.
	maxLine = 64 << 10
	// maxDepth bounds the nesting of an answer's JSON text, and maxCalls its calls of tools.
	maxDepth = 64
	maxCalls = 128
)

// answer reads a chat's answer, in the pieces in which it comes.
type answer struct {
	stream bool
	held   []byte // a line that is not complete; of an answer that is no stream, all of it
	size   int    // bytes of all texts
	// failed means that the answer cannot be read, and large that it is too long.
	failed, large bool

	content, reasoning []byte
	older              []byte // the thinking in its older member; an engine may send both
	calls              []call
	finish             string // the reason of its end; empty before
}

// call is a call of a tool.
type call struct{ id, name, arguments []byte }

// write reads the next piece.
func (a *answer) write(piece []byte) {
	if !a.stream {
		a.large = a.large || len(a.held)+len(piece) > MaxAnswer
		if !a.large {
			a.held = append(a.held, piece...)
		}
		return
	}

	// A piece may end anywhere, also within a character.
	for len(piece) > 0 && !a.failed && !a.large {
		line, rest, ended := bytes.Cut(piece, []byte{'\n'})
		piece = rest
		if len(a.held)+len(line) > maxLine {
			a.large = true
			return
		}
		if !ended {
			a.held = append(a.held, line...)
			return
		}
		if len(a.held) > 0 {
			a.held = append(a.held, line...)
			line = a.held
		}
		a.line(line)
		a.held = a.held[:0]
	}
}

// line reads a line of a stream. Comments and the names of events are skipped.
func (a *answer) line(line []byte) {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	data = bytes.TrimSpace(data)
	if ok && len(data) > 0 && string(data) != "[DONE]" {
		a.read(data)
	}
}

// end reports whether the answer was read to its end. Nothing must be written after it.
func (a *answer) end() bool {
	if !a.stream && !a.large {
		a.read(a.held)
	}
	// Other reasons, such as abort, are no whole answers. One that has met its bound of tokens is whole for its client.
	switch a.finish {
	case "stop", "length", "tool_calls", "function_call":
		return !a.failed && !a.large
	}
	return false
}

// message returns the answer as a client sends it back, with its thinking if the client sends that back.
func (a *answer) message(thinking openai.Members) openai.Message {
	m := openai.Message{Role: "assistant", Kind: openai.TextContent, Content: string(a.content)}
	reasoning := a.reasoning
	if len(reasoning) == 0 {
		reasoning = a.older
	}
	if thinking != 0 && len(reasoning) > 0 {
		m.Has |= thinking
		m.Reasoning = string(reasoning)
	}
	if len(a.calls) == 0 {
		return m
	}

	m.Has |= openai.OwnMembers
	m.ToolCalls = a.appendCalls(nil)
	if m.Content == "" { // engines send null then, and clients send it back
		m.Kind = openai.NoContent
		m.Has |= openai.NullContent
	}
	return m
}

// appendCalls appends the JSON text of the calls of tools.
func (a *answer) appendCalls(b []byte) []byte {
	b = append(b, '[')
	for i := range a.calls {
		if i > 0 {
			b = append(b, ',')
		}
		c := &a.calls[i]
		b = openai.AppendString(append(b, `{"id":`...), string(c.id))
		b = append(b, `,"type":"function","function":{"name":`...)
		b = openai.AppendString(b, string(c.name))
		b = openai.AppendString(append(b, `,"arguments":`...), string(c.arguments))
		b = append(b, "}}"...)
	}
	return append(b, ']')
}

// read reads an event of a stream, or a whole answer.
func (a *answer) read(data []byte) {
	s := scanner{Scanner: jsonscan.Scanner{Src: data, Depth: maxDepth}, answer: a}
	if s.Peek() != jsonscan.Object {
		a.failed = true
		return
	}
	s.Members(s.name, s.member)
	s.SkipSpace()
	a.failed = a.failed || s.Err != nil || s.At != len(data)
	a.large = a.large || a.size > MaxAnswer
}

// scanner reads the JSON text of an event, or of an answer.
type scanner struct {
	jsonscan.Scanner
	answer *answer
	key    []byte // the name of the present member
	call   call   // the parts of a call of a tool that the event has
	index  int    // of that call; -1 if the event does not name it
}

// name reads the name of a member. Engines write names without escapes.
func (s *scanner) name() string {
	s.key = s.RawString()
	return ""
}

// member reads a member of the event.
func (s *scanner) member(string) {
	switch string(s.key) {
	case "choices":
		if s.Peek() != jsonscan.Array {
			s.Fail("choices is no list")
			return
		}
		s.EachElement(func(i int) {
			if i > 0 || s.Peek() != jsonscan.Object {
				s.Fail("not one choice")
				return
			}
			s.Members(s.name, s.choiceMember)
		})
	case "error":
		s.SkipSpace()
		s.answer.failed = s.answer.failed || string(s.Skip()) != "null"
	default:
		s.SkipSpace()
		s.Skip()
	}
}

// choiceMember reads a member of the choice.
func (s *scanner) choiceMember(string) {
	switch string(s.key) {
	case "index":
		s.SkipSpace()
		if string(s.Skip()) != "0" {
			s.Fail("not the first choice")
		}
	case "delta", "message":
		if s.Peek() != jsonscan.Object {
			s.Fail("the message is no object")
			return
		}
		s.Members(s.name, s.messageMember)
	case "finish_reason":
		var reason []byte
		s.text(&reason)
		if len(reason) > 0 {
			s.answer.finish = string(reason)
		}
	default:
		s.SkipSpace()
		s.Skip()
	}
}

// messageMember reads a member of the message, or of its next part.
func (s *scanner) messageMember(string) {
	a := s.answer
	switch string(s.key) {
	case "content":
		s.text(&a.content)
	case "reasoning":
		s.text(&a.reasoning)
	case "reasoning_content":
		s.text(&a.older)
	case "tool_calls":
		if s.Peek() != jsonscan.Array {
			s.ExpectWord("null")
			return
		}
		s.EachElement(s.toolCall)
	case "function_call":
		s.SkipSpace()
		if string(s.Skip()) != "null" {
			s.Fail("a call of the old form")
		}
	default:
		s.SkipSpace()
		s.Skip()
	}
}

// toolCall reads a call of a tool, or its next part. Only parts have an index; whole calls come in their order.
func (s *scanner) toolCall(i int) {
	if s.Peek() != jsonscan.Object {
		s.Fail("a call is no object")
		return
	}
	a := s.answer
	s.call, s.index = call{}, i
	s.Members(s.name, s.callMember)
	if s.Err != nil || s.index >= maxCalls || s.index > len(a.calls) {
		s.Fail("calls of tools are not in order")
		return
	}

	if s.index == len(a.calls) {
		a.calls = append(a.calls, call{})
	}
	c := &a.calls[s.index]
	c.id = append(c.id, s.call.id...)
	c.name = append(c.name, s.call.name...)
	c.arguments = append(c.arguments, s.call.arguments...)
}

// callMember reads a member of a call.
func (s *scanner) callMember(string) {
	switch string(s.key) {
	case "index":
		s.SkipSpace()
		index, err := strconv.ParseUint(string(s.Skip()), 10, 16)
		if err != nil {
			s.Fail("the index of a call is no number")
			return
		}
		s.index = int(index)
	case "id":
		s.text(&s.call.id)
	case "type":
		var kind []byte
		s.text(&kind)
		if len(kind) > 0 && string(kind) != "function" {
			s.Fail("a call is of another type")
		}
	case "function":
		if s.Peek() != jsonscan.Object {
			s.Fail("the function of a call is no object")
			return
		}
		s.Members(s.name, s.functionMember)
	default:
		s.SkipSpace()
		s.Skip()
	}
}

// functionMember reads the name or the arguments of a call.
func (s *scanner) functionMember(string) {
	switch string(s.key) {
	case "name":
		s.text(&s.call.name)
	case "arguments":
		s.text(&s.call.arguments)
	default:
		s.SkipSpace()
		s.Skip()
	}
}

// text appends a text to dst; nothing for null.
func (s *scanner) text(dst *[]byte) {
	if s.Peek() != jsonscan.String {
		s.ExpectWord("null")
		return
	}
	before := len(*dst)
	*dst = s.AppendString(*dst)
	s.answer.size += len(*dst) - before
}
