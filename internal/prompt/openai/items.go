package openai

import (
	"bytes"
	"slices"

	"github.com/stator-project/stator/internal/jsonscan"
)

// text is the value of a member that should be a string.
type text struct {
	value string
	given bool // and neither null nor of another kind
	null  bool
	wrong bool // of another kind
}

// item is an item of the input, with its members of all types, because the type may come last.
type item struct {
	kind, role, status, id, callID, name, namespace, arguments, encrypted text
	// input is the JSON of a custom tool's input.
	input []byte
	// content, summary and output are lists of parts, or a text.
	content, summary, output partList
}

// partList is a text or a list of parts.
type partList struct {
	given, isText bool
	text          string
	parts         []itemPart
}

// itemPart is a part of an item.
type itemPart struct {
	kind, text string
	hasText    bool
	// image is the raw JSON of an image's URL, nil for none, and detail of its detail.
	image, detail []byte
	// more is set for members that may change the prompt.
	more bool
}

// readText reads a member that should be a string.
func (p *parser) readText() text {
	switch p.Peek() {
	case jsonscan.String:
		return text{value: p.string(), given: true}
	case jsonscan.Null:
		p.Skip()
		return text{null: true}
	}
	p.Skip()
	return text{wrong: true}
}

// text returns the text that holds a member, nil for none.
func (it *item) text(member string) *text {
	switch member {
	case "type":
		return &it.kind
	case "role":
		return &it.role
	case "status":
		return &it.status
	case "id":
		return &it.id
	case "call_id":
		return &it.callID
	case "name":
		return &it.name
	case "namespace":
		return &it.namespace
	case "arguments":
		return &it.arguments
	case "encrypted_content":
		return &it.encrypted
	}
	return nil
}

// isOpen reports whether the item was cut off: vLLM lets the model continue some of these.
func (it *item) isOpen() bool {
	return it.status.value == "in_progress" || it.status.value == "incomplete"
}

// item reads one item and adds it to the conversation.
func (p *parser) item() {
	var it item
	p.object(func(key string) {
		switch key {
		case "content":
			it.content = p.readParts()
		case "summary":
			it.summary = p.readParts()
		case "output":
			it.output = p.readParts()
		case "input":
			it.input = p.rawText()
		default:
			if t := it.text(key); t != nil {
				*t = p.readText()
				return
			}
			p.Skip()
		}
	})

	p.req.AddGenerationPrompt = true
	p.req.ContinueFinalMessage = false
	if p.Err != nil || p.req.Unread != WhyRead {
		return
	}
	known := !it.status.wrong && slices.Contains([]string{"", "in_progress", "completed", "incomplete"}, it.status.value)
	if !known || !p.convert(&it) {
		p.unread(WhyPart)
	}
}

// readParts reads a text or a list of parts. Null is as if it was absent.
func (p *parser) readParts() (list partList) {
	switch p.Peek() {
	case jsonscan.String:
		return partList{given: true, isText: true, text: p.string()}
	case jsonscan.Null:
		p.Skip()
		return partList{}
	case jsonscan.Array:
	default:
		p.skipUnread(WhyPart)
		return partList{}
	}

	list.given = true
	p.EachElement(func(int) {
		p.countPart()
		if p.Peek() != jsonscan.Object {
			p.skipUnread(WhyPart)
			return
		}
		list.parts = append(list.parts, p.itemPart())
	})
	return list
}

// itemPart reads one part.
func (p *parser) itemPart() (part itemPart) {
	p.object(func(key string) {
		switch key {
		case "type":
			part.kind = p.readText().value
		case "text":
			t := p.readText()
			part.text, part.hasText = t.value, t.given
		case "image_url":
			part.image = p.rawText()
		case "detail":
			part.detail = p.rawText()
		case "annotations", "logprobs":
			raw := bytes.TrimSpace(p.Skip())
			isEmpty := bytes.HasPrefix(raw, []byte("[")) && len(bytes.Trim(raw, "[] \t\r\n")) == 0
			part.more = part.more || !isEmpty && (key == "annotations" || string(raw) != "null")
		case "file_id", "prompt_cache_breakpoint":
			part.more = part.more || p.Peek() != jsonscan.Null
			p.Skip()
		default:
			p.Skip() // vLLM drops other members
		}
	})
	return part
}
