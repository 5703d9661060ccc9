package openai

import (
	"strconv"

	"github.com/zeebo/xxh3"
)

// messages reads the conversation.
func (p *parser) messages(param string) {
	if p.req.Endpoint != Chat {
		p.skip()
		return
	}
	p.req.Messages, p.hasMessages = nil, false
	if !p.want(param, arrayValue, "an array of objects") {
		return
	}
	p.hasMessages = true
	p.array(func(i int) {
		if i >= p.lim.Messages {
			p.invalid(param, "holds more than "+strconv.Itoa(p.lim.Messages)+" messages")
			return
		}
		p.req.Messages = append(p.req.Messages, Message{})
		p.message(i, &p.req.Messages[i])
	})
}

// at names the field of one message, for errors.
func (p *parser) in(i int, field string) string {
	return "messages[" + strconv.Itoa(i) + "]" + field
}

func (p *parser) message(i int, m *Message) {
	if k := p.peek(); k != objectValue {
		if p.err == nil {
			p.err = wrongType(p.in(i, ""), "an object", k)
		}
		return
	}
	start, compat := p.at, ""
	given := func() bool { return p.peek() == stringValue }
	p.object(func(key string) {
		switch key {
		case "role":
			m.Role = p.member(i, ".role")
		case "content":
			p.content(i, m)
		case "name":
			m.Name = p.member(i, ".name")
		case "tool_call_id":
			m.ToolCallID = p.member(i, ".tool_call_id")
		case "reasoning":
			m.HasReasoning = given() || m.HasReasoning
			m.Reasoning = p.member(i, ".reasoning")
		case "reasoning_content":
			m.HasReasoning = given() || m.HasReasoning
			compat = p.member(i, ".reasoning_content")
		case "tool_calls":
			p.toolCalls(i, m)
		default:
			p.skip()
		}
	})
	if p.err != nil {
		return
	}
	m.Raw = p.src[start:p.at]
	if m.Reasoning == "" {
		m.Reasoning = compat
	}
	if m.Role == "" {
		p.err = Invalid(p.in(i, ".role"), "missing_required_parameter", "Missing required parameter: 'messages[%d].role'. Use system, developer, user, assistant or tool.", i)
	}
}

// member reads a string field of message i. The name of the field is only put together where
// it is needed: for an error.
func (p *parser) member(i int, field string) string {
	if k := p.peek(); k != stringValue && k != nullValue {
		if p.err == nil {
			p.err = wrongType(p.in(i, field), "a string", k)
		}
		return ""
	}
	return p.text("")
}

func (p *parser) content(i int, m *Message) {
	m.Kind, m.Content, m.Parts = NoContent, "", nil
	switch k := p.peek(); k {
	case stringValue:
		m.Kind, m.Content = TextContent, p.string()
	case nullValue:
		p.literal("null")
	case arrayValue:
		m.Kind, m.Parts = PartsContent, []Part{}
		p.array(func(j int) {
			if j >= p.lim.Parts {
				p.invalid(p.in(i, ".content"), "holds more than "+strconv.Itoa(p.lim.Parts)+" parts")
				return
			}
			m.Parts = append(m.Parts, p.part(i, j))
		})
	case badValue:
	default:
		p.err = wrongType(p.in(i, ".content"), "a string or an array of parts", k)
	}
}

// toolCalls keeps the raw array, having seen that it is one of objects.
func (p *parser) toolCalls(i int, m *Message) {
	m.ToolCalls = nil
	k := p.peek()
	if k == nullValue {
		p.literal("null")
		return
	}
	if k != arrayValue {
		if p.err == nil {
			p.err = wrongType(p.in(i, ".tool_calls"), "an array of objects", k)
		}
		return
	}
	start := p.at
	p.array(func(j int) {
		if k := p.peek(); p.err == nil && k != objectValue {
			p.err = wrongType(p.in(i, ".tool_calls["+strconv.Itoa(j)+"]"), "an object", k)
			return
		}
		p.skip()
	})
	if p.err == nil {
		m.ToolCalls = p.src[start:p.at]
	}
}

// partTypes are the names of parts, OpenAI's and the engines'.
var partTypes = map[string]PartType{
	"text": TextPart, "input_text": TextPart, "output_text": TextPart, "refusal": TextPart, "thinking": TextPart,
	"image_url": ImagePart, "input_image": ImagePart, "image": ImagePart,
	"input_audio": AudioPart, "audio_url": AudioPart, "audio": AudioPart,
	"video_url": VideoPart, "input_video": VideoPart, "video": VideoPart,
}

// part reads one part of a message's content. A bare string is a text part, as engines take it.
func (p *parser) part(i, j int) Part {
	k := p.peek()
	start := p.at
	if k == stringValue {
		text := p.string()
		return Part{Text: text, Raw: p.src[start:p.at]}
	}
	name := func(field string) string { return p.in(i, ".content["+strconv.Itoa(j)+"]"+field) }
	if k != objectValue {
		if p.err == nil {
			p.err = wrongType(name(""), "an object or a string", k)
		}
		return Part{}
	}
	var typ, text string
	var hasText bool
	var media []byte
	p.object(func(key string) {
		switch key {
		case "type":
			typ = p.partText(name, ".type")
		case "text", "refusal", "thinking":
			text, hasText = p.partText(name, "."+key), true
		default:
			if _, known := partTypes[key]; known {
				media = p.skip()
				return
			}
			p.skip()
		}
	})
	part := Part{Raw: p.src[start:p.at]}
	known := false
	if part.Type, known = partTypes[typ]; !known {
		part.Type = OtherPart
	}
	switch {
	case p.err != nil:
	case typ == "":
		p.err = Invalid(name(".type"), "missing_required_parameter", "Missing required parameter: '%s'. Use text, image_url, input_audio or video_url.", name(".type"))
	case part.Type == TextPart && !hasText:
		p.err = Invalid(name(".text"), "missing_required_parameter", "Missing required parameter: '%s'.", name(".text"))
	case part.Type == TextPart:
		part.Text = text
	default:
		if media == nil {
			media = part.Raw
		}
		part.Hash = xxh3.Hash128(media).Bytes()
	}
	return part
}

func (p *parser) partText(name func(string) string, field string) string {
	if k := p.peek(); k != stringValue && k != nullValue {
		if p.err == nil {
			p.err = wrongType(name(field), "a string", k)
		}
		return ""
	}
	return p.text("")
}
