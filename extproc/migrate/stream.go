package migrate

import (
	"bytes"
	"errors"

	"github.com/stator-project/stator/internal/jsonscan"
)

// Loss is the reason why a stream has lost its promise; empty for none.
type Loss string

// The reasons.
const (
	LostRoom      Loss = "budget"    // there is no room for its ids
	LostIDs       Loss = "no_ids"    // tokens came without ids
	LostDelta     Loss = "delta"     // the answer has another part than text: reasoning, or a call of a tool
	LostMalformed Loss = "malformed" // an event is not understood
	LostLarge     Loss = "large"     // an event is larger than MaxEvent
)

// Losses returns all reasons.
func Losses() []Loss { return []Loss{LostRoom, LostIDs, LostDelta, LostMalformed, LostLarge} }

var (
	// ErrBroken means that the engine reports an error in place of the next tokens.
	ErrBroken = errors.New("the engine has ended the stream with an error")
	// ErrDiverged means that a continuation has other tokens than the worker before it.
	ErrDiverged = errors.New("the worker that continues the stream computes other tokens for it")
)

// Stream is the state of a stream whose promise holds, and of its continuations.
type Stream struct {
	request  *Request
	memory   Memory
	reserved int
	lost     Loss
	event    event
	form     form // of the first worker's events

	// ids are of the prompt and of the tokens so far, until the promise is lost. prompt and answer count them. safe is the number of ids
	// that the prompt of a continuation has, and tail the bytes of text that the client has of the others.
	ids            []uint32
	prompt, answer int
	safe, tail     int

	head            []byte // members of the first event, for those of continuations
	finished, ended bool   // finish_reason was passed on; [DONE] was
	counted         bool   // usage was passed on

	continuation
}

// NewStream returns the state of the answer to a request.
func NewStream(r *Request, m Memory) *Stream { return &Stream{request: r, memory: m} }

// Lost returns the reason why the stream is not continued any more; empty if it is.
func (s *Stream) Lost() Loss { return s.lost }

// Finished reports whether the client has all tokens: nothing is left that a worker must compute.
func (s *Stream) Finished() bool {
	return s.finished || s.lost == "" && s.request.most > 0 && s.answer >= s.request.most
}

// Ended reports whether the client has the whole stream.
func (s *Stream) Ended() bool { return s.ended }

// News returns the number of tokens that the present worker has added.
func (s *Stream) News() int { return s.news }

// Free gives the memory of the ids back.
func (s *Stream) Free() {
	s.memory.Free(s.reserved)
	s.reserved, s.ids = 0, nil
}

// lose ends the promise.
func (s *Stream) lose(why Loss) {
	if s.lost == "" {
		s.lost = why
		s.Free()
	}
}

// Pass appends to dst the client's form of an event of the worker, which is whole unless it is a piece of a large one. With ErrBroken
// and ErrDiverged nothing is appended.
func (s *Stream) Pass(dst, raw []byte, whole bool) ([]byte, error) {
	e := &s.event
	if whole && !s.continues && s.form.read(raw, e) {
		s.keep()
		return s.appendWithoutIDs(dst, raw), nil
	}

	switch {
	case !whole:
		s.lose(LostLarge)
	case !e.read(raw):
		s.lose(LostMalformed)
	case e.comment:
	case e.done:
		s.ended = true
	case e.failed && s.lost == "" && s.prompt > 0: // before the prompt is known, an error may be the client's fault
		return dst, ErrBroken
	case s.continues && !e.failed:
		return s.passOn(dst)
	default:
		s.keep()
		s.form.keep(raw, e)
		s.finished = s.finished || e.finish != nil
		s.counted = s.counted || e.usage
		return s.appendWithoutIDs(dst, raw), nil
	}

	return append(dst, raw...), nil
}

// keep keeps the parts of the first worker's event that continuations need.
func (s *Stream) keep() {
	e := &s.event
	if s.lost != "" || e.choices == 0 {
		return
	}
	if s.head == nil {
		for _, part := range e.head {
			s.head = append(append(s.head, part.of(e.data)...), ',')
		}
	}
	if e.prompt != nil && s.prompt == 0 {
		s.add(e.prompt)
		if s.lost != "" {
			return
		}
		s.prompt = len(s.ids)
		s.safe = s.prompt
	}

	switch {
	case e.other:
		s.lose(LostDelta)
	case len(s.head) > maxMembers:
		s.lose(LostMalformed)
	case s.prompt == 0, e.ids == nil && len(e.text) > 0, e.ids == nil && s.answer > 0 && e.finish == nil:
		s.lose(LostIDs)
	case e.ids != nil:
		s.settle(e.text, s.count(s.add(e.ids)))
	}
}

// count counts tokens of the answer, and returns their number.
func (s *Stream) count(tokens int) int {
	s.answer += tokens
	s.news += tokens
	return tokens
}

// settle records the text of the last ids, which are safe or not.
func (s *Stream) settle(text []byte, ids int) {
	isSafe := ids == 1 || !s.request.exact
	if isSafe && len(text) > 0 && !endsInside(text) {
		s.safe, s.tail = len(s.ids), 0
		return
	}
	s.tail += textLength(text)
}

// add appends ids, and returns their number. The promise may be lost with them.
func (s *Stream) add(list []byte) (count int) {
	count = bytes.Count(list, []byte{','}) + 1
	if s.lost != "" {
		return count
	}
	if needed := len(s.ids) + count; needed > cap(s.ids) {
		const size, least = 4, 64 // bytes of an id, and ids
		room := needed + needed/8 + least
		more := size * (room - cap(s.ids))
		if !s.memory.Reserve(more) {
			s.lose(LostRoom)
			return count
		}
		s.reserved += more
		s.ids = append(make([]uint32, 0, room), s.ids...)
	}

	ids, ok := appendIDs(s.ids, list)
	if !ok {
		s.lose(LostMalformed)
		return 0
	}
	count = len(ids) - len(s.ids)
	s.ids = ids
	return count
}

// appendWithoutIDs appends an event without the members that the request for ids has added.
func (s *Stream) appendWithoutIDs(dst, raw []byte) []byte {
	if s.request.ids || len(s.event.added) == 0 {
		return append(dst, raw...)
	}
	at := 0
	for _, cut := range s.event.added {
		dst = append(dst, raw[at:s.event.at+cut.from]...)
		at = s.event.at + cut.to
		for raw[at] == ' ' {
			at++
		}
		if raw[at] == ',' {
			at++
			continue
		}
		dst = bytes.TrimRight(dst, " ") // it was the last member
		dst = bytes.TrimSuffix(dst, []byte{','})
	}
	return append(dst, raw[at:]...)
}

// Close appends the missing end of a stream that is finished and has broken off: the reason, the usage, and [DONE].
func (s *Stream) Close(dst []byte) []byte {
	if !s.finished {
		s.event.data = []byte(`"logprobs":null,"finish_reason":"length"`)
		s.event.rest = append(s.event.rest[:0], span{0, len(s.event.data)})
		dst = s.appendChunk(dst, nil, 0)
	}
	if s.request.usage && !s.counted && s.prompt > 0 {
		dst = s.appendUsage(dst)
	}
	s.finished, s.ended = true, true
	return append(dst, "data: [DONE]\n\n"...)
}

// textLength returns the bytes of a text that is a part of a JSON text.
func textLength(text []byte) int {
	if bytes.IndexByte(text, '\\') < 0 {
		return len(text)
	}
	return len(jsonscan.AppendText(nil, text))
}
