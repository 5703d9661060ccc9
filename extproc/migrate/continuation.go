package migrate

import (
	"slices"
	"strconv"

	"github.com/stator-project/stator/internal/jsonscan"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// continuation is the state of the completion that continues a stream at another worker: how many ids it has to compute again, and the
// bytes of text that the client has of them.
type continuation struct {
	continues     bool
	again, skips  int
	news          int // tokens of the present worker, the first one included, without these
	scratch, text []byte
}

// Body returns the body of the completion that continues the stream at another worker, and begins that continuation. It is nil if the
// promise is lost, or the prompt is not known yet.
func (s *Stream) Body() []byte {
	if s.lost != "" || s.prompt == 0 {
		return nil
	}
	s.continues, s.news = true, 0
	if !s.request.exact { // other tokens may follow
		s.answer -= len(s.ids) - s.safe
		s.ids, s.tail = s.ids[:s.safe], 0
	}
	s.again, s.skips = len(s.ids)-s.safe, s.tail

	b := append(make([]byte, 0, len(s.request.members)+8*s.safe+128), '{')
	b = append(b, s.request.members...)
	b = append(b, `"prompt":`...)
	b = openai.AppendNumbers(b, s.ids[:s.safe])
	b = append(b, `,"max_tokens":`...)
	if s.request.most == 0 {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendInt(b, int64(s.request.most-(s.safe-s.prompt)), 10)
	}
	if s.request.usage {
		b = append(b, `,"stream_options":{"include_usage":true}`...)
	}
	return append(b, `,"stream":true,"return_token_ids":true}`...)
}

// passOn appends an event of a continuation in the form of the first worker's.
func (s *Stream) passOn(dst []byte) ([]byte, error) {
	e := &s.event
	switch {
	case e.choices == 0 && e.usage:
		return s.appendUsage(dst), nil
	case e.choices == 0:
		return dst, nil
	case e.ids == nil && len(e.text) > 0:
		s.lose(LostIDs)
	}

	added, again := 0, 0
	if e.ids != nil {
		added = s.add(e.ids)
		again = min(added, s.again)
		if s.lost == "" && !s.isSame(added, again) {
			return dst, ErrDiverged
		}
		added = s.count(added - again)
		s.again -= again
	}
	text := s.unwritten(e.text)
	if again == 0 && s.skips == 0 {
		s.settle(text, added)
	} else {
		s.tail += textLength(text)
	}

	if len(text) == 0 && added == 0 && e.finish == nil {
		return dst, nil
	}
	s.finished = s.finished || e.finish != nil
	return s.appendChunk(dst, text, added), nil
}

// isSame reports whether the first of the ids that were just added are those that the client has already, and removes them.
func (s *Stream) isSame(added, again int) bool {
	before := len(s.ids) - added
	had := s.ids[before-s.again:][:again]
	if !slices.Equal(s.ids[before:][:again], had) {
		return false
	}
	s.ids = slices.Delete(s.ids, before, before+again)
	return true
}

// unwritten returns the part of an event's text that the client does not have, as a part of a JSON text.
func (s *Stream) unwritten(text []byte) []byte {
	if s.skips == 0 || len(text) == 0 {
		return text
	}
	s.scratch = jsonscan.AppendText(s.scratch[:0], text)
	n := min(s.skips, len(s.scratch))
	s.skips -= n
	s.text = openai.AppendString(s.text[:0], string(s.scratch[n:]))
	return s.text[1 : len(s.text)-1]
}

// appendChunk appends an event with a text and the last ids.
func (s *Stream) appendChunk(dst, text []byte, added int) []byte {
	e := &s.event
	dst = append(append(dst, "data: {"...), s.head...)
	dst = append(dst, `"choices":[{"index":0,`...)
	if s.request.chat {
		dst = append(dst, `"delta":{"content":"`...)
		dst = append(append(dst, text...), `"}`...)
	} else {
		dst = append(dst, `"text":"`...)
		dst = append(append(dst, text...), '"')
	}
	for _, part := range e.rest {
		dst = append(append(dst, ','), part.of(e.data)...)
	}
	if s.request.ids && s.lost == "" {
		dst = openai.AppendNumbers(append(dst, `,"token_ids":`...), s.ids[len(s.ids)-added:])
	}
	return append(dst, "}]}\n\n"...)
}

// appendUsage appends the event with the usage of the whole stream.
func (s *Stream) appendUsage(dst []byte) []byte {
	s.counted = true
	dst = append(append(dst, "data: {"...), s.head...)
	dst = append(dst, `"choices":[],"usage":{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(s.prompt), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(s.prompt+s.answer), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(s.answer), 10)
	return append(dst, "}}\n\n"...)
}
