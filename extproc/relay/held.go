package relay

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/stator-project/stator/extproc/exchange"
)

// held is the body of a request, whose memory counts in a budget. It belongs to one goroutine.
type held struct {
	budget   *exchange.Budget
	bytes    []byte
	reserved int
}

// firstPiece is the first size of a body's memory, in bytes. It doubles when it is full.
const firstPiece = 8 << 10

// readBody reads a body of at most limit bytes, within bodyWithin. Memory counts in the budget before it is used. The answer is the
// refusal of a body that is too large, that has not arrived as a whole, or for which there is no room; nil for none. After it the
// connection ends, and the rest of the body is not waited for.
func (b *held) readBody(w http.ResponseWriter, r *http.Request, limit int64) (refusal *exchange.Answer) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyWithin)) // it fails if the connection has ended
	defer func() {
		if refusal != nil {
			w.Header().Set("connection", "close")
			_ = control.SetReadDeadline(time.Now())
		}
	}()

	if r.ContentLength > limit {
		return exchange.TooLarge(limit)
	}
	for {
		if len(b.bytes) == cap(b.bytes) && !b.grow(r.ContentLength, limit) {
			return exchange.Overloaded()
		}
		n, err := r.Body.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		switch {
		case int64(len(b.bytes)) > limit:
			return exchange.TooLarge(limit)
		case errors.Is(err, io.EOF):
			_ = control.SetReadDeadline(time.Time{}) // the connection is read on, to see when the client leaves
			return nil
		case err != nil:
			return exchange.Incomplete()
		}
	}
}

// grow doubles the memory, to at most one byte more than the body may have. It returns false if the budget has no room.
func (b *held) grow(length, limit int64) bool {
	most := limit
	if length >= 0 {
		most = length
	}
	size := min(max(2*int64(cap(b.bytes)), firstPiece), most+1) // one byte more, so that a read finds the end
	more := int(min(size, most)) - b.reserved
	if !b.budget.Reserve(more) {
		return false
	}
	b.reserved += more

	bytes := make([]byte, len(b.bytes), size)
	copy(bytes, b.bytes)
	b.bytes = bytes
	return true
}

// free forgets the body, and gives its part of the budget back.
func (b *held) free() {
	b.budget.Free(b.reserved)
	b.bytes, b.reserved = nil, 0
}
