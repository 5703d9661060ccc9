package speculate

import (
	"encoding/json"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// messages is the answer of Messages: a list of content blocks. A stream opens each block with an event, and sends its text in deltas:
//
//	{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}
//	{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}
//	{"type":"message_delta","delta":{"stop_reason":"end_turn"}}
type messages struct {
	blocks []block
	// event has the members of an event of a stream, until its type is known.
	event struct {
		kind  []byte
		index int
		part  block // of content_block or delta
	}
}

// block is a content block, or the next part of one.
type block struct {
	kind, id, name, text []byte
	// input is the JSON text of a tool's arguments. A stream has it in pieces of text.
	input []byte
}

func (m *messages) member(s *scanner) {
	switch string(s.key) {
	case "type":
		m.event.kind = nil
		s.text(&m.event.kind)
	case "index":
		m.event.index = s.index("a block")
	case "content_block", "delta":
		m.event.part = block{}
		s.object("a block", func() { m.event.part.member(s) })
	case "content": // of a whole answer
		s.list("content", func(int) {
			var b block
			s.object("a block", func() { b.member(s) })
			m.add(s, b)
		})
	case "stop_reason": // of a whole answer
		s.reason()
	default:
		s.skip()
	}
}

// member reads a member of a block, or of a delta. The deltas of a block have other names for the same texts.
func (b *block) member(s *scanner) {
	switch string(s.key) {
	case "type":
		s.text(&b.kind)
	case "id":
		s.text(&b.id)
	case "name":
		s.text(&b.name)
	case "text", "thinking":
		s.text(&b.text)
	case "partial_json":
		s.text(&b.input)
	case "input":
		b.input = append(b.input, s.skip()...)
		s.answer.size += len(b.input)
	case "stop_reason": // of the delta of a message
		s.reason()
	default:
		s.skip()
	}
}

// add adds a block. One of another kind was not made by the model, and how clients send it back is not known.
func (m *messages) add(s *scanner, b block) {
	switch string(b.kind) {
	case "text", "thinking", "tool_use":
		m.blocks = append(m.blocks, b)
	default:
		s.Fail("a block of another type")
	}
	if len(m.blocks) > maxParts {
		s.Fail("too many blocks")
	}
}

func (m *messages) ended(s *scanner) {
	e := &m.event
	switch string(e.kind) {
	case "content_block_start":
		if e.index != len(m.blocks) {
			s.Fail("blocks are not in order")
			return
		}
		e.part.input = nil // an empty object, in the place of the pieces that follow
		m.add(s, e.part)
	case "content_block_delta":
		if e.index >= len(m.blocks) {
			s.Fail("a block that was not opened")
			return
		}
		b := &m.blocks[e.index]
		b.text = append(b.text, e.part.text...)
		b.input = append(b.input, e.part.input...)
	}
}

// appendTurn writes the blocks without the signatures of thinking, because no prompt has them.
func (m *messages) appendTurn(b []byte, thinking openai.Members, text string) (turn []byte, ok bool) {
	b = append(b, `{"role":"assistant","content":[`...)
	var called []byte
	separator := ""
	for i := range m.blocks {
		one := &m.blocks[i]
		isThinking := string(one.kind) == "thinking"
		if isThinking && thinking == 0 {
			continue
		}
		b = append(b, separator...)
		separator = ","

		if string(one.kind) != "tool_use" {
			member := `{"type":"text","text":`
			if isThinking {
				member = `{"type":"thinking","thinking":`
			}
			b = append(openai.AppendString(append(b, member...), string(one.text)), '}')
			continue
		}
		if len(one.input) == 0 {
			one.input = []byte("{}")
		}
		// A call that was cut off has arguments that are no JSON, and no client can send them back.
		if !json.Valid(one.input) {
			return b, false
		}
		b = openai.AppendString(append(b, `{"type":"tool_use","id":`...), string(one.id))
		b = openai.AppendString(append(b, `,"name":`...), string(one.name))
		b = append(append(append(b, `,"input":`...), one.input...), '}')
		if called == nil {
			called = one.id
		}
	}

	b = append(b, "]}"...)
	if called == nil {
		return appendUser(b, text), true
	}
	b = openai.AppendString(append(b, `,{"role":"user","content":[{"type":"tool_result","tool_use_id":`...), string(called))
	b = openai.AppendString(append(b, `,"content":`...), text)
	return append(b, "}]}"...), true
}
