package messages

import (
	"fmt"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/internal/envoynames"
)

// Kind says what a Request carries.
type Kind uint8

// The messages that Envoy sends of a request; the others are of responses, or of modes that we
// do not ask for.
const (
	Other Kind = iota
	Headers
	Body
)

// Request is what we read of a ProcessingRequest. What is read belongs to the Request, and not
// to the message it came in.
type Request struct {
	// Affinity names the header that is read into Session, in lower case; set it before reading.
	Affinity string

	Kind Kind
	// Field is the number of what came, for messages of Kind Other; 0 is none.
	Field int
	// EndOfStream says that nothing follows.
	EndOfStream bool
	// Buffered says that bodies come in one piece; it comes with the first message.
	Buffered bool

	// Of Headers.
	Method, Path, ContentEncoding, ContentLength, Session string
	// Said are the headers whose names begin with envoynames.HintPrefix, at most maxSaid of them.
	Said []Header
	// Of Body. It is a fresh slice: decisions outlive the buffers of a connection.
	Body []byte
}

// Read reads a ProcessingRequest. On an error r is as it was, in part.
func (r *Request) Read(message []byte) error {
	*r = Request{Affinity: r.Affinity}
	var config, config1 bool
	part := []byte(nil)
	w := over(message)
	for w.next() {
		switch w.tag {
		case 2<<3 | length, 3<<3 | length, 4<<3 | length, 5<<3 | length, 6<<3 | length, 7<<3 | length, 12<<3 | length, 13<<3 | length:
			if w.once(&config1) {
				r.Field, part = int(w.tag>>3), w.bytes
			}
		case 11<<3 | length: // protocol_config
			if w.once(&config) {
				w.err = r.readConfig(w.bytes)
			}
		}
	}
	if w.err != nil {
		return w.err
	}
	switch r.Field {
	case 2:
		r.Kind = Headers
		return r.readHeaders(part)
	case 4:
		r.Kind = Body
		return r.readBody(part)
	}
	return nil
}

// readConfig reads a ProtocolConfiguration.
func (r *Request) readConfig(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == 1<<3|varint {
			r.Buffered = int32(w.number) == int32(filterv3.ProcessingMode_BUFFERED)
		}
	}
	return w.err
}

// maxSaid is more than there are headers with a meaning.
const maxSaid = 16

// readBody reads an HttpBody.
func (r *Request) readBody(message []byte) error {
	w := over(message)
	for w.next() {
		switch w.tag {
		case 1<<3 | length:
			r.Body = append(r.Body[:0:0], w.bytes...)
		case 2<<3 | varint:
			r.EndOfStream = protowire.DecodeBool(w.number)
		}
	}
	return w.err
}

// readHeaders reads an HttpHeaders.
func (r *Request) readHeaders(message []byte) error {
	seen := false
	w := over(message)
	for w.next() {
		switch w.tag {
		case 1<<3 | length:
			if w.once(&seen) {
				w.err = r.readMap(w.bytes)
			}
		case 3<<3 | varint:
			r.EndOfStream = protowire.DecodeBool(w.number)
		}
	}
	return w.err
}

// readMap reads a HeaderMap.
func (r *Request) readMap(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == 1<<3|length {
			w.err = r.readHeader(w.bytes)
		}
	}
	return w.err
}

// readHeader reads a HeaderValue. Of a header that comes more than once the last counts.
func (r *Request) readHeader(message []byte) error {
	var key, value, raw []byte
	w := over(message)
	for w.next() {
		switch w.tag {
		case 1<<3 | length:
			key = w.bytes
		case 2<<3 | length:
			value = w.bytes
		case 3<<3 | length:
			raw = w.bytes
		}
	}
	if len(raw) == 0 {
		raw = value
	}
	switch string(key) {
	case ":method":
		if r.Method = "POST"; string(raw) != r.Method { // nearly always, and a constant needs no memory
			r.Method = string(raw)
		}
	case ":path":
		r.Path = string(raw)
	case "content-encoding":
		r.ContentEncoding = string(raw)
	case "content-length":
		r.ContentLength = string(raw)
	case r.Affinity:
		r.Session = string(raw)
	default:
		if len(key) > len(envoynames.HintPrefix) && string(key[:len(envoynames.HintPrefix)]) == envoynames.HintPrefix && len(r.Said) < maxSaid {
			r.Said = append(r.Said, Header{Key: string(key), Value: string(raw)})
		}
	}
	return w.err
}

// String names what came, for errors.
func (r *Request) String() string {
	names := [...]string{2: "request_headers", 3: "response_headers", 4: "request_body", 5: "response_body", 6: "request_trailers", 7: "response_trailers"}
	if r.Field < len(names) && names[r.Field] != "" {
		return names[r.Field]
	}
	return fmt.Sprintf("with field %d", r.Field)
}
