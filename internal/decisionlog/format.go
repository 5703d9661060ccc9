package decisionlog

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/decision"
)

// Version is the version of the format. It grows with every change that an older reader would
// misunderstand.
const Version = 1

// Format names the format in the version line, so that tools recognize the file.
const Format = "stator-decisions"

// Line is one line. Exactly one of Version, Decision and End is set.
type Line struct {
	Version int    `json:"version,omitempty"`
	Format  string `json:"format,omitempty"` // beside Version

	Decision  *Decision `json:"decision,omitempty"`
	HashEvery int       `json:"hash_every,omitempty"` // in blocks of Decision.BlockSize tokens
	Hashes    []Hash    `json:"hashes,omitempty"`

	End *End `json:"end,omitempty"`
}

// Header returns the line that a writer writes whenever it opens a file.
func Header() Line { return Line{Version: Version, Format: Format} }

// Of returns the line of a decision. chain has the sequence hashes of the prompt's complete blocks, of
// which every n-th and the last are kept.
func Of(d *decision.Decision, chain []blockhash.Sequence, n int) Line {
	view := View(d)
	return Line{Decision: &view, HashEvery: n, Hashes: sample(chain, n)}
}

// sample returns every n-th sequence hash, and the last.
func sample(chain []blockhash.Sequence, n int) []Hash {
	n = max(1, n)
	var hashes []Hash
	for i := n - 1; i < len(chain); i += n {
		hashes = append(hashes, Hash(chain[i]))
	}
	if len(chain)%n != 0 {
		hashes = append(hashes, Hash(chain[len(chain)-1]))
	}
	return hashes
}

// Append appends the line as JSON, with the newline that ends it.
func (l *Line) Append(dst []byte) ([]byte, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return dst, fmt.Errorf("write decision log: %w", err)
	}
	dst = append(dst, b...)
	return append(dst, '\n'), nil
}

// validate reports a line that has none of its three contents, or a version that this package does not
// read.
func (l *Line) validate() error {
	switch {
	case l.Version != 0 && l.Version != Version:
		return fmt.Errorf("the log has version %d of the format, and this program reads version %d: use the stator that wrote it",
			l.Version, Version)
	case l.Version == 0 && l.Decision == nil && l.End == nil:
		return errors.New("it has neither a decision nor an end")
	}
	return nil
}

// End is the end of a decision's request.
type End struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// Outcome is the outcome of the access log: as_picked, retried, misdirected and so on.
	Outcome string `json:"outcome"`
	// Served is the address of the worker that answered; empty if none did, or if it is not known.
	Served string `json:"served,omitempty"`
	// FirstByte and LastByte are the times from the moment when Envoy had the request to the first and
	// the last byte of the worker's answer, in milliseconds. They are 0 if there was no answer. An
	// engine that streams may send headers, and so its first byte, long before its first token.
	FirstByte float64 `json:"first_byte_ms"`
	LastByte  float64 `json:"last_byte_ms"`
	// FirstToken is the time to the first byte of the answer's body, in milliseconds: that of the first token if the answer is a
	// stream. It is 0 if Envoy did not report it.
	FirstToken float64 `json:"first_token_ms,omitempty"`
	// Status is the HTTP status that the client received; 0 for none.
	Status int `json:"status,omitempty"`
	// ResponseBytes is the size of the answer's body, as the client received it.
	ResponseBytes uint64 `json:"response_bytes"`
	// OutputTokens is the number of tokens of the answer by its own usage; 0 if the router has not read it.
	OutputTokens int `json:"output_tokens,omitempty"`
}

// Hash is a sequence hash. Its text is 16 hexadecimal digits.
type Hash blockhash.Sequence

// MarshalText returns the digits.
func (h Hash) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(h)), nil }

// UnmarshalText parses the digits.
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
