package messages

import (
	"time"

	"github.com/stator-project/stator/internal/envoynames"
)

// Log is what we read of a StreamAccessLogsMessage. Its entries are valid until it is read into
// again.
type Log struct{ Entries []Entry }

// Entry is what we read of one finished request.
type Entry struct {
	// Booking, Decision, Picked and Served are metadata under the names of package wire; empty
	// where nothing was said.
	Booking, Decision, Picked, Served string
	// Upstream says that a worker was reached, and Attempts how often one was tried.
	Upstream bool
	Attempts uint32
	// FirstByte is the time to the first byte of the worker's answer; 0 where there was none.
	FirstByte time.Duration
	// LastByte is the same of the last byte.
	LastByte time.Duration
	// ResponseBytes is the length of the answer's body, as the client got it.
	ResponseBytes uint64
}

// Read reads a StreamAccessLogsMessage.
func (l *Log) Read(message []byte) error {
	l.Entries = l.Entries[:0]
	seen := false
	w := over(message)
	for w.next() {
		if w.tag == 2<<3|length && w.once(&seen) { // http_logs
			w.err = l.readEntries(w.bytes)
		}
	}
	return w.err
}

func (l *Log) readEntries(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == 1<<3|length { // log_entry
			l.Entries = append(l.Entries, Entry{})
			w.err = l.Entries[len(l.Entries)-1].read(w.bytes)
		}
	}
	return w.err
}

// read reads an HTTPAccessLogEntry.
func (e *Entry) read(message []byte) error {
	var common, response bool
	w := over(message)
	for w.next() {
		switch w.tag {
		case 1<<3 | length: // common_properties
			if w.once(&common) {
				w.err = e.readCommon(w.bytes)
			}
		case 4<<3 | length: // response
			if w.once(&response) {
				w.err = e.readResponse(w.bytes)
			}
		}
	}
	return w.err
}

// readResponse reads an HTTPResponseProperties.
func (e *Entry) readResponse(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == 3<<3|varint { // response_body_bytes
			e.ResponseBytes = w.number
		}
	}
	return w.err
}

// readCommon reads an AccessLogCommon.
func (e *Entry) readCommon(message []byte) error {
	var first, last, meta bool
	w := over(message)
	for w.next() {
		switch w.tag {
		case 9<<3 | length: // time_to_first_upstream_rx_byte
			if w.once(&first) {
				e.FirstByte, w.err = readDuration(w.bytes)
			}
		case 10<<3 | length: // time_to_last_upstream_rx_byte
			if w.once(&last) {
				e.LastByte, w.err = readDuration(w.bytes)
			}
		case 13<<3 | length: // upstream_remote_address
			e.Upstream = true
		case 17<<3 | length: // metadata
			if w.once(&meta) {
				w.err = e.readMetadata(w.bytes)
			}
		case 24<<3 | varint: // upstream_request_attempt_count
			e.Attempts = uint32(w.number)
		}
	}
	return w.err
}

// readDuration reads a Duration.
func readDuration(message []byte) (time.Duration, error) {
	var seconds, nanos int64
	w := over(message)
	for w.next() {
		switch w.tag {
		case 1<<3 | varint:
			seconds = int64(w.number)
		case 2<<3 | varint:
			nanos = int64(int32(w.number))
		}
	}
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(max(seconds, 0), most-1))*time.Second + time.Duration(nanos), w.err
}

// readMetadata reads a Metadata.
func (e *Entry) readMetadata(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag != 1<<3|length { // filter_metadata
			continue
		}
		namespace, value, err := readEntry(w.bytes)
		if err != nil {
			return err
		}
		switch string(namespace) {
		case envoynames.Namespace:
			e.Booking, e.Decision = "", "" // of a key that comes more than once the last counts
			w.err = e.readFacts(true, value)
		case envoynames.NamespaceLB:
			e.Picked, e.Served = "", ""
			w.err = e.readFacts(false, value)
		}
	}
	return w.err
}

// readFacts reads a Struct, of our namespace or of the load balancer's.
func (e *Entry) readFacts(ours bool, message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag != 1<<3|length { // fields
			continue
		}
		key, value, err := readEntry(w.bytes)
		if err != nil {
			return err
		}
		var into *string
		switch k := string(key); {
		case ours && k == envoynames.Booking:
			into = &e.Booking
		case ours && k == envoynames.Decision:
			into = &e.Decision
		case !ours && k == envoynames.HeaderDestination:
			into = &e.Picked
		case !ours && k == envoynames.HeaderDestinationServed:
			into = &e.Served
		default:
			continue
		}
		*into, w.err = readText(value)
	}
	return w.err
}

// readEntry reads an entry of a map from text to messages.
func readEntry(message []byte) (key, value []byte, err error) {
	seen := false
	w := over(message)
	for w.next() {
		switch w.tag {
		case 1<<3 | length:
			key = w.bytes
		case 2<<3 | length:
			if w.once(&seen) {
				value = w.bytes
			}
		}
	}
	return key, value, w.err
}

// readText reads a Value: its text, empty for a value of another kind.
func readText(message []byte) (text string, err error) {
	w := over(message)
	for w.next() {
		switch w.tag {
		case 3<<3 | length:
			text = string(w.bytes)
		case 1<<3 | varint, 2<<3 | 1, 4<<3 | varint, 5<<3 | length, 6<<3 | length:
			text = ""
		}
	}
	return text, w.err
}
