package openai

import (
	"strconv"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/jsonscan"
)

// messages reads the conversation of a chat. Other endpoints skip it.
func (p *parser) messages(param string) {
	if p.req.Endpoint != Chat {
		p.hasMessages = p.Peek() == jsonscan.Array
		p.Skip()
		return
	}
	p.req.Unread = WhyRead
	p.startMessages()
	p.hasMessages = false
	if !p.expectKind(param, jsonscan.Array, "an array of objects") {
		return
	}
	p.hasMessages = true
	p.EachElement(func(i int) {
		if p.addMessage(Message{}) {
			p.message(i, &p.req.Messages[i])
		}
	})
}

// messagePath returns the path of a field of message i, for errors.
func (p *parser) messagePath(i int, field string) string {
	return "messages[" + strconv.Itoa(i) + "]" + field
}

// message reads message i into m.
func (p *parser) message(i int, m *Message) {
	if k := p.Peek(); k != jsonscan.Object {
		if p.Err == nil {
			p.Err = wrongType(p.messagePath(i, ""), "an object", k)
		}
		return
	}

	reasoningContent, hasReasoningContent := "", false
	p.object(func(key string) {
		switch key {
		case "role":
			m.Role = p.stringMember(i, ".role")
		case "content":
			m.setMember(NullContent, p.Peek() == jsonscan.Null)
			p.content(i, m)
		case "tools":
			m.setMember(OwnMembers, true)
			m.Tools = p.developerTools()
		case "tool_calls":
			m.setMember(OwnMembers, true)
			p.toolCalls(i, m)
		case "name":
			m.setMember(NullName, p.Peek() == jsonscan.Null)
			m.Name = p.optionalString(i, m, ".name", NameMember)
		case "reasoning_content":
			hasReasoningContent = p.Peek() == jsonscan.String
			reasoningContent = p.stringMember(i, ".reasoning_content")
		default:
			p.rareMember(i, m, key)
		}
	})
	if p.Err != nil {
		return
	}

	if m.Has&ReasoningMember == 0 && hasReasoningContent {
		m.Has |= ReasoningMember | FromReasoningContent
		m.Reasoning = reasoningContent
	}
	if m.Role == "" {
		p.Err = Invalid(p.messagePath(i, ".role"), "missing_required_parameter",
			"Missing required parameter: 'messages[%d].role'. Use system, developer, user, assistant or tool.", i)
	}
}

// setMember sets or clears one member.
func (m *Message) setMember(which Members, present bool) {
	m.Has &^= which
	if present {
		m.Has |= which
	}
}

// rareMember reads the members of message i that few clients send.
func (p *parser) rareMember(i int, m *Message, key string) {
	switch key {
	case "tool_call_id":
		m.Has |= ToolCallIDMember
		if p.Peek() == jsonscan.Null {
			m.Has |= NullToolCallID
		}
		m.ToolCallID = p.stringMember(i, ".tool_call_id")
	case "reasoning":
		m.setMember(OwnMembers, true)
		m.Reasoning = p.optionalString(i, m, ".reasoning", ReasoningMember)
	case "task":
		m.setMember(OwnMembers, true)
		if p.Peek() != jsonscan.String {
			p.Skip()
			return
		}
		m.Task = p.optionalString(i, m, ".task", TaskMember)
	default:
		p.Skip()
	}
}

// optionalString reads a string field of message i, and sets its bit in m.Has unless it is null.
func (p *parser) optionalString(i int, m *Message, field string, which Members) string {
	m.setMember(which, p.Peek() == jsonscan.String)
	return p.stringMember(i, field)
}

// developerTools reads the tools of one message. Anything but an array is ignored.
func (p *parser) developerTools() []byte {
	if p.Peek() != jsonscan.Array {
		p.Skip()
		return nil
	}
	return p.skipCounted("messages")
}

// stringMember reads a string field of message i. The path of the field is built only for an error, because
// it costs an allocation and most requests have no error.
func (p *parser) stringMember(i int, field string) string {
	if k := p.Peek(); k != jsonscan.String && k != jsonscan.Null {
		if p.Err == nil {
			p.Err = wrongType(p.messagePath(i, field), "a string", k)
		}
		return ""
	}
	return p.stringOrNull("")
}

// content reads the content of message i: a string, an array of parts, or null.
func (p *parser) content(i int, m *Message) {
	m.Kind = NoContent
	m.Content, m.Parts = "", nil
	switch k := p.Peek(); k {
	case jsonscan.String:
		m.Kind, m.Content = TextContent, p.string()
	case jsonscan.Null:
		p.ExpectWord("null")
	case jsonscan.Array:
		all := &p.req.memory.parts
		from := len(*all)
		p.EachElement(func(j int) {
			if p.countPart() {
				*all = append(*all, p.part(i, j))
			}
		})
		m.Kind, m.Parts = PartsContent, (*all)[from:len(*all):len(*all)]
	case jsonscan.Bad:
	default:
		p.Err = wrongType(p.messagePath(i, ".content"), "a string or an array of parts", k)
	}
}

