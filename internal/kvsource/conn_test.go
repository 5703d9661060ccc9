package kvsource

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/iotest"
)

// FuzzBoundedConn reads a peer's bytes as the library does: a greeting, then frames by their headers.
// However the bytes are cut, the connection passes them on unchanged. It never passes on the header
// of a frame or message above the limit.
func FuzzBoundedConn(f *testing.F) {
	greeting := make([]byte, greetingLen)
	f.Add(append(greeting, 0, 3, 'a', 'b', 'c', 1, 0, 0, 1, 'x'), false)
	f.Add(append(greeting, 2, 0, 0, 0, 0, 0, 0, 1, 0), true)
	f.Add(append(greeting, 6, 0x40, 0, 0, 0, 0, 0, 0, 0), true)
	f.Add(append(greeting, bytes.Repeat([]byte{1, 0}, 40)...), false)
	f.Add(greeting[:10], false)
	f.Fuzz(func(t *testing.T, sent []byte, slow bool) {
		const limit = 300
		var r io.Reader = bytes.NewReader(sent)
		if slow {
			r = iotest.OneByteReader(r)
		}
		c := &boundedConn{Conn: noConn{}, r: bufio.NewReaderSize(r, 16), greeting: greetingLen, limit: limit, stop: func() bool { return true }}
		passed, err := readFrames(t, c, limit)
		if !bytes.HasPrefix(sent, passed) {
			t.Fatalf("%x passed of %x", passed, sent)
		}
		if err == nil {
			t.Fatal("the end of the bytes is no error")
		}
	})
}

type noConn struct{ net.Conn }

func readFrames(t *testing.T, c io.Reader, limit int) (passed []byte, err error) {
	read := func(n int) []byte {
		b := make([]byte, n)
		if err == nil {
			n, err = io.ReadFull(c, b)
			passed = append(passed, b[:n]...)
		}
		return b
	}
	read(greetingLen)
	for message := 0; err == nil; {
		header := read(2)
		size := uint64(header[1])
		if header[0]&flagLong != 0 {
			size = binary.BigEndian.Uint64(append(header[1:2:2], read(7)...))
		}
		if err != nil {
			break
		}
		if size > uint64(limit+4*frameCost) {
			t.Fatalf("a frame of %d bytes is announced", size)
		}
		if message += int(size) + frameCost; message > limit+4*frameCost {
			t.Fatalf("a message of %d bytes passes", message)
		}
		read(int(size))
		if header[0]&flagMore == 0 {
			message = 0
		}
	}
	return passed, err
}
