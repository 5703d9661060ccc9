package speculate

import (
	"bytes"
	"strconv"

	"github.com/stator-project/stator/internal/jsonscan"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

const (
	// MaxAnswer bounds an answer in bytes: its texts together, each line of a stream, and the JSON text of one that is no stream. The last
	// event of a response has the whole answer, and the instructions and tools of the request.
	MaxAnswer = 1 << 20
	// maxDepth bounds the nesting of an answer's JSON text, and maxParts its calls of tools, or the blocks of a message.
	maxDepth = 64
	maxParts = 128
)

// answer reads an answer, in the pieces in which it comes.
type answer struct {
	form   form
	stream bool
	held   []byte // a line that is not complete; of an answer that is no stream, all of it
	size   int    // bytes of all texts
	// failed means that the answer cannot be read, and large that it is too long.
	failed, large bool
	finish        string // the reason of its end, in the words of its API; empty before
}

// form is the form that an API gives to answers. It keeps what a client sends back.
type form interface {
	// member reads a member of an event of a stream, or of a whole answer.
	member(s *scanner)
	// ended is called after all members of an event or an answer, because the member that names its kind may come last.
	ended(s *scanner)
	// appendTurn appends the answer and a message after it, as elements of the list of the next request. That message is a tool's result
	// with the text, or a user's. The thinking is left out unless clients send it back in these members. ok is false if the answer cannot
	// be sent back.
	appendTurn(b []byte, thinking openai.Members, text string) (turn []byte, ok bool)
}

// newAnswer returns an answer of an API.
func newAnswer(endpoint prompt.Endpoint, stream bool) answer {
	a := answer{stream: stream}
	switch endpoint {
	case prompt.Messages:
		a.form = &messages{}
	case prompt.Responses:
		a.form = &responses{}
	default:
		a.form = &chat{}
	}
	return a
}

// write reads the next piece.
func (a *answer) write(piece []byte) {
	if !a.stream {
		a.hold(piece)
		return
	}

	// A piece may end anywhere, also within a character.
	for len(piece) > 0 && !a.failed && !a.large {
		line, rest, ended := bytes.Cut(piece, []byte{'\n'})
		piece = rest
		if !ended {
			a.hold(line)
			return
		}
		// Most lines are in one piece, and need no copy.
		if len(a.held) > 0 {
			a.hold(line)
			line = a.held
		}
		if !a.large {
			a.line(line)
		}
		a.held = a.held[:0]
	}
}

// hold keeps bytes until the rest has come.
func (a *answer) hold(b []byte) {
	a.large = a.large || len(a.held)+len(b) > MaxAnswer
	if !a.large {
		a.held = append(a.held, b...)
	}
}

// line reads a line of a stream. Comments are skipped, and the names of events, which the events of both APIs with names repeat.
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
	return !a.failed && !a.large && isWhole(a.finish)
}

// isWhole reports whether an answer with that reason for its end is whole for its client. One that has met its bound of tokens is: the
// client sends it back as it is. After other reasons, such as abort, a client asks for the answer again.
func isWhole(finish string) bool {
	switch finish {
	case "stop", "length", "tool_calls", "function_call", // of chats
		"end_turn", "max_tokens", "tool_use", "stop_sequence", // of messages
		"completed", "incomplete": // the status of responses
		return true
	}
	return false
}

// read reads an event of a stream, or a whole answer. After an error the rest is not read: a turn with a part of an answer would be
// computed in vain.
func (a *answer) read(data []byte) {
	s := scanner{Scanner: jsonscan.Scanner{Src: data, Depth: maxDepth}, answer: a}
	s.object("an answer", s.member)
	s.SkipSpace()
	if s.Err == nil && s.At == len(data) {
		a.form.ended(&s)
	}
	a.failed = a.failed || s.Err != nil || s.At != len(data)
	a.large = a.large || a.size > MaxAnswer
}

// scanner reads the JSON text of an event, or of an answer.
type scanner struct {
	jsonscan.Scanner
	answer *answer
	key    []byte // the name of the present member
}

// member reads a member of the event. All three APIs have the same for an error, also after the answer has begun.
func (s *scanner) member() {
	if string(s.key) == "error" {
		s.answer.failed = s.answer.failed || string(s.skip()) != "null"
		return
	}
	s.answer.form.member(s)
}

// object reads an object, and calls member for each of its members. Engines write names without escapes, so that they are not decoded.
func (s *scanner) object(name string, member func()) {
	if s.Peek() != jsonscan.Object {
		s.Fail(name + " is no object")
		return
	}
	key := func() string {
		s.key = s.RawString()
		return ""
	}
	s.Members(key, func(string) { member() })
}

// list reads a list, and calls element before each of its elements.
func (s *scanner) list(name string, element func(i int)) {
	if s.Peek() != jsonscan.Array {
		s.Fail(name + " is no list")
		return
	}
	s.EachElement(element)
}

// index reads the index of a part of the answer.
func (s *scanner) index(name string) int {
	index, err := strconv.ParseUint(string(s.skip()), 10, 16)
	if err != nil {
		s.Fail("the index of " + name + " is no number")
	}
	return int(index)
}

// skip reads a value, and returns it.
func (s *scanner) skip() []byte {
	s.SkipSpace()
	return s.Skip()
}

// text appends a text to dst; nothing for null. All texts count, also the ones that are sent back in no case, because all of them are
// held.
func (s *scanner) text(dst *[]byte) {
	if s.Peek() != jsonscan.String {
		s.ExpectWord("null")
		return
	}
	before := len(*dst)
	*dst = s.AppendString(*dst)
	s.answer.size += len(*dst) - before
}

// reason reads the reason for the end of the answer. It is null in all events but one.
func (s *scanner) reason() {
	var reason []byte
	s.text(&reason)
	if len(reason) > 0 {
		s.answer.finish = string(reason)
	}
}

// appendUser appends a message of a user, which has the same form in all three APIs.
func appendUser(b []byte, text string) []byte {
	return append(openai.AppendString(append(b, `,{"role":"user","content":`...), text), '}')
}
