package migrate

import (
	"bytes"
	"io"
)

// Memory is a budget in bytes. An *exchange.Budget is one.
type Memory interface {
	// Reserve adds n bytes. It returns false, and adds nothing, if there is no room.
	Reserve(n int) bool
	// Free takes n reserved bytes away.
	Free(n int)
}

const (
	// MaxEvent bounds an event, in bytes. The first one has the ids of the prompt.
	MaxEvent = 8 << 20
	// firstBuffer is the size of a stream's buffer, in bytes, unless an event needs more.
	firstBuffer = 4 << 10
)

// Events divides a stream into its events.
type Events struct {
	from    io.Reader
	memory  Memory
	buffer  []byte
	begin   int // of the next event in buffer
	end     int // of the bytes that were read
	scanned int // bytes of buffer without the end of an event, from begin on
	large   bool
}

// NewEvents returns the events of a response's body.
func NewEvents(from io.Reader, memory Memory) *Events {
	return &Events{from: from, memory: memory, buffer: make([]byte, firstBuffer)}
}

// Fill reads from the response once: at least one byte, or an error. It must follow a call of Next that has returned nothing.
func (e *Events) Fill() error {
	switch {
	case e.begin == e.end && len(e.buffer) > firstBuffer: // the first event may have been much longer than the others
		e.Free()
		e.buffer = make([]byte, firstBuffer)
	case e.begin > 0:
		copy(e.buffer, e.buffer[e.begin:e.end])
		e.scanned -= e.begin
		e.end -= e.begin
		e.begin = 0
	}
	for {
		n, err := e.from.Read(e.buffer[e.end:])
		e.end += n
		if n > 0 {
			return nil // the error comes again
		}
		if err != nil {
			return err
		}
	}
}

// Await reads until there is an event, or a part of a large one. It must come before all other calls.
func (e *Events) Await() error {
	for {
		if e.find() > 0 || e.begin < e.end && !e.hasRoom() {
			return nil
		}
		if err := e.Fill(); err != nil {
			return err
		}
	}
}

// Next returns the next event with the empty line that ends it; nil if it was not read as a whole. Of an event for which there is no room
// it returns pieces, for which whole is false. The bytes are valid until the next call of Fill.
func (e *Events) Next() (event []byte, whole bool) {
	end := e.find()
	switch {
	case end > 0:
		event, whole = e.buffer[e.begin:end], !e.large
		e.large = false
	case e.begin == e.end, !e.large && e.hasRoom():
		return nil, false
	default:
		event, e.large = e.buffer[e.begin:e.end], true
		end = e.end
	}
	e.begin, e.scanned = end, end
	return event, whole
}

// hasRoom reports whether Fill has room for the rest of an event. It doubles a full buffer.
func (e *Events) hasRoom() bool {
	if e.begin > 0 || e.end < len(e.buffer) {
		return true
	}
	if 2*len(e.buffer) > MaxEvent || !e.memory.Reserve(len(e.buffer)) {
		return false
	}
	larger := make([]byte, 2*len(e.buffer))
	copy(larger, e.buffer)
	e.buffer = larger
	return true
}

// find returns the end of the next event in the buffer: after a line end that an empty line follows. It is 0 if there is none.
func (e *Events) find() int {
	b := e.buffer[:e.end]
	for {
		at := bytes.IndexByte(b[e.scanned:], '\n')
		if at < 0 {
			e.scanned = e.end
			return 0
		}
		next := e.scanned + at + 1
		switch {
		case next < len(b) && b[next] == '\n':
			return next + 1
		case next+1 < len(b) && b[next] == '\r' && b[next+1] == '\n':
			return next + 2
		case next == len(b) || next+1 == len(b) && b[next] == '\r':
			e.scanned = next - 1 // the rest decides
			return 0
		}
		e.scanned = next
	}
}

// Rest returns the bytes that were read and that no event has.
func (e *Events) Rest() []byte { return e.buffer[e.begin:e.end] }

// Free gives the memory back. Nothing must be read after it.
func (e *Events) Free() {
	if len(e.buffer) > firstBuffer {
		e.memory.Free(len(e.buffer) - firstBuffer)
	}
	e.buffer = nil
	e.begin, e.end = 0, 0
	e.scanned = 0
}
