package messages

import (
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
