package chattemplate

import "unsafe"

// TextContent is a list of one text part, [{"type": "text", "text": …}], which most messages have for templates
// that read parts. It is meant to be used again for the next chat.
type TextContent struct {
	list  List
	items [1]Value
	part  Dict
}

// Set sets the text and returns the list. The value is valid until the next Set or Reset.
func (c *TextContent) Set(text string) Value {
	c.part.Reset()
	c.part.Set("type", StringValue("text"))
	c.part.Set("text", StringValue(text))
	c.items[0] = DictValue(&c.part)
	c.list = List{Items: c.items[:]}
	return Value{kind: ListKind, ref: &c.list}
}

// Reset drops the text and keeps the memory.
func (c *TextContent) Reset() { c.part.Reset() }

// Size returns the bytes of c, but not of the text.
func (c *TextContent) Size() int { return int(unsafe.Sizeof(*c)-unsafe.Sizeof(c.part)) + c.part.Size() }
