package spans

import "encoding/hex"

// Header is the name of W3C's header of a trace context.
const Header = "traceparent"

// Context is the trace context of a request. The zero value is none.
type Context struct {
	Trace [16]byte
	Span  [8]byte
	Flags byte
}

// flagSampled is the flag of a context whose spans are exported.
const flagSampled = 1

// The places of the parts of a header: version-trace-span-flags, all in lower-case hexadecimal digits.
const (
	traceAt      = 3
	spanAt       = traceAt + 32 + 1
	flagsAt      = spanAt + 16 + 1
	headerLength = flagsAt + 2
	// maxHeader bounds a header of a later version, which may be longer.
	maxHeader = 512
)

// Parse returns the context of a header's value. It is the zero value for a header that W3C's rules do not accept.
func Parse(header []byte) (c Context) {
	if len(header) < headerLength || len(header) > maxHeader {
		return Context{}
	}
	if header[traceAt-1] != '-' || header[spanAt-1] != '-' || header[flagsAt-1] != '-' {
		return Context{}
	}

	var version, flags [1]byte
	parts := []struct {
		text, into []byte
	}{
		{header[:traceAt-1], version[:]}, {header[traceAt : spanAt-1], c.Trace[:]},
		{header[spanAt : flagsAt-1], c.Span[:]}, {header[flagsAt:headerLength], flags[:]},
	}
	for i := range parts {
		if !decode(parts[i].into, parts[i].text) {
			return Context{}
		}
	}

	c.Flags = flags[0]
	isLonger := len(header) > headerLength
	switch {
	case version[0] == 0xff, version[0] == 0 && isLonger, isLonger && header[headerLength] != '-', !c.IsValid():
		return Context{}
	}
	return c
}

// decode decodes lower-case hexadecimal digits.
func decode(into, text []byte) bool {
	for _, b := range text {
		if b >= 'A' && b <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(into, text)
	return err == nil
}

// IsValid reports whether there is a trace and a span.
func (c Context) IsValid() bool { return c.Trace != [16]byte{} && c.Span != [8]byte{} }

// IsSampled reports whether the spans of the trace are exported.
func (c Context) IsSampled() bool { return c.Flags&flagSampled != 0 }

// String returns the value of the header; empty without a context.
func (c Context) String() string {
	if !c.IsValid() {
		return ""
	}
	text := make([]byte, 0, headerLength)
	text = append(text, "00-"...)
	text = hex.AppendEncode(text, c.Trace[:])
	text = append(text, '-')
	text = hex.AppendEncode(text, c.Span[:])
	text = append(text, '-')
	text = hex.AppendEncode(text, []byte{c.Flags & flagSampled})
	return string(text)
}
