package speculate

import (
	"github.com/stator-project/stator/internal/jsonscan"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// responses is the answer of Responses: a list of items, which a client sends back as they are. The first event of a stream has an empty
// list, and the last one the whole answer, so that the events between them need not be read:
//
//	{"type":"response.created","response":{"status":"in_progress","output":[]}}
//	{"type":"response.completed","response":{"status":"completed","output":[{"type":"message","role":"assistant","content":[…]}]}}
type responses struct{ output []byte }

func (r *responses) member(s *scanner) {
	switch string(s.key) {
	case "response": // of an event
		s.object("a response", func() { r.member(s) })
	case "output":
		if s.Peek() != jsonscan.Array {
			s.Fail("output is no list")
			return
		}
		s.answer.size -= len(r.output)
		r.output = append(r.output[:0], s.skip()...)
		s.answer.size += len(r.output)
	case "status":
		s.reason()
	default:
		s.skip()
	}
}

// ended does nothing: the status tells a whole answer from the first event.
func (r *responses) ended(*scanner) {}

func (r *responses) appendTurn(b []byte, thinking openai.Members, text string) (turn []byte, ok bool) {
	// Items are copied as they are, because the parser of requests accepts and refuses the forms that the engine does. Only the types and
	// the ids of calls are read.
	var called, id []byte // the type and the id of the first call
	a := answer{}
	s := scanner{Scanner: jsonscan.Scanner{Src: r.output, Depth: maxDepth}, answer: &a}
	before := len(b)
	s.EachElement(func(int) {
		s.SkipSpace()
		from := s.At
		var kind, callID []byte
		s.object("an item", func() {
			switch string(s.key) {
			case "type":
				s.text(&kind)
			case "call_id":
				s.text(&callID)
			default:
				s.skip()
			}
		})
		if string(kind) == "reasoning" && thinking == 0 {
			return
		}
		if len(b) > before {
			b = append(b, ',')
		}
		b = append(b, r.output[from:s.At]...)
		if called == nil && len(callID) > 0 {
			called, id = kind, callID
		}
	})
	switch {
	case s.Err != nil, len(b) == before: // without an item there is nothing to send back
		return b, false
	case called == nil:
		return appendUser(b, text), true
	}

	// The results of both types of call that clients answer have the name of the call with this end.
	b = openai.AppendString(append(b, `,{"type":`...), string(called)+"_output")
	b = openai.AppendString(append(b, `,"call_id":`...), string(id))
	b = openai.AppendString(append(b, `,"output":`...), text)
	return append(b, '}'), true
}
