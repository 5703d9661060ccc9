package messages

import (
	"slices"
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
	// To is the kind of the message that is answered. In mode FullDuplex, replies to a body are pieces of it, as many as
	// the router likes.
	To Kind
	// SkipResponse asks Envoy to send no body of the response, in a reply to Headers. It is the mode of request bodies,
	// which Envoy must get again; 0 asks for nothing. Envoy ignores it without allow_mode_override.
	SkipResponse Mode
	// Booking, Decision and Picked are dynamic metadata, under the names of package envoynames. Empty
	// ones are left out.
	Booking, Decision, Picked string
	// InLB repeats Booking and Decision in the namespace of Picked, for an Envoy that may drop Stator's own.
	InLB bool
	// Cached is dynamic metadata, too, and so are Facts, by their keys: those for the lines of an access log.
	Cached string
	Facts  []envoynames.Header
	// Set are headers to set or replace, Remove the names of headers to remove.
	Set    []envoynames.Header
	Remove []string
	// NewBody replaces the body; nil keeps it. With Piece it is the next piece of the body that goes upstream, and the
	// last one with EndOfStream.
	NewBody            []byte
	Piece, EndOfStream bool
	// ClearRoute makes Envoy choose the route again, by the headers that were set.
	ClearRoute bool
}

// answers holds the field of the reply to each kind of message.
var answers = [...]protowire.Number{
	Headers: responseRequestHeaders, Body: responseRequestBody, Trailers: responseRequestTrailers,
	ResponseHeaders: responseResponseHeaders, ResponseBody: responseResponseBody, ResponseTrailers: responseResponseTrailers,
}

// Append appends the message to dst.
func (r *Response) Append(dst []byte) []byte {
	if r.Wait > 0 {
		var buf [24]byte
		wait := appendVarint(buf[:0], durationSeconds, uint64(r.Wait/time.Second))
		wait = appendVarint(wait, durationNanos, uint64(r.Wait%time.Second))
		return appendBytes(dst, responseOverrideMessageTimeout, wait)
	}

	// A nested message is written before the message around it, because its length comes first. A new body is not: it would be
	// copied at each level. The others fit into these buffers.
	var buf [2][192]byte
	common := r.appendHeaders(buf[0][:0])
	size := len(common) + r.bodySize()
	if r.ClearRoute {
		size += clearRouteSize
	}
	dst = slices.Grow(dst, size+len(buf[0])+len(buf[1]))
	dst = r.appendAnswer(dst, common, size)
	if r.SkipResponse != Unknown {
		var mode [16]byte
		dst = appendBytes(dst, responseModeOverride, appendVarint(mode[:0], processingRequestBodyMode, r.SkipResponse.number()))
	}

	metadata := r.appendMetadata(buf[1][:0])
	if len(metadata) > 0 {
		dst = appendBytes(dst, responseDynamicMetadata, metadata)
	}
	return dst
}

// appendAnswer appends the reply to r.To, whose CommonResponse has that size and begins with common.
func (r *Response) appendAnswer(dst, common []byte, size int) []byte {
	if size == 0 {
		return appendBytes(dst, answers[r.To], nil)
	}
	dst = appendLength(dst, answers[r.To], protowire.SizeTag(answerCommon)+protowire.SizeBytes(size))
	dst = appendLength(dst, answerCommon, size)
	dst = r.appendBody(append(dst, common...))
	if r.ClearRoute {
		dst = appendVarint(dst, commonClearRouteCache, 1)
	}
	return dst
}

// clearRouteSize is the size of the field by which Envoy chooses the route again.
const clearRouteSize = 2

// appendHeaders appends the changes of headers, as a field of a CommonResponse.
func (r *Response) appendHeaders(dst []byte) []byte {
	if len(r.Set)+len(r.Remove) == 0 {
		return dst
	}
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
	return appendBytes(dst, commonHeaderMutation, mutation)
}

// mutationSize is the size of the BodyMutation, and pieceSize the size of the piece in it.
func (r *Response) mutationSize() int {
	if r.Piece {
		return protowire.SizeTag(bodyMutationStreamed) + protowire.SizeBytes(r.pieceSize())
	}
	return protowire.SizeTag(bodyMutationBody) + protowire.SizeBytes(len(r.NewBody))
}

func (r *Response) pieceSize() (n int) {
	if len(r.NewBody) > 0 {
		n = protowire.SizeTag(streamedBody) + protowire.SizeBytes(len(r.NewBody))
	}
	if r.EndOfStream {
		n += protowire.SizeTag(streamedEndOfStream) + protowire.SizeVarint(1)
	}
	return n
}

// bodySize is the size of what appendBody appends.
func (r *Response) bodySize() int {
	if r.NewBody == nil && !r.Piece {
		return 0
	}
	return protowire.SizeTag(commonBodyMutation) + protowire.SizeBytes(r.mutationSize())
}

// appendBody appends the change of the body, as a field of a CommonResponse.
func (r *Response) appendBody(dst []byte) []byte {
	if r.bodySize() == 0 {
		return dst
	}
	dst = appendLength(dst, commonBodyMutation, r.mutationSize())
	if !r.Piece {
		return appendBytes(dst, bodyMutationBody, r.NewBody)
	}

	dst = appendLength(dst, bodyMutationStreamed, r.pieceSize())
	if len(r.NewBody) > 0 {
		dst = appendBytes(dst, streamedBody, r.NewBody)
	}
	if r.EndOfStream {
		dst = appendVarint(dst, streamedEndOfStream, 1)
	}
	return dst
}

// appendLength appends the beginning of a field of so many bytes.
func appendLength(dst []byte, field protowire.Number, size int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.BytesType), uint64(size))
}

// appendMetadata appends the Struct of the dynamic metadata, whose values are a Struct for each namespace.
func (r *Response) appendMetadata(dst []byte) []byte {
	var buf [2][192]byte
	ours := appendText(buf[0][:0], envoynames.Booking, r.Booking)
	ours = appendText(ours, envoynames.Decision, r.Decision)
	ours = appendText(ours, envoynames.CachedTokens, r.Cached)
	for _, f := range r.Facts {
		ours = appendText(ours, f.Key, f.Value)
	}
	dst = appendNamespace(dst, envoynames.Namespace, ours)

	lb := appendText(buf[1][:0], envoynames.HeaderDestination, r.Picked)
	if r.InLB {
		lb = appendText(lb, envoynames.BookingLB, r.Booking)
		lb = appendText(lb, envoynames.DecisionLB, r.Decision)
	}
	return appendNamespace(dst, envoynames.NamespaceLB, lb)
}

// appendText appends a text to a Struct, unless it is empty.
func appendText(dst []byte, key, value string) []byte {
	if value == "" {
		return dst
	}
	var buf [128]byte
	return appendEntry(dst, key, appendString(buf[:0], valueString, value))
}

// appendNamespace appends a Struct to a Struct, unless it is empty.
func appendNamespace(dst []byte, namespace string, inner []byte) []byte {
	if len(inner) == 0 {
		return dst
	}
	var buf [192]byte
	return appendEntry(dst, namespace, appendBytes(buf[:0], valueStruct, inner))
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
