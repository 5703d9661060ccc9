package messages

import "sync"

// buffer is the memory of one message. A pool keeps it for later messages.
type buffer struct{ bytes []byte }

// classes are the sizes of the buffers that are kept. The memory of a larger message is left to the garbage
// collector: few requests are so large, and their memory must not stay.
var classes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// pools has a pool for each class. gRPC's own pool clears a buffer each time that it is used, and its class
// above 32 KiB has one MiB: that took a quarter of the router's CPU time for long prompts.
var pools [len(classes)]sync.Pool

// classOf returns the smallest class that holds n bytes, or len(classes) if none does.
func classOf(n int) int {
	for i, size := range classes {
		if n <= size {
			return i
		}
	}
	return len(classes)
}

// newBuffer returns a buffer of n bytes with any content.
func newBuffer(n int) *buffer {
	class := classOf(n)
	if class == len(classes) {
		return &buffer{make([]byte, n)}
	}
	b, ok := pools[class].Get().(*buffer)
	if !ok {
		b = &buffer{make([]byte, classes[class])}
	}
	b.bytes = b.bytes[:n]
	return b
}

// free gives the buffer back. Nothing may refer to its bytes any more.
func (b *buffer) free() {
	class := classOf(cap(b.bytes))
	if class < len(classes) && cap(b.bytes) == classes[class] {
		pools[class].Put(b)
	}
}
