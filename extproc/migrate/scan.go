package migrate

import (
	"bytes"
	"math"

	"github.com/stator-project/stator/internal/jsonscan"
)

// span is a part of an event: from its first byte to the one before to.
type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

// The bounds of an event, above which it is not understood: its nesting, and its members that the stream passes on.
const (
	maxDepth = 32
	maxParts = 16
)

// event has the parts of an event that a stream needs. Texts refer to it.
type event struct {
	done, comment bool // data: [DONE]; a line that is no data
	failed        bool // the engine reports an error in place of tokens

	data    []byte // the JSON text
	at      int    // where it begins
	choices int
	usage   bool
	text    []byte // as it is in the JSON text, between the quotation marks
	textAt  int    // where the text begins in data, and where ids begin
	idsAt   int
	other   bool   // the delta has something else than text
	finish  []byte // the value of finish_reason; nil if it is null
	ids     []byte // the values of token_ids and prompt_token_ids; nil if they are missing or null
	prompt  []byte

	added []span // members that the request for ids has added
	head  []span // members of the event, without those that other fields have
	rest  []span // the same of the choice
}

// read reads an event. It returns false for one that is not understood. Its slices are used again.
func (e *event) read(raw []byte) bool {
	*e = event{added: e.added[:0], head: e.head[:0], rest: e.rest[:0]}
	if raw[0] == ':' {
		e.comment = true
		return true
	}
	const field = "data:"
	line, empty, _ := bytes.Cut(raw, []byte{'\n'})
	if !bytes.HasPrefix(line, []byte(field)) || len(bytes.TrimSpace(empty)) > 0 {
		return false
	}

	e.at = len(field)
	if e.at < len(line) && line[e.at] == ' ' {
		e.at++
	}
	e.data = bytes.TrimSuffix(line[e.at:], []byte{'\r'})
	if string(e.data) == "[DONE]" {
		e.done = true
		return true
	}
	s := scanner{Scanner: jsonscan.Scanner{Src: e.data, Depth: maxDepth}, event: e}
	if s.Peek() != jsonscan.Object {
		return false
	}
	s.Members(s.name, s.member)
	s.SkipSpace()
	return s.Err == nil && s.At == len(s.Src) && len(e.head) <= maxParts && len(e.rest) <= maxParts
}

// scanner reads the JSON text of an event once, and decodes nothing.
type scanner struct {
	jsonscan.Scanner
	event *event
	begin int    // of the member
	key   []byte // its name
}

// name reads the name of a member. Engines write names without escapes.
func (s *scanner) name() string {
	s.begin = s.At
	s.key = s.RawString()
	return ""
}

// value reads a value, and returns it with its member; nil if it is null.
func (s *scanner) value() ([]byte, span) {
	begin := s.begin
	s.SkipSpace()
	v := s.Skip()
	if string(v) == "null" {
		v = nil
	}
	return v, span{begin, s.At}
}

// member reads a member of the event.
func (s *scanner) member(string) {
	e := s.event
	switch string(s.key) {
	case "choices":
		if s.Peek() == jsonscan.Array {
			s.EachElement(s.choice)
			return
		}
		s.Fail("choices is no list")
	case "usage":
		v, _ := s.value()
		e.usage = v != nil
	case "error":
		v, _ := s.value()
		e.failed = e.failed || v != nil
	case "prompt_token_ids":
		v, at := s.value()
		e.prompt = v
		e.added = append(e.added, at)
	case "prompt_text": // vLLM adds it beside the ids
		s.Skip()
	default:
		_, at := s.value()
		if len(e.head) <= maxParts {
			e.head = append(e.head, at)
		}
	}
}

// choice reads a choice. Only streams with one are understood.
func (s *scanner) choice(int) {
	s.event.choices++
	if s.event.choices > 1 || s.Peek() != jsonscan.Object {
		s.Fail("not one choice")
		return
	}
	s.Members(s.name, s.choiceMember)
}

// choiceMember reads a member of the choice.
func (s *scanner) choiceMember(string) {
	e := s.event
	switch string(s.key) {
	case "index":
		if v, _ := s.value(); string(v) != "0" {
			s.Fail("not the first choice")
		}
	case "text":
		s.texts()
	case "delta":
		if s.Peek() != jsonscan.Object {
			s.Fail("the delta is no object")
			return
		}
		s.Members(s.name, s.deltaMember)
	case "token_ids", "prompt_token_ids":
		isPrompt := string(s.key) == "prompt_token_ids"
		v, at := s.value()
		e.added = append(e.added, at)
		if isPrompt {
			e.prompt = v
			return
		}
		e.ids, e.idsAt = v, at.to-len(v)
	default:
		isFinish := string(s.key) == "finish_reason"
		v, at := s.value()
		if isFinish {
			e.finish = v
			e.failed = e.failed || string(v) == `"abort"` || string(v) == `"error"`
		}
		if len(e.rest) <= maxParts {
			e.rest = append(e.rest, at)
		}
	}
}

// deltaMember reads a member of a chat's delta.
func (s *scanner) deltaMember(string) {
	switch string(s.key) {
	case "content":
		s.texts()
	case "role":
		s.Skip()
	default:
		v, _ := s.value()
		s.event.other = s.event.other || v != nil && string(v) != "[]"
	}
}

// texts reads the text of the event, or null.
func (s *scanner) texts() {
	if s.Peek() != jsonscan.String {
		s.ExpectWord("null")
		return
	}
	s.event.textAt = s.At + 1
	s.event.text = s.RawString()
}

// appendIDs appends the token ids of a JSON list. False means that it is none.
func appendIDs(dst []uint32, list []byte) (ids []uint32, ok bool) {
	s := jsonscan.Scanner{Src: list, Depth: 1}
	if s.Peek() != jsonscan.Array {
		return dst, false
	}
	s.EachElement(func(int) {
		n := uint64(0)
		s.SkipSpace()
		begin := s.At
		for s.At < len(list) && list[s.At]-'0' < 10 && n <= math.MaxInt32 {
			n = 10*n + uint64(list[s.At]-'0')
			s.At++
		}
		if s.At == begin || n > math.MaxInt32 {
			s.Fail("not a token id")
		}
		dst = append(dst, uint32(n))
	})
	return dst, s.Err == nil && s.At == len(list)
}

// endsInside reports whether the text of an event may end inside a character, for which engines write U+FFFD.
func endsInside(text []byte) bool {
	const length = len(`\ufffd`)
	return bytes.HasSuffix(text, []byte("\uFFFD")) ||
		len(text) >= length && bytes.EqualFold(text[len(text)-length:], []byte(`\ufffd`))
}
