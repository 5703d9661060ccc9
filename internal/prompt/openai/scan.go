package openai

import (
	"errors"

	"github.com/stator-project/stator/internal/jsonscan"
)

// scanner is a [jsonscan.Scanner] that decodes strings into memory of the request.
type scanner struct {
	jsonscan.Scanner
	// maxValues bounds the values and keys of counted fields.
	maxValues int
	// arena holds decoded strings. Results alias it, so that it is never reallocated: a full arena is
	// replaced by a new one.
	arena []byte
}

// newScanner returns a scanner of a text whose arrays and objects nest at most to a depth.
func newScanner(src []byte, depth int) scanner {
	return scanner{Scanner: jsonscan.Scanner{Src: src, Depth: depth}}
}

// object calls field for each key of an object. field must read the value.
func (s *scanner) object(field func(key string)) { s.Members(s.string, field) }

// skipCounted reads one value as Skip does, and counts the values and keys in it. Field is the name for the
// error if the request has too many.
func (s *scanner) skipCounted(field string) []byte {
	s.Counts = true
	raw := s.Skip()
	s.Counts = false
	if errors.Is(s.Err, jsonscan.ErrTooMany) {
		s.Err = Invalid(field, "invalid_value", "Invalid value for '%s': the request holds more than %d values and keys in tools, "+
			"tool calls, documents, template arguments and content parts. Send fewer.", field, s.maxValues)
	}
	return raw
}

// failure returns the error for the client, or nil.
func (s *scanner) failure() *Error {
	if s.Err == nil {
		return nil
	}
	var refusal *Error
	if errors.As(s.Err, &refusal) {
		return refusal
	}
	var fault *jsonscan.Fault
	if errors.As(s.Err, &fault) && fault.What == jsonscan.TooDeep {
		return Invalid("", "invalid_json", "The request body nests arrays and objects too deeply at byte %d. Send a flatter "+
			"document.", fault.At)
	}
	return malformed(fault.At, fault.What)
}
