package openai

import (
	"math"
	"strconv"
	"unsafe"

	"github.com/stator-project/stator/internal/jsonscan"
)

// clampInt32 returns v as a number between 0 and the largest 32-bit integer.
func clampInt32(v int64) int { return int(min(max(v, 0), math.MaxInt32)) }

// failMissing records that a required parameter is missing.
func (p *parser) failMissing(param string) {
	p.Err = Invalid(param, "missing_required_parameter", "Missing required parameter: '%s'.", param)
}

// failInvalid records that a parameter has an invalid value. must completes the sentence "it …".
func (p *parser) failInvalid(param, must string) {
	if p.Err == nil {
		p.Err = Invalid(param, "invalid_value", "Invalid value for '%s': it %s.", param, must)
	}
}

// expectKind reports whether the next value is of kind k. It reads a null, which counts as an absent key. Any
// other kind is an error.
func (p *parser) expectKind(param string, k jsonscan.Kind, what string) bool {
	switch got := p.Peek(); got {
	case k:
		return true
	case jsonscan.Bad:
	case jsonscan.Null:
		p.ExpectWord("null")
	default:
		p.Err = wrongType(param, what, got)
	}
	return false
}

// stringOrNull reads a string. Null reads as "".
func (p *parser) stringOrNull(param string) string {
	if !p.expectKind(param, jsonscan.String, "a string") {
		return ""
	}
	return p.string()
}

// booleanOr reads a boolean. Null reads as absent.
func (p *parser) booleanOr(param string, absent bool) bool {
	if !p.expectKind(param, jsonscan.Bool, "a boolean") {
		return absent
	}
	return p.ReadBool()
}

// rawOrNull reads a value of kind k and returns its bytes, nil for null.
func (p *parser) rawOrNull(param string, k jsonscan.Kind) []byte {
	if !p.expectKind(param, k, k.WithArticle()) {
		return nil
	}
	return p.skipCounted(param)
}

// integer reads a whole number, which may also be written as 5.0 or 5e0. ok is false for null or an error.
func (p *parser) integer(param string) (v int64, ok bool) {
	if !p.expectKind(param, jsonscan.Number, "an integer") {
		return 0, false
	}
	digits := p.ReadNumber()
	if p.Err != nil {
		return 0, false
	}
	v, err := strconv.ParseInt(string(digits), 10, 64)
	if err == nil {
		return v, true
	}
	f, err := strconv.ParseFloat(string(digits), 64)
	switch {
	case err != nil || math.Abs(f) >= 1<<63:
		p.failInvalid(param, "is too large")
	case f != math.Trunc(f):
		p.Err = Invalid(param, "invalid_type", "Invalid type for '%s': expected an integer, but got a decimal number instead.", param)
	}
	return int64(f), p.Err == nil
}

// positiveInteger reads a whole number of at least 1. It returns 0 for null.
func (p *parser) positiveInteger(param string) int {
	v, ok := p.integer(param)
	if ok && (v < 1 || v > math.MaxInt32) {
		p.failInvalid(param, "must be at least 1 and at most 2147483647")
	}
	return int(v)
}

// unread sets the reason why the prompt is not read, unless there is one already.
func (p *parser) unread(why Why) {
	if p.req.Unread == WhyRead {
		p.req.Unread = why
	}
}

// skipUnread skips a value that cannot be read.
func (p *parser) skipUnread(why Why) {
	p.unread(why)
	p.Skip()
}

// stringIn reads a member of an object that is a string. It returns false for null, and if the object has no such member. Another
// form of the object or the member is not read.
func (p *parser) stringIn(member string) (value string, ok bool) {
	switch p.Peek() {
	case jsonscan.Null:
		p.Skip()
		return "", false
	case jsonscan.Object:
	default:
		p.skipUnread(WhyField)
		return "", false
	}
	p.object(func(key string) {
		if key != member {
			p.Skip()
			return
		}
		value, ok = p.textOrNull(WhyField)
	})
	return value, ok
}

// textOrNull reads a string. It returns false for null. A value of another kind is not read, for that reason.
func (p *parser) textOrNull(why Why) (text string, ok bool) {
	switch p.Peek() {
	case jsonscan.String:
		return p.string(), true
	case jsonscan.Null:
		p.Skip()
	default:
		p.skipUnread(why)
	}
	return "", false
}

// objectOrNull reads an object and returns its bytes, nil for null.
func (p *parser) objectOrNull() []byte {
	switch p.Peek() {
	case jsonscan.Object:
		return p.skipCounted("messages")
	case jsonscan.Null:
		p.Skip()
	default:
		p.skipUnread(WhyPart)
	}
	return nil
}

// skipUnlessNull skips a value that is not read unless it is null, for that reason.
func (p *parser) skipUnlessNull(why Why) {
	if p.Peek() != jsonscan.Null {
		p.unread(why)
	}
	p.Skip()
}

// rawText returns the JSON of a string, and nil for a value of another kind.
func (p *parser) rawText() []byte {
	kind, from := p.Peek(), p.At
	p.Skip()
	if kind != jsonscan.String || p.Err != nil {
		return nil
	}
	return p.Src[from:p.At]
}

// stringOf returns bytes of the body as a string, without a copy.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
