package messages

import (
	"cmp"
	"net"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stator-project/stator/internal/envoynames"
)

// Log holds the entries of a StreamAccessLogsMessage. They are valid until the next Read.
type Log struct{ Entries []Entry }

// Entry holds the fields of a finished request that the router needs.
type Entry struct {
	// Booking, Decision and Picked are dynamic metadata, under the names of package envoynames. They are empty if the metadata is
	// missing. Ids in Stator's own namespace count before ids in the load balancer's.
	Booking, Decision, Picked string
	// Served is the address of the worker of the last attempt, as ip:port: from dynamic metadata, or else Envoy's upstream remote address.
	// It is empty if no worker was reached by IP.
	Served string
	// Upstream means that a worker was reached. Attempts is the number of times that one was tried.
	Upstream bool
	Attempts uint32
	// FirstByte and LastByte are the times from the request to the first and the last byte of the
	// worker's response; 0 without a response.
	FirstByte, LastByte time.Duration
	// FirstToken is the time from the request to the first byte of the response's body, by the custom tag of that name. It is 0
	// without a body, and if the access log has no such tag.
	FirstToken time.Duration
	// ResponseBytes is the size of the response's body, as the client received it.
	ResponseBytes uint64
	// Counted means that Envoy has read the usage in the answer, and AnswerTokens are its tokens, at most maxAnswerTokens.
	Counted      bool
	AnswerTokens uint64
	// Status is the HTTP status that the client received; 0 for none.
	Status uint32
	// Broken means that the worker's side ended the request early: it could not be reached, or it reset or closed
	// the connection. Left means that the client did.
	Broken, Left bool
	// RequestID is the header x-request-id. It is read only where Booking is empty.
	RequestID string
}

// IsEmptyAnswer reports whether an answer with 200 has no token: by its usage, or because its body is empty. An answer with a body and
// without usage counts as one with tokens. regular is false for other answers, and if it is not known how the answer ended.
func (e *Entry) IsEmptyAnswer() (isEmpty, regular bool) {
	if e.Status != http.StatusOK || e.Broken || e.Left || e.LastByte == 0 {
		return false, false
	}
	if e.Counted {
		return e.AnswerTokens == 0, true
	}
	return e.ResponseBytes == 0, true
}

// Read decodes a StreamAccessLogsMessage.
func (l *Log) Read(message []byte) error {
	l.Entries = l.Entries[:0]
	seen := false
	w := over(message)
	for w.next() {
		if w.tag == streamHTTPLogs<<3|length && w.once(&seen) {
			w.err = l.readLogEntries(w.bytes)
		}
	}
	return w.err
}

// readLogEntries decodes an HTTPAccessLogEntries.
func (l *Log) readLogEntries(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == entriesLogEntry<<3|length {
			l.Entries = append(l.Entries, Entry{})
			w.err = l.Entries[len(l.Entries)-1].decode(w.bytes)
		}
	}
	return w.err
}

// decode decodes an HTTPAccessLogEntry.
func (e *Entry) decode(message []byte) error {
	var common, request, response bool
	var properties []byte // of the request
	w := over(message)
	for w.next() {
		switch w.tag {
		case logRequest<<3 | length:
			if w.once(&request) {
				properties = w.bytes
			}
		case logCommonProperties<<3 | length:
			if w.once(&common) {
				w.err = e.readCommon(w.bytes)
			}
		case logResponse<<3 | length:
			if w.once(&response) {
				w.err = e.readResponse(w.bytes)
			}
		}
	}
	if w.err == nil && e.Booking == "" {
		w.err = e.readRequest(properties)
	}
	return w.err
}

// readRequest decodes an HTTPRequestProperties.
func (e *Entry) readRequest(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == requestID<<3|length {
			e.RequestID = string(w.bytes)
		}
	}
	return w.err
}

// readResponse decodes an HTTPResponseProperties.
func (e *Entry) readResponse(message []byte) error {
	code := false
	w := over(message)
	for w.next() {
		switch w.tag {
		case responseCode<<3 | length:
			if w.once(&code) {
				e.Status, w.err = readUInt32(w.bytes)
			}
		case responseBodyBytes<<3 | varint:
			e.ResponseBytes = w.number
		}
	}
	return w.err
}

// readUInt32 decodes a UInt32Value.
func readUInt32(message []byte) (uint32, error) {
	n, err := readWrapped(message, 0)
	return uint32(n), err
}

// readWrapped decodes a UInt64Value. n is the value so far: a repeated message is merged.
func readWrapped(message []byte, n uint64) (uint64, error) {
	w := over(message)
	for w.next() {
		if w.tag == wrapperValue<<3|varint {
			n = w.number
		}
	}
	return n, w.err
}

