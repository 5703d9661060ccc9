package messages

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/envoynames"
)

// Kind is the kind of a message on the external-processing stream.
type Kind uint8

// The kinds. Other messages belong to processing modes that the router does not use.
const (
	Other    Kind = iota
	Headers       // the request's headers
	Body          // the request's body, or a piece of it
	Trailers      // the request's trailers

	ResponseHeaders
	ResponseBody
	ResponseTrailers
)

// Request holds the fields of a ProcessingRequest that the router needs. Its texts are
// copies. Body is not: see there.
type Request struct {
	// Names are the headers to read. They are set before the message is received.
	Names Names
	// Reserve is called with the size of a message before its content is copied. If it returns false, the
	// message is not decoded and Refused is set. Nil always accepts. Free is called with the same size when
	// the memory is given back.
	Reserve func(bytes int) bool
	Free    func(bytes int)

	// Refused means that Reserve has refused the message. All fields below are empty then.
	Refused bool

	Kind Kind
	// Field is the field number of the message's content; 0 for a message without content.
	Field int
	// EndOfStream means that nothing of the request follows, or of the response.
	EndOfStream bool
	// Mode is the way in which Envoy sends the body of the request, and ResponseMode the same for the response. They
	// are set in the first message of a stream only.
	Mode, ResponseMode Mode
	// Observed means that Envoy ignores all replies (observability_mode).
	Observed bool

	RequestHead  // set for Kind Headers
	ResponseHead // set for Kind ResponseHeaders

	// Body is set for Kind Body and ResponseBody. It is valid until Release, or until the next message is received.
	Body []byte

	memory   *buffer // that Body lies in; nil for a message that was not received from gRPC
	reserved int     // bytes
}

// RequestHead holds the headers of a request that the router needs.
type RequestHead struct {
	Method, Path, ContentEncoding, ContentLength string
	Role, Tenant                                 string
	// Session is the client's session, and SessionAt the index of its header in Names.Sessions.
	Session   string
	SessionAt int
	// RequestID is the header x-request-id.
	RequestID string
	// Authorization is the header of that name.
	Authorization string
	// Trace is the trace context of the header traceparent.
	Trace spans.Context
	// Hints are the headers whose names begin with envoynames.HintPrefix, at most maxHints of them.
	Hints []envoynames.Header
	// Subset are the endpoints, ip:port or ip, to which a proxy in front of the filter restricts the request, sorted. Nil means every
	// endpoint, and an empty list none.
	Subset []string
}

// ResponseHead holds the values of a response's headers that the router needs.
type ResponseHead struct {
	// Status is the HTTP status, and EventStream means that the body is a stream of events. Served is the address of the worker
	// that answered; empty if the filter does not send it.
	Status      uint32
	EventStream bool
	Served      string
}

// receive copies a message from gRPC's buffers, which are cleared and small, into one of ours and decodes it.
func (r *Request) receive(data mem.BufferSlice) error {
	r.Release()
	size := data.Len()
	if r.Reserve != nil && !r.Reserve(size) {
		r.forget()
		r.Refused = true
		return nil
	}

	r.reserved = size
	r.memory = newBuffer(size)
	data.CopyTo(r.memory.bytes)
	return r.Read(r.memory.bytes)
}

// Release gives back the memory of the message. Body is not valid any more.
func (r *Request) Release() {
	r.Body = nil
	if r.memory != nil {
		r.memory.free()
		r.memory = nil
	}
	if r.reserved > 0 && r.Free != nil {
		r.Free(r.reserved)
	}
	r.reserved = 0
}

// forget empties the decoded fields.
func (r *Request) forget() {
	*r = Request{Names: r.Names, Reserve: r.Reserve, Free: r.Free, memory: r.memory, reserved: r.reserved}
}

// Read decodes a ProcessingRequest. Body then refers to message. After an error some fields of r are set.
func (r *Request) Read(message []byte) error {
	r.forget()
	var content, attributes, metadata []byte
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
		case requestAttributes<<3 | length:
			attributes = w.bytes // there is one entry: the filter's
		case requestMetadataContext<<3 | length:
			metadata = w.bytes
		case requestObservabilityMode<<3 | varint:
			r.Observed = protowire.DecodeBool(w.number)
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
		if err := r.readSubset(metadata); err != nil {
			return err
		}
		return r.readHeaders(content, r.readHeader)
	case requestRequestBody:
		r.Kind = Body
		return r.readBody(content)
	case requestRequestTrailers:
		r.Kind = Trailers
	case requestResponseHeaders:
		r.Kind = ResponseHeaders
		return r.readResponse(content, attributes, metadata)
	case requestResponseBody:
		r.Kind = ResponseBody
		return r.readBody(content)
	case requestResponseTrailers:
		r.Kind = ResponseTrailers
	}
	return nil
}

// readConfig decodes a ProtocolConfiguration.
func (r *Request) readConfig(message []byte) error {
	r.Mode = None // the default, which is not written
	r.ResponseMode = None
	w := over(message)
	for w.next() {
		switch w.tag {
		case configRequestBodyMode<<3 | varint:
			r.Mode = modeOf(int32(w.number))
		case configResponseBodyMode<<3 | varint:
			r.ResponseMode = modeOf(int32(w.number))
		}
	}
	return w.err
}

// readBody decodes an HttpBody.
func (r *Request) readBody(message []byte) error {
	w := over(message)
	for w.next() {
		switch w.tag {
		case bodyBody<<3 | length:
			r.Body = w.bytes
		case bodyEndOfStream<<3 | varint:
			r.EndOfStream = protowire.DecodeBool(w.number)
		}
	}
	return w.err
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
