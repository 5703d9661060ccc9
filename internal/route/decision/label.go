package decision

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/stator-project/stator/internal/prompt"
)

// A decision is kept after its request: in the ring of recent decisions, in tickets, in bookings and in the decision log. So every
// string of a client that a decision keeps goes through one of the functions here, which bound its length. The functions that copy also
// separate it from the request's body.

const (
	// maxKeptName bounds a name that a client sends, in bytes.
	maxKeptName = 128
	// maxKeptMessage bounds the text of an error, in bytes. The longest texts of this project have half of it.
	maxKeptMessage = 1024
	// keptHashPrefix distinguishes a hash from a name.
	keptHashPrefix = "h:"
)

// Label returns the form in which a decision keeps a string that is only compared with others: a session, a
// tenant or a source. A string of at most maxKeptName bytes is kept as it is. Of a longer one a hash is kept, so that
// equal strings have equal labels.
func Label(s string) string {
	if len(s) <= maxKeptName {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return keptHashPrefix + hex.EncodeToString(sum[:8])
}

// Clip bounds a name that a client sent, and copies it: the original may alias the body.
func Clip(name string) string { return clipTo(name, maxKeptName) }

// clipTo copies the first most bytes of a text, and marks a text that was longer.
func clipTo(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strings.Clone(text)
}

// keptError returns a copy of an error with bounded texts, which do not alias the body.
func keptError(e *prompt.Error) *prompt.Error {
	return &prompt.Error{
		Status: e.Status, Message: clipTo(e.Message, maxKeptMessage), Type: Clip(e.Type), Param: Clip(e.Param), Code: Clip(e.Code),
	}
}
