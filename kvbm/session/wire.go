package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

// The kinds of frames, see the package's description.
const (
	kindHello   = 1
	kindFind    = 2
	kindFetch   = 3
	kindRelease = 4
	kindReserve = 5
	kindCommit  = 6
	kindDrop    = 7
	kindPin     = 8
	kindChanged = 64
	kindFailed  = 127
)

// version is the version of the protocol. Clients of version 1 do not send the field that distinguishes weights, so their blocks cannot
// be used.
const version = 2

// maxFrame bounds a frame without its length, in bytes: 65,000 keys.
const maxFrame = 1 << 20

// maxKeys bounds the keys and slots of a frame.
const maxKeys = 1 << 15

// hello is the body of the first frame, and welcome the body of its answer.
type hello struct {
	Version int          `json:"version"`
	Engine  string       `json:"engine"`
	Layout  block.Layout `json:"layout"`
	Speed   *Speed       `json:"speed,omitempty"`
}

// Speed is the speed at which an engine computes prompts. By it the store decides which blocks are worth loading.
type Speed struct {
	// Token is the time of a token in nanoseconds, and Pair the time of a token for each one before it.
	Token float64 `json:"tokenNanoseconds"`
	Pair  float64 `json:"pairNanoseconds"`
}

// maxNanoseconds bounds both figures, far above the figures of any engine.
const maxNanoseconds = 1e10

// validate returns an error for figures that no engine has.
func (s *Speed) validate() error {
	for _, v := range []float64{s.Token, s.Pair} {
		if !(v >= 0 && v <= maxNanoseconds) {
			return fmt.Errorf("a speed of %v ns a token and %v ns a pair: both must lie between 0 and %g", s.Token, s.Pair, maxNanoseconds)
		}
	}
	return nil
}

// compute returns how long tokens after a prefix take. It is a kvbm.Compute.
func (s *Speed) compute(prefix, tokens int) time.Duration {
	n := float64(tokens)
	ns := n*s.Token + n*(float64(prefix)+n/2)*s.Pair
	return time.Duration(min(ns, float64(time.Hour)))
}

type welcome struct {
	Version   int `json:"version"`
	Slots     int `json:"slots"`
	SlotBytes int `json:"slotBytes"`
}

// frame is a frame that was read. Its body is valid until the next one is read.
type frame struct {
	kind   byte
	number uint32
	body   []byte
}

// headBytes is the size of a frame without its body.
const headBytes = 9

// appendFrame begins a frame whose body has a size; the body follows.
func appendFrame(dst []byte, kind byte, number uint32, bodyBytes int) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(headBytes-4+bodyBytes))
	dst = append(dst, kind)
	return binary.LittleEndian.AppendUint32(dst, number)
}

// readFrame reads a frame into a buffer, which grows as needed.
func readFrame(r io.Reader, buffer *[]byte) (f frame, err error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < headBytes-4 || n > maxFrame {
		return f, fmt.Errorf("a frame of %d bytes: there must be from %d to %d", n, headBytes-4, maxFrame)
	}
	f.kind = head[4]
	f.number = binary.LittleEndian.Uint32(head[5:])

	body := int(n) - (headBytes - 4)
	if cap(*buffer) < body {
		*buffer = make([]byte, body)
	}
	f.body = (*buffer)[:body]
	_, err = io.ReadFull(r, f.body)
	return f, err
}

// errShort is the error of a body that ends too early or too late.
var errShort = errors.New("the length of the body does not fit its kind")

// reader reads the fields of a body. After an error all fields are zero.
type reader struct {
	left []byte
	err  error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || len(r.left) < n {
		r.err = errShort
		return make([]byte, n) // n is the size of a field
	}
	out := r.left[:n]
	r.left = r.left[n:]
	return out
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

// count reads how many items of a size follow, which is all that is left.
func (r *reader) count(size int) int {
	n := int(r.uint32())
	if r.err == nil && (n > maxKeys || n*size != len(r.left)) {
		r.err = errShort
	}
	if r.err != nil {
		return 0
	}
	return n
}

func (r *reader) key() (k block.Key) {
	copy(k[:], r.take(len(k)))
	return k
}

// keys reads a count and so many keys.
func (r *reader) keys() []block.Key {
	keys := make([]block.Key, r.count(len(block.Key{})))
	for i := range keys {
		keys[i] = r.key()
	}
	return keys
}

// slots reads a count and so many slots.
func (r *reader) slots() []int {
	slots := make([]int, r.count(4))
	for i := range slots {
		slots[i] = int(r.uint32())
	}
	return slots
}

// finish returns the error of a body of which something is left, or that was too short.
func (r *reader) finish() error {
	if r.err == nil && len(r.left) > 0 {
		return errShort
	}
	return r.err
}

func appendKeys(dst []byte, keys []block.Key) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(keys)))
	for i := range keys {
		dst = append(dst, keys[i][:]...)
	}
	return dst
}

func appendSlots(dst []byte, slots []int) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(slots)))
	for _, i := range slots {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(i))
	}
	return dst
}

// frameBuffer has the frame that is being written. Its mutex is held meanwhile, so that frames do not mix.
type frameBuffer struct {
	mu    sync.Mutex
	frame []byte // guarded by mu
}