// The flags that mean that the worker's side ended a request early, and the flags that mean that the client
// did.
const (
	brokenFlags = 1<<flagNoHealthyUpstream | 1<<flagUpstreamRequestTimeout | 1<<flagUpstreamRemoteReset |
		1<<flagUpstreamConnectionFailure | 1<<flagUpstreamConnectionTermination | 1<<flagUpstreamOverflow |
		1<<flagStreamIdleTimeout | 1<<flagUpstreamProtocolError
	leftFlags = 1<<flagDownstreamConnectionTermination | 1<<flagDownstreamRemoteReset
)

// readFlags decodes a ResponseFlags. The last value of a repeated flag counts.
func (e *Entry) readFlags(message []byte) error {
	var set uint64
	w := over(message)
	for w.next() {
		field := w.tag >> 3
		if w.tag&7 != varint || field > flagDownstreamRemoteReset {
			continue // the reason of a refused authorization, or a flag of a later Envoy
		}
		set &^= 1 << field
		if protowire.DecodeBool(w.number) {
			set |= 1 << field
		}
	}
	e.Broken = set&brokenFlags != 0
	e.Left = set&leftFlags != 0
	return w.err
}

// readCommon decodes an AccessLogCommon.
func (e *Entry) readCommon(message []byte) error {
	var first, last, flags, meta, remote bool
	var address []byte // of the worker

	w := over(message)
	for w.next() {
		switch w.tag {
		case commonTimeToFirstUpstreamByte<<3 | length:
			if w.once(&first) {
				e.FirstByte, w.err = readDuration(w.bytes)
			}
		case commonTimeToLastUpstreamByte<<3 | length:
			if w.once(&last) {
				e.LastByte, w.err = readDuration(w.bytes)
			}
		case commonUpstreamRemoteAddress<<3 | length:
			e.Upstream = true
			if w.once(&remote) {
				address = w.bytes
			}
		case commonResponseFlags<<3 | length:
			if w.once(&flags) {
				w.err = e.readFlags(w.bytes)
			}
		case commonMetadata<<3 | length:
			if w.once(&meta) {
				w.err = e.readMetadata(w.bytes)
			}
		case commonUpstreamRequestAttempts<<3 | varint:
			e.Attempts = uint32(w.number)
		case commonCustomTags<<3 | length:
			w.err = e.readTag(w.bytes)
		}
	}
	if w.err == nil && e.Served == "" {
		e.Served, w.err = readAddress(address)
	}
	return w.err
}

// readTag reads a custom tag. Others than the time of the first token, and values that are no time, are skipped.
func (e *Entry) readTag(message []byte) error {
	name, value, err := readEntry(message)
	if err != nil || string(name) != envoynames.TagFirstToken {
		return err
	}
	e.FirstToken = 0
	if us, err := strconv.ParseUint(string(value), 10, 32); err == nil {
		e.FirstToken = time.Duration(us) * time.Microsecond
	}
	return nil
}

// readAddress decodes an Address and returns its ip:port; empty for an address of another kind. The last kind counts.
func readAddress(message []byte) (address string, err error) {
	var socket bool
	w := over(message)
	for w.next() {
		switch w.tag {
		case addressSocket<<3 | length:
			if w.once(&socket) {
				address, w.err = readSocketAddress(w.bytes)
			}
		case addressPipe<<3 | length, addressInternal<<3 | length:
			address = ""
		}
	}
	return address, w.err
}

// readSocketAddress decodes a SocketAddress and returns its ip:port; empty for one without a number of a port. The last kind counts.
func readSocketAddress(message []byte) (address string, err error) {
	var ip []byte
	var port uint32
	w := over(message)
	for w.next() {
		switch w.tag {
		case socketAddress<<3 | length:
			ip = w.bytes
		case socketPort<<3 | varint:
			port = uint32(w.number)
		case socketNamedPort<<3 | length:
			port = 0
		}
	}
	if w.err != nil || len(ip) == 0 || port == 0 {
		return "", w.err
	}
	return net.JoinHostPort(string(ip), strconv.FormatUint(uint64(port), 10)), nil
}

// readDuration decodes a Duration. Negative seconds are 0, and seconds beyond the range of time.Duration are its
// maximum.
func readDuration(message []byte) (time.Duration, error) {
	var seconds, nanos int64
	w := over(message)
	for w.next() {
		switch w.tag {
		case durationSeconds<<3 | varint:
			seconds = int64(w.number)
		case durationNanos<<3 | varint:
			nanos = int64(int32(w.number))
		}
	}

	const maxSeconds = int64(1<<63-1)/int64(time.Second) - 1
	return time.Duration(min(max(seconds, 0), maxSeconds))*time.Second + time.Duration(nanos), w.err
}