// toolCalls checks that tool_calls is an array of objects and keeps its raw bytes.
func (p *parser) toolCalls(i int, m *Message) {
	m.ToolCalls = nil
	k := p.Peek()
	if k == jsonscan.Null {
		p.ExpectWord("null")
		return
	}
	if k != jsonscan.Array {
		if p.Err == nil {
			p.Err = wrongType(p.messagePath(i, ".tool_calls"), "an array of objects", k)
		}
		return
	}

	start := p.At
	p.EachElement(func(j int) {
		if k := p.Peek(); p.Err == nil && k != jsonscan.Object {
			p.Err = wrongType(p.messagePath(i, ".tool_calls["+strconv.Itoa(j)+"]"), "an object", k)
			return
		}
		p.skipCounted("messages")
	})
	if p.Err == nil {
		m.ToolCalls = p.Src[start:p.At]
	}
}

// partTypes maps the names of part types to types, both OpenAI's and the engines' names.
var partTypes = map[string]PartType{
	"text": TextPart, "input_text": TextPart, "output_text": TextPart, "refusal": TextPart, "thinking": TextPart,
	"image_url": ImagePart, "input_image": ImagePart, "image": ImagePart,
	"input_audio": AudioPart, "audio_url": AudioPart, "audio": AudioPart,
	"video_url": VideoPart, "input_video": VideoPart, "video": VideoPart,
	"tool_reference": ReferencePart,
	"image_embeds":   EmbedsPart, "audio_embeds": EmbedsPart, "video_embeds": EmbedsPart,
}

// partFields are the members of parts that vLLM reads. It passes all others on to the template.
var partFields = map[string]bool{
	"audio_embeds": true, "audio_url": true, "closed": true, "data": true, "file": true, "image_embeds": true,
	"image_pil": true, "image_url": true,
	"input_audio": true, "name": true, "prompt_cache_breakpoint": true, "refusal": true, "text": true, "thinking": true,
	"type": true, "uuid": true,
	"video_embeds": true, "video_url": true,
}

// PartField reports whether key is a member of parts that vLLM reads.
func PartField(key string) bool { return partFields[key] }

// part reads part j of the content of message i. A bare string is a text part, as engines have it.
func (p *parser) part(i, j int) Part {
	k := p.Peek()
	start := p.At
	if k == jsonscan.String {
		text := p.string()
		return Part{Text: text, Raw: p.Src[start:p.At], Loose: true}
	}
	name := func(field string) string { return p.messagePath(i, ".content["+strconv.Itoa(j)+"]"+field) }
	if k != jsonscan.Object {
		if p.Err == nil {
			p.Err = wrongType(name(""), "an object or a string", k)
		}
		return Part{}
	}

	// The type may come after the other members. All texts are therefore kept until the type selects one.
	var typ string
	var texts [4]string // of text, refusal, thinking and name
	var given [4]bool
	var media []byte
	var extra, uuid bool
	p.object(func(key string) {
		switch key {
		case "type":
			typ = p.partText(name, ".type")
		case "text", "refusal", "thinking", "name":
			at := textField(key)
			given[at] = p.Peek() == jsonscan.String
			texts[at] = p.partText(name, "."+key)
		default:
			extra = extra || !partFields[key]
			uuid = uuid || key == "uuid" && p.Peek() != jsonscan.Null
			if _, known := partTypes[key]; known {
				media = p.skipCounted("messages")
				return
			}
			p.skipCounted("messages")
		}
	})

	part := Part{Raw: p.Src[start:p.At], Extra: extra}
	known := false
	part.Type, known = partTypes[typ]
	if !known {
		part.Type = OtherPart
	}
	part.UUID = uuid
	part.Loose = typ == "input_text" || typ == "output_text"

	at := textField(typ)
	switch {
	case p.Err != nil:
	case typ == "":
		p.Err = Invalid(name(".type"), "missing_required_parameter",
			"Missing required parameter: '%s'. Use text, image_url, input_audio or video_url.", name(".type"))
	case part.Type != TextPart && part.Type != ReferencePart:
		if media == nil { // the part has no member with the medium, so that its whole JSON is hashed
			media = part.Raw
		}
		part.Hash = xxh3.Hash128(media).Bytes()
		if part.Type == EmbedsPart || part.Type == OtherPart {
			p.req.Unread = WhyPart
		}
	case !given[at]:
		field := name("." + [...]string{"text", "refusal", "thinking", "name"}[at])
		p.Err = Invalid(field, "missing_required_parameter", "Missing required parameter: '%s'.", field)
	default:
		part.Text = texts[at]
	}
	return part
}

// textField returns the position of a text among text, refusal, thinking and name. It accepts the name of a
// member, or the type of a part whose text that member holds.
func textField(name string) int {
	switch name {
	case "refusal":
		return 1
	case "thinking":
		return 2
	case "tool_reference", "name":
		return 3
	}
	return 0
}

// partText reads a string member of a part. name builds its path, only for an error.
func (p *parser) partText(name func(string) string, field string) string {
	if k := p.Peek(); k != jsonscan.String && k != jsonscan.Null {
		if p.Err == nil {
			p.Err = wrongType(name(field), "a string", k)
		}
		return ""
	}
	return p.stringOrNull("")
}
