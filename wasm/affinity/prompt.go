package affinity

// promptBytes is the number of bytes of a completion's prompt that are part of the key. Later turns only repeat the
// beginning of an earlier prompt. With more bytes, the first turns of a short conversation would differ. With fewer,
// all prompts that begin with the same instructions would go to one worker.
const promptBytes = 1024

// field is a member of the body. The key has the hashes of all of them, in this order, so the order in the body does
// not matter.
type field int

const (
	nothing field = iota // a member that is not read
	model
	system
	instructions
	messages
	input
	prompt
	fields // their number
)

// fieldOf returns the field of a member at the top of the body.
func fieldOf(name string) field {
	switch name {
	case "model":
		return model
	case "system":
		return system
	case "instructions":
		return instructions
	case "messages":
		return messages
	case "input":
		return input
	case "prompt":
		return prompt
	}
	return nothing
}

// part is a member of a message.
type part int

const (
	otherPart part = iota
	role
	content
)

// partOf returns the part of a member of a message.
func partOf(name string) part {
	switch name {
	case "role":
		return role
	case "content":
		return content
	}
	return otherPart
}

// notPrompt is a member, at any depth, that is no part of the prompt: clients move it from message to message.
const notPrompt = "cache_control"

// messageScan is the state of one message's scan.
type messageScan struct {
	part       part
	system     bool // its role is system or developer
	hasContent bool
	content    hash
}

// begin begins a field. Of fields of one name the last one counts, as in most parsers.
func (s *Scanner) begin(f field) {
	s.field = f
	if f == nothing {
		return
	}
	s.hashes[f] = 0
	s.filled[f] = false
	s.chosen[f] = false
	s.now = messageScan{}
	s.left = promptBytes
}

// inMessages reports whether the scanner is in an object of a list of messages.
func (s *Scanner) inMessages() bool {
	isObject := func(depth int) bool { return s.objects&(1<<depth) != 0 }
	return (s.field == messages || s.field == input) && s.depth >= messageDepth && !isObject(listDepth) && isObject(messageDepth)
}

// beginValue begins a string or a scalar. Parts of messages are no values of their list.
func (s *Scanner) beginValue(mark byte) {
	s.filled[s.field] = s.filled[s.field] || !s.inMessages()
	s.count(mark)
}

// count adds bytes to the hash of the value that the scanner is in, if that is part of the key.
func (s *Scanner) count(text ...byte) {
	f := s.field
	if s.depth == 0 || f == nothing || s.skipDepth > 0 || s.chosen[f] {
		return
	}

	if s.inMessages() {
		if s.now.part == content {
			s.now.hasContent = true
			s.now.content = s.now.content.add(text)
		}
		return
	}
	if f == prompt {
		text = text[:min(len(text), s.left)]
		s.left -= len(text)
	}
	s.hashes[f] = s.hashes[f].add(text)
}

// endMessage adds the message at hand to its list.
func (s *Scanner) endMessage() {
	f := s.field
	if s.chosen[f] || !s.now.hasContent {
		return
	}

	s.hashes[f] = s.hashes[f].join(s.now.content)
	if s.now.system {
		s.hashes[f] = s.hashes[f].join(1)
	}
	s.filled[f] = true
	s.chosen[f] = !s.now.system
}

// Key returns the key of the bytes that were read, 16 hexadecimal digits. ok is false if there was
// no prompt.
func (s *Scanner) Key() (key string, ok bool) {
	end := *s // a body that is cut has an unfinished message
	if end.inMessages() {
		end.endMessage()
	}
	if !end.filled[messages] && !end.filled[input] && !end.filled[prompt] {
		return "", false
	}

	var all hash
	for _, h := range end.hashes {
		all = all.join(h)
	}
	return all.hex(), true
}
