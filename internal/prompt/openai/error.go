package openai

import (
	"fmt"
	"strconv"
	"strings"
)

// Types of error, as OpenAI names them.
const (
	InvalidRequest = "invalid_request_error"
	NotFound       = "not_found_error"
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

// JSON renders {"error": {"message", "type", "param", "code"}}; an empty param or code is null.
func (e *Error) JSON() []byte {
	b := make([]byte, 0, 96+len(e.Message)+len(e.Param)+len(e.Code))
	b = append(b, `{"error":{"message":`...)
	b = AppendString(b, e.Message)
	b = append(b, `,"type":`...)
	b = AppendString(b, e.Type)
	b = append(b, `,"param":`...)
	b = appendOrNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = appendOrNull(b, e.Code)
	return append(b, `}}`...)
}

// appendOrNull appends s as a JSON string, or null if s is empty.
func appendOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return AppendString(b, s)
}

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD, so that the result is always
// valid JSON.
func AppendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
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

// Invalid is a 400 about one field. The error outlives the body, so it copies the field's name.
func Invalid(param, code, format string, args ...any) *Error {
	return &Error{Status: 400, Type: InvalidRequest, Param: strings.Clone(param), Code: code, Message: fmt.Sprintf(format, args...)}
}

// wrongType is a 400 about a value of the wrong JSON type, in OpenAI's wording.
func wrongType(param, want string, got kind) *Error {
	return Invalid(param, "invalid_type", "Invalid type for '%s': expected %s, but got %s instead.", param, want, got.withArticle())
}

// malformed is a 400 about a body that is not JSON, with the byte at which reading failed.
func malformed(at int, what string) *Error {
	return Invalid("", "invalid_json", "The request body is not valid JSON: %s at byte %s. Send one JSON object, encoded as UTF-8.",
		what, strconv.Itoa(at))
}
