package spans

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Span is the span of one request. All methods may be called on nil, which records nothing.
type Span struct {
	tracer    *Tracer
	parent    Context
	own       Context
	began     time.Time
	decided   time.Time
	important bool   // it is exported although it is not sampled
	encoded   []byte // the fields of opentelemetry.proto.trace.v1.Span so far
}

// Begin returns the span of a request whose headers came at that time, with the context of its header, and the context of Envoy's span,
// if Envoy makes spans. It is nil without a tracer.
func (t *Tracer) Begin(header, envoy Context, at time.Time) *Span {
	if t == nil {
		return nil
	}

	parent := header
	if envoy.IsSampled() {
		parent = envoy
	}
	trace := cmp.Or(parent, envoy) // the span of an Envoy that does not sample is not exported, so it is no parent
	s := &Span{tracer: t, parent: parent, own: trace, began: at, decided: at}
	binary.BigEndian.PutUint64(s.own.Span[:], rand.Uint64()|1) // an id of zeros is none
	if trace.IsValid() {
		return s
	}

	binary.BigEndian.PutUint64(s.own.Trace[:], rand.Uint64()|1)
	binary.BigEndian.PutUint64(s.own.Trace[8:], rand.Uint64())
	if rand.Float64() < t.cfg.Ratio {
		s.own.Flags = flagSampled
	}
	return s
}

// Own returns the context that engines get if the span is sampled; otherwise the zero value, because the span may not be exported.
func (s *Span) Own() Context {
	if s == nil || !s.own.IsSampled() {
		return Context{}
	}
	return s.own
}

// Keep has the span exported although it is not sampled. It must be called before Decided.
func (s *Span) Keep() {
	if s != nil {
		s.important = true
	}
}

// IsSampled reports whether the span is exported in any case.
func (s *Span) IsSampled() bool { return s != nil && (s.own.IsSampled() || s.important) }

// MayBeExported reports whether the span needs attributes.
func (s *Span) MayBeExported() bool { return s.IsSampled() || s != nil && s.tracer.cfg.SlowerThan > 0 }

// Trace returns the id of the trace, if the span is exported in any case; otherwise it is empty.
func (s *Span) Trace() string {
	if !s.IsSampled() {
		return ""
	}
	return hex.EncodeToString(s.own.Trace[:])
}

// The fields of opentelemetry.proto.trace.v1.Span.
const (
	spanTraceID    = 1
	spanSpanID     = 2
	spanParent     = 4
	spanName       = 5
	spanKind       = 6
	spanStart      = 7
	spanEnd        = 8
	spanAttributes = 9
	spanEvents     = 11
	spanStatus     = 15
	spanFlags      = 16

	eventTime = 1
	eventName = 2

	statusCode = 3

	kindServer  = 2
	statusError = 2
)

const (
	// typicalSpan is the size of most spans, in bytes.
	typicalSpan = 1 << 10
	// maxText bounds the value of an attribute, in bytes.
	maxText = 256
)

// Decided begins the encoding, when the decision was made. The name must be of few values.
func (s *Span) Decided(name string, at time.Time) {
	s.decided = at
	b := make([]byte, 0, typicalSpan)
	b = appendBytes(b, spanTraceID, s.own.Trace[:])
	b = appendBytes(b, spanSpanID, s.own.Span[:])
	if s.parent.IsValid() {
		b = appendBytes(b, spanParent, s.parent.Span[:])
	}
	b = appendText(b, spanName, name)
	b = appendVarint(b, spanKind, kindServer)
	b = appendTime(b, spanStart, s.began)
	b = protowire.AppendTag(b, spanFlags, protowire.Fixed32Type)
	b = protowire.AppendFixed32(b, uint32(s.own.Flags))
	s.encoded = b
}

// Text adds an attribute, unless it is empty. A long text is cut.
func (s *Span) Text(key, value string) {
	if value != "" {
		s.encoded = appendAttribute(s.encoded, spanAttributes, key, value)
	}
}

// Number adds an attribute.
func (s *Span) Number(key string, value int) {
	size := sizeOfTag + protowire.SizeVarint(uint64(value))
	s.encoded = appendKey(s.encoded, spanAttributes, key, size)
	s.encoded = appendVarint(s.encoded, valueInt, uint64(value))
}

