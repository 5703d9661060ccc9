package messages

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/internal/envoynames"
)

// Response is a ProcessingResponse that lets a request go on, or says that it has to wait.
type Response struct {
	// Wait has Envoy wait for so long from now, instead of what its configuration says, for the
	// answer that is to come. Where it is not 0 nothing else is said. Envoy takes one such message for
	// each of its own, and none that is longer than its max_message_timeout.
	Wait time.Duration
	// To says which message is answered: Headers or Body.
	To Kind
	// Booking, Decision and Picked are told as dynamic metadata, under the names of package
	// wire. Empty ones are not.
	Booking, Decision, Picked string
	// Set are headers to set, whatever was there; Remove are names to remove.
	Set    []Header
	Remove []string
	// NewBody replaces the body; nil leaves it.
	NewBody []byte
	// ClearRoute has the route chosen again, by the headers that were set.
	ClearRoute bool
}

// Header is one header.
type Header struct{ Key, Value string }

// Append appends the message to dst.
func (r *Response) Append(dst []byte) []byte {
	if r.Wait > 0 {
		var room [24]byte
		wait := appendVarint(room[:0], 1, uint64(r.Wait/time.Second))
		wait = appendVarint(wait, 2, uint64(r.Wait%time.Second))
		return appendBytes(dst, 10, wait) // override_message_timeout
	}
	// Messages within messages are written from the inside out; all but a new body are small.
	var buf [3][192]byte
	common := r.appendCommon(buf[0][:0])
	answer := buf[1][:0]
	if len(common) > 0 {
		answer = appendBytes(answer, 1, common)
	}
	field := protowire.Number(1) // request_headers
	if r.To == Body {
		field = 3 // request_body
	}
	dst = appendBytes(dst, field, answer)
	facts := r.appendFacts(buf[2][:0])
	if len(facts) > 0 {
		dst = appendBytes(dst, 8, facts) // dynamic_metadata
	}
	return dst
}

// appendCommon appends a CommonResponse.
func (r *Response) appendCommon(dst []byte) []byte {
	if len(r.Set)+len(r.Remove) > 0 {
		var mutation, option, header []byte
		for _, h := range r.Set {
			header = appendBytes(header[:0], 1, []byte(h.Key))
			header = appendBytes(header, 3, []byte(h.Value)) // raw_value
			option = appendBytes(option[:0], 1, header)
			option = appendVarint(option, 3, uint64(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
			mutation = appendBytes(mutation, 1, option)
		}
		for _, name := range r.Remove {
			mutation = appendBytes(mutation, 2, []byte(name))
		}
		dst = appendBytes(dst, 2, mutation)
	}
	if r.NewBody != nil {
		dst = appendBytes(dst, 3, appendBytes(make([]byte, 0, len(r.NewBody)+16), 1, r.NewBody))
	}
	if r.ClearRoute {
		dst = appendVarint(dst, 5, 1)
	}
	return dst
}

// appendFacts appends the Struct of the metadata.
func (r *Response) appendFacts(dst []byte) []byte {
	dst = appendFact(dst, envoynames.Namespace, envoynames.Booking, r.Booking)
	dst = appendFact(dst, envoynames.NamespaceLB, envoynames.HeaderDestination, r.Picked)
	return appendFact(dst, envoynames.Namespace, envoynames.Decision, r.Decision)
}

// appendFact appends a field to a Struct: a Struct of one text.
func appendFact(dst []byte, namespace, key, value string) []byte {
	if value == "" {
		return dst
	}
	var buf [4][128]byte
	text := appendString(buf[0][:0], 3, value) // Value.string_value
	inner := appendEntry(buf[1][:0], key, text)
	outer := appendBytes(buf[2][:0], 5, inner) // Value.struct_value
	return appendEntry(dst, namespace, outer)
}

// appendEntry appends an entry of Struct.fields, a map: a message of a key and a Value.
func appendEntry(dst []byte, key string, value []byte) []byte {
	var buf [192]byte
	entry := appendString(buf[:0], 1, key)
	entry = appendBytes(entry, 2, value)
	return appendBytes(dst, 1, entry)
}

func appendBytes(dst []byte, field protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(dst, field, protowire.BytesType), b)
}

func appendString(dst []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(dst, field, protowire.BytesType), s)
}

func appendVarint(dst []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), n)
}