// readMetadata decodes a Metadata. The last value of a repeated key counts, as in every map.
func (e *Entry) readMetadata(message []byte) error {
	var own, lb ids
	err := readEntries(message, func(namespace, value []byte) error {
		switch string(namespace) {
		case envoynames.Namespace:
			own = ids{}
			return e.readNamespace(&own, true, value)
		case envoynames.NamespaceLB:
			e.Picked, e.Served = "", ""
			lb = ids{}
			return e.readNamespace(&lb, false, value)
		}
		return nil
	})
	e.Booking = cmp.Or(own.booking, lb.booking)
	e.Decision = cmp.Or(own.decision, lb.decision)
	if err != nil {
		return err
	}
	return e.readTyped(message)
}

// maxAnswerTokens bounds the tokens that an engine can claim: more than any engine computes for one request.
const maxAnswerTokens = 1 << 24

// readTyped decodes the usage in the typed values of a Metadata.
func (e *Entry) readTyped(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag != metadataTyped<<3|length {
			continue
		}
		key, value, err := readEntry(w.bytes)
		if err == nil && string(key) == envoynames.NamespaceUsage {
			err = e.readAny(value)
		}
		w.err = err
	}
	return w.err
}

// readAny decodes an Any of a TokenUsage. The content of another type, or one that is no message, counts as none.
func (e *Entry) readAny(message []byte) error {
	var kind, content []byte
	w := over(message)
	for w.next() {
		switch w.tag {
		case anyType<<3 | length:
			kind = w.bytes
		case anyValue<<3 | length:
			content = w.bytes
		}
	}
	e.Counted, e.AnswerTokens = false, 0
	if w.err == nil && string(kind) == envoynames.TypeUsage {
		e.readUsage(content)
	}
	return w.err
}

// readUsage decodes a TokenUsage. The usage of an answer without tokens of its own, such as an embedding, counts as none.
func (e *Entry) readUsage(message []byte) {
	var tokens uint64
	counted := false
	w := over(message)
	for w.next() {
		if w.tag == usageOutputTokens<<3|length {
			counted = true
			tokens, w.err = readWrapped(w.bytes, tokens)
		}
	}
	if w.err == nil && counted {
		e.Counted = true
		e.AnswerTokens = min(tokens, maxAnswerTokens)
	}
}

// ids are the ids in one namespace.
type ids struct{ booking, decision string }

// readNamespace decodes the Struct of a namespace: Stator's own, or the load balancer's.
func (e *Entry) readNamespace(found *ids, own bool, message []byte) error {
	return readEntries(message, func(key, value []byte) (err error) {
		var into *string
		switch k := string(key); {
		case own && k == envoynames.Booking, !own && k == envoynames.BookingLB:
			into = &found.booking
		case own && k == envoynames.Decision, !own && k == envoynames.DecisionLB:
			into = &found.decision
		case !own && k == envoynames.HeaderDestination:
			into = &e.Picked
		case !own && k == envoynames.HeaderDestinationServed:
			into = &e.Served
		default:
			return nil
		}
		*into, err = readText(value)
		return err
	})
}

// readEntries decodes the map of a Metadata or of a Struct, whose fields have one number, and calls use for each entry. An error of use
// ends it.
func readEntries(message []byte, use func(key, value []byte) error) error {
	w := over(message)
	for w.next() {
		if w.tag != structFields<<3|length {
			continue
		}
		key, value, err := readEntry(w.bytes)
		if err == nil {
			err = use(key, value)
		}
		w.err = err
	}
	return w.err
}

// readEntry decodes an entry of a map from text to messages.
func readEntry(message []byte) (key, value []byte, err error) {
	seen := false
	w := over(message)
	for w.next() {
		switch w.tag {
		case entryKey<<3 | length:
			key = w.bytes
		case entryValue<<3 | length:
			if w.once(&seen) {
				value = w.bytes
			}
		}
	}
	return key, value, w.err
}

// readText decodes a Value and returns its text; empty for a value of another kind. The last kind counts.
func readText(message []byte) (text string, err error) {
	w := over(message)
	for w.next() {
		switch w.tag {
		case valueString<<3 | length:
			text = string(w.bytes)
		case valueNull<<3 | varint, valueNumber<<3 | fixed64, valueBool<<3 | varint, valueStruct<<3 | length, valueList<<3 | length:
			text = ""
		}
	}
	return text, w.err
}