// Amount adds an attribute, unless it is 0.
func (s *Span) Amount(key string, value float64) {
	if value == 0 {
		return
	}
	s.encoded = appendKey(s.encoded, spanAttributes, key, sizeOfTag+protowire.SizeFixed64())
	s.encoded = protowire.AppendTag(s.encoded, valueDouble, protowire.Fixed64Type)
	s.encoded = protowire.AppendFixed64(s.encoded, math.Float64bits(value))
}

// Event adds an event, unless its time is zero.
func (s *Span) Event(name string, at time.Time) {
	if at.IsZero() {
		return
	}
	size := sizeOfTag + protowire.SizeFixed64() + sizeOfTag + protowire.SizeBytes(len(name))
	s.encoded = protowire.AppendTag(s.encoded, spanEvents, protowire.BytesType)
	s.encoded = protowire.AppendVarint(s.encoded, uint64(size))
	s.encoded = appendTime(s.encoded, eventTime, at)
	s.encoded = appendText(s.encoded, eventName, name)
}

// Answer is the end of a request.
type Answer struct {
	// FirstToken and LastByte are the times from the beginning of the request to the first and last byte of the answer's body; 0 if
	// they are not known.
	FirstToken, LastByte time.Duration
	// Status is the HTTP status that the client received; 0 for none.
	Status int
	// OutputTokens are the tokens of the answer by its usage; 0 if it was not read.
	OutputTokens int
	// Outcome is the outcome of the access log, and Served the address of the worker that answered.
	Outcome, Served string
}

// Ended ends the span, and queues it for the export if it is to be exported. Then it returns the id of the trace, and otherwise an empty
// one. It takes the span: no method may be called after it.
func (s *Span) Ended(a *Answer, now time.Time) (trace string) {
	if s == nil || s.encoded == nil {
		return ""
	}
	failed := a.Status >= 500
	slow := s.tracer.cfg.SlowerThan
	if !s.IsSampled() && !failed && (slow <= 0 || s.untilToken(a, now) < slow) {
		return ""
	}
	s.important = true

	end := now
	if a.LastByte > 0 {
		end = s.began.Add(a.LastByte)
	}
	if end.Before(s.decided) { // Envoy's clock for durations begins a little before the router's
		end = s.decided
	}
	if a.FirstToken > 0 {
		s.Event("gen_ai.first_token", s.began.Add(a.FirstToken))
	}
	if a.OutputTokens > 0 {
		s.Number("gen_ai.usage.output_tokens", a.OutputTokens)
	}
	if a.Status > 0 {
		s.Number("http.response.status_code", a.Status)
	}
	s.Text("stator.answer", a.Outcome)
	s.Text("stator.served", a.Served)
	if failed {
		s.encoded = protowire.AppendTag(s.encoded, spanStatus, protowire.BytesType)
		s.encoded = protowire.AppendVarint(s.encoded, sizeOfTag+1)
		s.encoded = appendVarint(s.encoded, statusCode, statusError)
	}
	s.encoded = appendTime(s.encoded, spanEnd, end)
	s.tracer.enqueue(s.encoded)
	return s.Trace()
}

// untilToken returns how long the client waited: for the first token, or for the end of a request without one.
func (s *Span) untilToken(a *Answer, now time.Time) time.Duration {
	switch {
	case a.FirstToken > 0:
		return a.FirstToken
	case a.LastByte > 0:
		return a.LastByte
	}
	return now.Sub(s.began)
}

// The fields of opentelemetry.proto.common.v1.KeyValue and AnyValue.
const (
	keyValueKey   = 1
	keyValueValue = 2
	valueText     = 1
	valueInt      = 3
	valueDouble   = 4

	sizeOfTag = 1 // of all fields up to 15
)

// appendAttribute appends a field that is an attribute with a text.
func appendAttribute(b []byte, field protowire.Number, key, value string) []byte {
	value = strings.ToValidUTF8(value[:min(len(value), maxText)], "")
	b = appendKey(b, field, key, sizeOfTag+protowire.SizeBytes(len(value)))
	return appendText(b, valueText, value)
}

// appendKey appends the beginning of a field that is an attribute. Its value, of that size, must follow.
func appendKey(b []byte, field protowire.Number, key string, size int) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(sizeOfTag+protowire.SizeBytes(len(key))+sizeOfTag+protowire.SizeBytes(size)))
	b = appendText(b, keyValueKey, key)
	b = protowire.AppendTag(b, keyValueValue, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(size))
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

func appendBytes(b []byte, field protowire.Number, bytes []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), bytes)
}

func appendVarint(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// appendTime appends a time in nanoseconds since 1970.
func appendTime(b []byte, field protowire.Number, at time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(at.UnixNano()))
}
