package messages

import (
	"fmt"
	"net/http"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/internal/envoynames"
)

// Kind is the kind of a message on the external-processing stream.
type Kind uint8

// The kinds. Other messages belong to responses, or to processing modes that the router does not use.
const (
	Other   Kind = iota
	Headers      // the request's headers
	Body         // the request's body
)

// Request holds the fields of a ProcessingRequest that the router needs. It owns them: they do not alias
// the encoded message.
type Request struct {
	// Affinity is the name of the header that is read into Session, in lower case. It is set before
	// Read.
	Affinity string

	Kind Kind
	// Field is the field number of the message's content; 0 for a message without content.
	Field int
	// EndOfStream means that nothing of the request follows.
	EndOfStream bool
	// Buffered means that Envoy sends bodies in one piece. It is set in the first message of a stream
	// only.
	Buffered bool

	// These fields are set for Kind Headers.
	Method, Path, ContentEncoding, ContentLength, Session string
	// Hints are the headers whose names begin with envoynames.HintPrefix, at most maxHints of them.
	Hints []Header

	// Body is set for Kind Body. It is newly allocated, because decisions outlive the buffers of a
	// connection.
	Body []byte
}

// Read decodes a ProcessingRequest. After an error some fields of r are set.
func (r *Request) Read(message []byte) error {
	*r = Request{Affinity: r.Affinity}
	var content []byte
	var hasContent, hasConfig bool

	w := over(message)
	for w.next() {
		switch w.tag {
		case requestRequestHeaders<<3 | length, requestResponseHeaders<<3 | length,
			requestRequestBody<<3 | length, requestResponseBody<<3 | length,
			requestRequestTrailers<<3 | length, requestResponseTrailers<<3 | length,
			requestFlowControlInit<<3 | length, requestClientWindowUpdate<<3 | length:
			if w.once(&hasContent) {
				r.Field = int(w.tag >> 3)
				content = w.bytes
			}
		case requestProtocolConfig<<3 | length:
			if w.once(&hasConfig) {
				w.err = r.readConfig(w.bytes)
			}
		}
	}
	if w.err != nil {
		return w.err
	}

	switch r.Field {
	case requestRequestHeaders:
		r.Kind = Headers
		return r.readHeaders(content)
	case requestRequestBody:
		r.Kind = Body
		return r.readBody(content)
	}
	return nil
}

// readConfig decodes a ProtocolConfiguration.
func (r *Request) readConfig(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == configRequestBodyMode<<3|varint {
			r.Buffered = int32(w.number) == int32(filterv3.ProcessingMode_BUFFERED)
		}
	}
	return w.err
}

// maxHints exceeds the number of hint headers that exist. Further ones are dropped, because a client could
// send thousands.
const maxHints = 16

// readBody decodes an HttpBody.
func (r *Request) readBody(message []byte) error {
	w := over(message)
	for w.next() {
		switch w.tag {
		case bodyBody<<3 | length:
			r.Body = append(r.Body[:0:0], w.bytes...)
		case bodyEndOfStream<<3 | varint:
			r.EndOfStream = protowire.DecodeBool(w.number)
		}
	}
	return w.err
}

// readHeaders decodes an HttpHeaders.
func (r *Request) readHeaders(message []byte) error {
	hasHeaders := false
	w := over(message)
	for w.next() {
		switch w.tag {
		case headersHeaders<<3 | length:
			if w.once(&hasHeaders) {
				w.err = r.readMap(w.bytes)
			}
		case headersEndOfStream<<3 | varint:
			r.EndOfStream = protowire.DecodeBool(w.number)
		}
	}
	return w.err
}

// readMap decodes a HeaderMap.
func (r *Request) readMap(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == headerMapHeaders<<3|length {
			w.err = r.readHeader(w.bytes)
		}
	}
	return w.err
}

// readHeader decodes a HeaderValue. The last value of a repeated header counts.
func (r *Request) readHeader(message []byte) error {
	var key, value, raw []byte
	w := over(message)
	for w.next() {
		switch w.tag {
		case headerKey<<3 | length:
			key = w.bytes
		case headerValue<<3 | length:
			value = w.bytes
		case headerRawValue<<3 | length:
			raw = w.bytes
		}
	}
	if len(raw) == 0 {
		raw = value
	}

	switch string(key) {
	case ":method":
		r.Method = methodOf(raw)
	case ":path":
		r.Path = string(raw)
	case "content-encoding":
		r.ContentEncoding = string(raw)
	case "content-length":
		r.ContentLength = string(raw)
	case r.Affinity:
		r.Session = string(raw)
	default:
		if isHint(key) && len(r.Hints) < maxHints {
			r.Hints = append(r.Hints, Header{Key: string(key), Value: string(raw)})
		}
	}
	return w.err
}

// methodOf avoids an allocation for the most common method.
func methodOf(raw []byte) string {
	if string(raw) == http.MethodPost {
		return http.MethodPost
	}
	return string(raw)
}

// isHint reports whether a header's name begins with envoynames.HintPrefix and is longer.
func isHint(key []byte) bool {
	return len(key) > len(envoynames.HintPrefix) && string(key[:len(envoynames.HintPrefix)]) == envoynames.HintPrefix
}

// String returns the name of the message's content, for errors.
func (r *Request) String() string {
	names := [...]string{
		requestRequestHeaders: "request_headers", requestResponseHeaders: "response_headers",
		requestRequestBody: "request_body", requestResponseBody: "response_body",
		requestRequestTrailers: "request_trailers", requestResponseTrailers: "response_trailers",
	}
	if r.Field < len(names) && names[r.Field] != "" {
		return names[r.Field]
	}
	return fmt.Sprintf("with field %d", r.Field)
}
