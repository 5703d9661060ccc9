package messages

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/internal/envoynames"
)

// Response is a ProcessingResponse that lets a request continue, or extends Envoy's timeout for it.
type Response struct {
	// Wait replaces Envoy's timeout for the response to its last message: it waits for this long from
	// now. If Wait is not 0 all other fields are ignored. Envoy accepts one such response for each of
	// its messages, and ignores one above its max_message_timeout.
	Wait time.Duration
	// To is the kind of the message that is answered: Headers or Body.
	To Kind
	// Booking, Decision and Picked are dynamic metadata, under the names of package envoynames. Empty
	// ones are left out.
	Booking, Decision, Picked string
	// Set are headers to set or replace, Remove the names of headers to remove.
	Set    []Header
	Remove []string
	// NewBody replaces the body; nil keeps it.
	NewBody []byte
	// ClearRoute makes Envoy choose the route again, by the headers that were set.
	ClearRoute bool
}

// Header is one header. Its key is in lower case.
type Header struct{ Key, Value string }

// Append appends the message to dst.
func (r *Response) Append(dst []byte) []byte {
	if r.Wait > 0 {
		var buf [24]byte
		wait := appendVarint(buf[:0], durationSeconds, uint64(r.Wait/time.Second))
		wait = appendVarint(wait, durationNanos, uint64(r.Wait%time.Second))
		return appendBytes(dst, responseOverrideMessageTimeout, wait)
	}

	// A nested message is written before the message around it, because its length comes first. All of
	// them except a new body fit into these buffers.
	var buf [3][192]byte
	common := r.appendCommon(buf[0][:0])
	answer := buf[1][:0]
	if len(common) > 0 {
		answer = appendBytes(answer, answerCommon, common)
	}
	field := protowire.Number(responseRequestHeaders)
	if r.To == Body {
		field = responseRequestBody
	}
	dst = appendBytes(dst, field, answer)

	metadata := r.appendMetadata(buf[2][:0])
	if len(metadata) > 0 {
		dst = appendBytes(dst, responseDynamicMetadata, metadata)
	}
	return dst
}

// appendCommon appends a CommonResponse.
func (r *Response) appendCommon(dst []byte) []byte {
	if len(r.Set)+len(r.Remove) > 0 {
		var mutation, option, header []byte
		for _, h := range r.Set {
			header = appendBytes(header[:0], headerKey, []byte(h.Key))
			header = appendBytes(header, headerRawValue, []byte(h.Value))
			option = appendBytes(option[:0], optionHeader, header)
			option = appendVarint(option, optionAppendAction, uint64(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
			mutation = appendBytes(mutation, headerMutationSet, option)
		}
		for _, name := range r.Remove {
			mutation = appendBytes(mutation, headerMutationRemove, []byte(name))
		}
		dst = appendBytes(dst, commonHeaderMutation, mutation)
	}
	if r.NewBody != nil {
		const overhead = 16 // of the nested message
		body := appendBytes(make([]byte, 0, len(r.NewBody)+overhead), bodyMutationBody, r.NewBody)
		dst = appendBytes(dst, commonBodyMutation, body)
	}
	if r.ClearRoute {
		dst = appendVarint(dst, commonClearRouteCache, 1)
	}
	return dst
}

// appendMetadata appends the Struct of the dynamic metadata. A response has a booking, or a pick with a
// decision, so no namespace occurs twice.
func (r *Response) appendMetadata(dst []byte) []byte {
	dst = appendText(dst, envoynames.Namespace, envoynames.Booking, r.Booking)
	dst = appendText(dst, envoynames.NamespaceLB, envoynames.HeaderDestination, r.Picked)
	return appendText(dst, envoynames.Namespace, envoynames.Decision, r.Decision)
}

// appendText appends a field to a Struct: a namespace, whose value is a Struct with one text.
func appendText(dst []byte, namespace, key, value string) []byte {
	if value == "" {
		return dst
	}
	var buf [4][128]byte
	text := appendString(buf[0][:0], valueString, value)
	inner := appendEntry(buf[1][:0], key, text)
	outer := appendBytes(buf[2][:0], valueStruct, inner)
	return appendEntry(dst, namespace, outer)
}

// appendEntry appends an entry of Struct.fields, which is a map from text to Value.
func appendEntry(dst []byte, key string, value []byte) []byte {
	var buf [192]byte
	entry := appendString(buf[:0], entryKey, key)
	entry = appendBytes(entry, entryValue, value)
	return appendBytes(dst, structFields, entry)
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
