package messages

import (
	"net"
	"strconv"
	"time"
)

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

// textOf returns the text under a key of a Struct; empty if there is none.
func textOf(message []byte, key string) (text string, err error) {
	err = readEntries(message, func(name, value []byte) (err error) {
		if string(name) == key {
			text, err = readText(value)
		}
		return err
	})
	return text, err
}
