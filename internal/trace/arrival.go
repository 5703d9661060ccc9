package trace

import (
	"math"
	"time"
)

// Arrival is one request of a trace.
type Arrival struct {
	// At is the time of the request, from any start. Arrivals of a source are in order of At.
	At time.Duration
	// Prompt is the prompt, of at least one token.
	Prompt Tokens
	// Output is the number of tokens of the answer, at least 1.
	Output int
	// Session names the conversation that the request belongs to; empty means none.
	Session string

	// Step is the number of the request among those of its session, for traces that record what a request waits for. After are the
	// steps whose answers it waits for, and Pause is the time from the last one of them to the request; with no step, the time from the
	// beginning of the session.
	Step  int
	After []int
	Pause time.Duration
}

// Source returns the arrivals of a trace one after another, in order. ok is false after the last one.
// After an error or the last arrival it must not be called again.
type Source = func() (a Arrival, ok bool, err error)

// List returns a source of arrivals that are in memory.
func List(arrivals []Arrival) Source {
	return func() (Arrival, bool, error) {
		if len(arrivals) == 0 {
			return Arrival{}, false, nil
		}
		a := arrivals[0]
		arrivals = arrivals[1:]
		return a, true, nil
	}
}

// Take returns a source of the first n arrivals of next.
func Take(n int, next Source) Source {
	return func() (Arrival, bool, error) {
		if n <= 0 {
			return Arrival{}, false, nil
		}
		n--
		return next()
	}
}

// Tokens is a prompt. It becomes token ids when it arrives, so that a long trace fits in memory.
type Tokens interface {
	// Append appends the token ids to dst.
	Append(dst []uint32) []uint32
}

// IDs is a prompt as token ids.
type IDs []uint32

// Append appends the ids.
func (t IDs) Append(dst []uint32) []uint32 { return append(dst, t...) }

// Blocks is a prompt as ids of blocks. Equal ids are equal blocks of Size tokens. Length is the number of
// tokens of the prompt, so the last block may be cut.
type Blocks struct {
	IDs    []uint64
	Size   int
	Length int
}

// Append appends tokens that are made from the ids. Tokens beyond the last block are shared with no other
// prompt of another length.
func (b Blocks) Append(dst []uint32) []uint32 {
	end := len(dst) + b.Length
	for _, id := range b.IDs {
		for i := 0; i < b.Size && len(dst) < end; i++ {
			dst = append(dst, Token(id, i))
		}
	}

	rest := uint64(b.Length)<<32 | math.MaxUint32
	for i := 0; len(dst) < end; i++ {
		dst = append(dst, Token(rest, i))
	}
	return dst
}

// Segment is the first Length tokens of the token sequence ID. Segments of one ID begin with the same
// tokens, whatever their length.
type Segment struct {
	ID     uint64
	Length int
}

// Segments is a prompt of segments, one after the other.
type Segments []Segment

// Append appends the tokens.
func (s Segments) Append(dst []uint32) []uint32 {
	for _, segment := range s {
		for i := range segment.Length {
			dst = append(dst, Token(segment.ID, i))
		}
	}
	return dst
}

// Token returns the i-th token of a block or segment. It has 31 bits, and tokens of different ids are
// almost certainly different.
func Token(id uint64, i int) uint32 {
	x := (id+1)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return uint32(x >> 33)
}

// Readers make the ids of segments from a row's number and one of these tags, so that ids of different
// kinds never meet.
const (
	tagBits       = 20
	tagAzure      = 0xa207e
	tagDecision   = 0xdec1de
	tagPrefix     = 0x9e4f1
	tagGenerated  = 0x6e11a
	tagTile       = 0x711e
	seedArrivals  = 0x7135 // second halves of random seeds
	seedLengths   = 0x6e11
	seedJitter    = 0x717
	seedTiles     = 0x711e5
	maxTraceTime  = 100 * 365 * 24 * time.Hour // how long a trace may last
	maxRowTokens  = 16 << 20                   // tokens of a prompt or an answer
	maxLine       = 16 << 20                   // bytes of a line; the text of a whole prompt is one line
	maxFieldQuote = 40                         // bytes of a field in an error
)
