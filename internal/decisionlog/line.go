package decisionlog

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route"
)

// Line is one line; either Decision or End is nil.
type Line struct {
	Decision *route.Decision `json:"decision,omitempty"`
	// HashEvery is in blocks of Decision.BlockSize tokens.
	HashEvery int    `json:"hashEvery,omitempty"`
	Hashes    []Hash `json:"hashes,omitempty"`
	End       *End   `json:"end,omitempty"`
}

// Hash is a sequence hash; its text is 16 hexadecimal digits.
type Hash blockhash.Sequence

// MarshalText writes the digits.
func (h Hash) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(h)), nil }

// UnmarshalText reads them.
func (h *Hash) UnmarshalText(text []byte) error {
	var b [8]byte
	if len(text) != 16 {
		return fmt.Errorf("hash %q: it must have 16 hexadecimal digits", text)
	}
	if _, err := hex.Decode(b[:], text); err != nil {
		return fmt.Errorf("hash %q: %w", text, err)
	}
	*h = Hash(binary.BigEndian.Uint64(b[:]))
	return nil
}

// End is what came of a decision's request.
type End struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// Outcome is the access log's word: as_picked, retried, misdirected and so on.
	Outcome string `json:"outcome"`
	// FirstByte and LastByte are when the worker's answer began and ended, in milliseconds since
	// Envoy had the request; 0 where there was none. An engine that streams may send headers, and
	// so its first byte, long before its first token.
	FirstByte float64 `json:"firstByteMs"`
	LastByte  float64 `json:"lastByteMs"`
	// ResponseBytes is the body of the answer as clients got it.
	ResponseBytes uint64 `json:"responseBytes"`
}

// Sample appends the names of a prompt: every n-th of its chain, and the last.
func Sample(dst []Hash, chain []blockhash.Sequence, n int) []Hash {
	n = max(1, n)
	for i := n - 1; i < len(chain); i += n {
		dst = append(dst, Hash(chain[i]))
	}
	if len(chain)%n != 0 {
		dst = append(dst, Hash(chain[len(chain)-1]))
	}
	return dst
}

// Append appends the line and its end.
func (l *Line) Append(dst []byte) ([]byte, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return dst, fmt.Errorf("write decision: %w", err)
	}
	return append(append(dst, b...), '\n'), nil
}
