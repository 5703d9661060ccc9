package messages

import (
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/envoynames"
)

// Names are the names of headers that the configuration selects, in lower case. An empty name selects none.
type Names struct {
	// Role names the client's role by Envoy's own authentication, and Tenant the client's tenant by the same.
	Role, Tenant string
	// Sessions name the client's session. The first one that a request has counts. An empty one selects none.
	Sessions []string
}

// maxHints exceeds the number of hint headers that exist. Further ones are dropped, because a client could
// send thousands.
const maxHints = 16

// readHeaders decodes an HttpHeaders of the request or the response, and calls use for each header.
func (r *Request) readHeaders(message []byte, use func(key, value []byte)) error {
	hasHeaders := false
	w := over(message)
	for w.next() {
		switch w.tag {
		case headersHeaders<<3 | length:
			if w.once(&hasHeaders) {
				w.err = readMap(w.bytes, use)
			}
		case headersEndOfStream<<3 | varint:
			r.EndOfStream = protowire.DecodeBool(w.number)
		}
	}
	return w.err
}

// readMap decodes a HeaderMap.
func readMap(message []byte, use func(key, value []byte)) error {
	w := over(message)
	for w.next() {
		if w.tag == headerMapHeaders<<3|length {
			w.err = readHeaderValue(w.bytes, use)
		}
	}
	return w.err
}

// readHeaderValue decodes a HeaderValue.
func readHeaderValue(message []byte, use func(key, value []byte)) error {
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
	use(key, raw)
	return w.err
}

// readHeader stores a header of the request. The last value of a repeated header counts.
func (r *Request) readHeader(key, raw []byte) {
	switch string(key) {
	case ":method":
		r.Method = methodOf(raw)
	case ":path":
		r.Path = string(raw)
	case "content-encoding":
		r.ContentEncoding = string(raw)
	case "content-length":
		r.ContentLength = string(raw)
	case "x-request-id":
		r.RequestID = string(raw)
	case "authorization":
		r.Authorization = string(raw)
	case spans.Header:
		r.Trace = spans.Parse(raw)
	default:
		r.readNamed(key, raw)
		if isHint(key) && len(r.Hints) < maxHints {
			r.Hints = append(r.Hints, envoynames.Header{Key: string(key), Value: string(raw)})
		}
	}
}

// readNamed stores the value of a header that Names selects. One header may be selected more than once.
func (r *Request) readNamed(key, value []byte) {
	if len(key) == 0 {
		return
	}
	if string(key) == r.Names.Role {
		r.Role = string(value)
	}
	if string(key) == r.Names.Tenant {
		r.Tenant = string(value)
	}
	r.readSession(key, value)
}

// readSession stores the value of a header with a session, unless one with an earlier name is stored.
func (r *Request) readSession(key, value []byte) {
	if len(value) == 0 {
		return
	}
	for i, name := range r.Names.Sessions {
		switch {
		case r.Session != "" && i > r.SessionAt:
			return
		case string(key) == name:
			r.Session, r.SessionAt = string(value), i
			return
		}
	}
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
