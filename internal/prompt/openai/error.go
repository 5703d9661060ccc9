package openai

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/jsonscan"
)

// Types of error, as OpenAI names them.
const (
	InvalidRequest = "invalid_request_error"
	Overloaded     = "overloaded_error"
	ServerError    = "server_error"
)

// Error is a refusal in the form that OpenAI's clients understand. Message describes what to change. Param
// names the field at fault, and Code is for programs; both may be empty.
type Error struct {
	Status                     int
	Message, Type, Param, Code string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// The most bytes of the parts of an error, so that no client can make an error long. An argument is a part of
// the request that a message repeats. A cause is an error of this program that may repeat such a part.
const (
	maxArgument = 128
	maxCause    = 256
	maxMessage  = 768
)

// JSON renders {"error": {"message", "type", "param", "code"}}; an empty param or code is null. The result has at
// most 1,300 bytes: longer parts are cut.
func (e *Error) JSON() []byte {
	b := make([]byte, 0, 96+min(len(e.Message), maxMessage)+min(len(e.Param), maxArgument)+min(len(e.Code), maxArgument))
	b = append(b, `{"error":{"message":`...)
	b = appendClipped(b, e.Message, maxMessage)
	b = append(b, `,"type":`...)
	b = appendClipped(b, e.Type, maxArgument)
	b = append(b, `,"param":`...)
	b = appendOrNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = appendOrNull(b, e.Code)
	return append(b, `}}`...)
}

// anthropicTypes are the types of errors of Anthropic's API by HTTP status.
var anthropicTypes = map[int]string{
	401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
	503: Overloaded,
}

// firstServerError is the least HTTP status of errors that are not the client's.
const firstServerError = 500

// AnthropicJSON renders the error for clients of Anthropic's API: {"type": "error", "error": {"type", "message"}}. The result has
// the same bound as JSON's.
func (e *Error) AnthropicJSON() []byte {
	kind := anthropicTypes[e.Status]
	switch {
	case kind == "" && e.Status < firstServerError:
		kind = InvalidRequest
	case kind == "":
		kind = "api_error"
	}
	b := append([]byte(`{"type":"error","error":{"type":`), '"')
	b = append(append(b, kind...), `","message":`...)
	return append(appendClipped(b, e.Message, maxMessage), `}}`...)
}

// appendOrNull appends s as a JSON string, or null if s is empty.
func appendOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendClipped(b, s, maxArgument)
}

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD, so that the result is always
// valid JSON.
func AppendString(b []byte, s string) []byte { return appendClipped(b, s, math.MaxInt) }

// AppendNumbers appends numbers as a JSON list.
func AppendNumbers[T ~uint32 | ~uint64](b []byte, numbers []T) []byte {
	b = append(b, '[')
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(n), 10)
	}
	return append(b, ']')
}

// appendClipped appends s as a JSON string. It cuts s if the string would have more than most bytes.
func appendClipped(b []byte, s string, most int) []byte {
	const hex = "0123456789abcdef"
	const longest = len(`\u0000`) // that one character needs
	b = append(b, '"')
	from := len(b)
	for _, r := range s {
		if len(b)-from > most-longest {
			b = append(b, "…"...)
			break
		}
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r < 0x20 || r == 0x7f:
			b = append(b, `\u00`...)
			b = append(b, hex[r>>4], hex[r&15])
		default:
			b = append(b, string(r)...)
		}
	}
	return append(b, '"')
}

// Invalid is a 400 about one field. It clips the strings and errors among args, and the param, because they may
// repeat any part of a request.
func Invalid(param, code, format string, args ...any) *Error {
	for i, a := range args {
		switch a := a.(type) {
		case string:
			args[i] = clip(a, maxArgument)
		case error:
			args[i] = clip(a.Error(), maxCause)
		}
	}
	message := fmt.Sprintf(format, args...)
	return &Error{Status: 400, Type: InvalidRequest, Param: Clip(param), Code: Clip(code), Message: clip(message, maxMessage)}
}

// Clip shortens a string of a client to 128 bytes, for errors and for whatever outlives the request. The result
// is valid UTF-8 where s is, and does not share the memory of s.
func Clip(s string) string { return strings.Clone(clip(s, maxArgument)) }

// clip returns s, or as many whole characters of it as have at most n bytes and an ellipsis.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// wrongType is a 400 about a value of the wrong JSON type, in OpenAI's wording.
func wrongType(param, want string, got jsonscan.Kind) *Error {
	return Invalid(param, "invalid_type", "Invalid type for '%s': expected %s, but got %s instead.", param, want, got.WithArticle())
}

// malformed is a 400 about a body that is not JSON, with the byte at which reading failed.
func malformed(at int, what string) *Error {
	return Invalid("", "invalid_json", "The request body is not valid JSON: %s at byte %s. Send one JSON object, encoded as UTF-8.",
		what, strconv.Itoa(at))
}
