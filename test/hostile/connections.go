package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// patience is the time for which a connection case waits for the gateway.
const patience = 5 * time.Second

// sendRaw sends bytes over a connection and returns the first answer. A connection that the gateway closes, and one on
// which nothing comes, have status 0.
func sendRaw(text string) func(gateway string) (int, []byte, error) {
	return func(gateway string) (int, []byte, error) {
		conn, err := net.DialTimeout("tcp", gateway, patience)
		if err != nil {
			return 0, nil, err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(conn, text); err != nil {
			return 0, nil, nil //nolint:nilerr // the gateway has closed the connection
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0, nil, nil //nolint:nilerr // the same
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
		return resp.StatusCode, body, nil
	}
}

// connectionCases: bytes that are no regular HTTP.
func connectionCases() []testCase {
	const host = "Host: gateway\r\n"
	length := func(body string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body) }
	line := "POST " + completionsPath + " HTTP/1.1\r\n"
	texts := []struct {
		name, text string
		want       []int
	}{
		{"HTTP/1.0", "POST " + completionsPath + " HTTP/1.0\r\n" + length(simple), []int{200}},
		{"HTTP/0.9", "GET /v1/models\r\n", []int{0, 200, 400}},
		{"HTTP/1.2", "GET /v1/models HTTP/1.2\r\n" + host + "\r\n", []int{0, 200, 400, 426, 505}},
		{"no host", line + length(simple), []int{400}},
		{"two hosts", line + host + host + length(simple), []int{200, 400}},
		{"no request", "\r\n\r\n\r\n", []int{0, 400}},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", []int{0, 400}},
		{"binary", strings.Repeat("\x00\xff", 2000), []int{0, 400}},
		{"a line without end", "GET /" + strings.Repeat("a", 100_000), []int{0, 400, 431}},
		{"a header without end", line + "x-a: " + strings.Repeat("b", 200_000), []int{0, 400, 431}},
		{"a header without a colon", line + host + "broken\r\n" + length(simple), []int{400}},
		{"a header with spaces", line + host + "x a: b\r\n" + length(simple), []int{400}},
		{"a NUL in a header", line + host + "x-a: b\x00c\r\n" + length(simple), []int{400}},
		{"two lengths", line + host + "Content-Length: 3\r\n" + length(simple), []int{400}},
		{"a negative length", line + host + "Content-Length: -5\r\n\r\n", []int{400}},
		{"a length that is a word", line + host + "Content-Length: many\r\n\r\n", []int{400}},
		{"a length above 2^64", line + host + "Content-Length: 99999999999999999999999\r\n\r\n", []int{0, 400, 413}},
		{"a length above the limit", line + host + "Content-Length: 999999999\r\n\r\n", []int{413}},
		{"a length and chunks", line + host + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", []int{400}},
		{"chunks", line + host + "Transfer-Encoding: chunked\r\n\r\n" + chunks(simple, 7), []int{200}},
		{"chunks of one byte", line + host + "Transfer-Encoding: chunked\r\n\r\n" + chunks(simple, 1), []int{200}},
		{"a chunk with an extension", line + host + "Transfer-Encoding: chunked\r\n\r\n" +
			strings.Replace(chunks(simple, 100), "\r\n", ";a=b\r\n", 1), []int{200}},
		{"a chunk of a wrong length", line + host + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", []int{0, 400}},
		{"a chunk of 2^64 bytes", line + host + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", []int{0, 400}},
		{"an unknown transfer encoding", line + host + "Transfer-Encoding: gzip\r\n\r\n", []int{0, 400, 501}},
		{"an absolute URL", "POST http://other" + completionsPath + " HTTP/1.1\r\n" + host + length(simple), []int{200}},
		{"CONNECT", "CONNECT other:80 HTTP/1.1\r\n" + host + "\r\n", []int{0, 400, 403, 404, 405}},
		{"a method of 5,000 letters", strings.Repeat("A", 5000) + " / HTTP/1.1\r\n" + host + "\r\n", []int{0, 400, 404, 405}},
		{"a path with a NUL", "POST /v1/\x00 HTTP/1.1\r\n" + host + "\r\n", []int{0, 400}},
		{"two requests in one", line + host + length(simple) + line + host + length(simple), []int{200}},
		{"a body after its end", line + host + length(simple) + "trailing", []int{200}},
		{"half a body", line + host + "Content-Length: 500\r\n\r\n{", []int{0}},
		{"no body", line + host + "\r\n", []int{400}},
	}

	var list []testCase
	for _, t := range texts {
		list = append(list, testCase{name: t.name, send: sendRaw(t.text), want: t.want, param: "*"})
	}
	for _, m := range http2Modes {
		list = append(list, testCase{name: "HTTP/2: " + m.name, send: m.send, want: []int{0, 200, 400}, param: "*",
			cpu: 2 * time.Second, bytes: 128 << 20})
	}
	return list
}

// chunks divides a body into chunks of n bytes.
func chunks(body string, n int) string {
	var b strings.Builder
	for len(body) > 0 {
		k := min(n, len(body))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", k, body[:k])
		body = body[k:]
	}
	return b.String() + "0\r\n\r\n"
}

// http2Modes are ways in which a client can misuse HTTP/2. After each of them the gateway must still answer.
var http2Modes = []struct {
	name string
	send func(gateway string) (int, []byte, error)
}{
	{"1,000 streams that are reset", overHTTP2(1000, func(f *h2, id uint32) error {
		return firstError(f.headers(id, false), f.WriteRSTStream(id, http2.ErrCodeCancel))
	})},
	{"1,000 streams reset after their bodies", overHTTP2(1000, func(f *h2, id uint32) error {
		return firstError(f.headers(id, false), f.WriteData(id, true, []byte(simple)), f.WriteRSTStream(id, http2.ErrCodeCancel))
	})},
	{"100 streams that never end", overHTTP2(100, func(f *h2, id uint32) error { return f.headers(id, false) })},
	{"data after the end", overHTTP2(5, func(f *h2, id uint32) error {
		return firstError(f.headers(id, true), f.WriteData(id, true, []byte(simple)))
	})},
	{"a window of 0", overHTTP2(50, func(f *h2, id uint32) error {
		return firstError(f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
			f.headers(id, false), f.WriteData(id, true, []byte(simple)))
	})},
	{"a length that does not fit", overHTTP2(20, func(f *h2, id uint32) error {
		return firstError(f.headers(id, false, "content-length", "5"), f.WriteData(id, true, []byte(simple)))
	})},
	{"trailers", overHTTP2(20, func(f *h2, id uint32) error {
		return firstError(f.headers(id, false), f.WriteData(id, false, []byte(simple)), f.trailers(id))
	})},
	{"5,000 pings", overHTTP2(5000, func(f *h2, _ uint32) error { return f.WritePing(false, [8]byte{}) })},
	{"5,000 settings", overHTTP2(5000, func(f *h2, _ uint32) error { return f.WriteSettings() })},
	{"5,000 empty frames", overHTTP2(5000, func(f *h2, id uint32) error {
		if id == 1 {
			return f.headers(id, false)
		}
		return f.WriteData(1, false, nil)
	})},
	{"continuations without end", overHTTP2(2000, func(f *h2, id uint32) error {
		if id == 1 {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block()})
		}
		return f.WriteContinuation(1, false, nil)
	})},
	{"priorities of streams that depend on themselves", overHTTP2(1000, func(f *h2, id uint32) error {
		return f.WritePriority(id, http2.PriorityParam{StreamDep: id})
	})},
}

// h2 writes the frames of a client.
type h2 struct {
	*http2.Framer
	fields bytes.Buffer
	encode *hpack.Encoder
}

// block encodes the header fields of a completion, and further ones in pairs.
func (f *h2) block(pairs ...string) []byte {
	f.fields.Reset()
	all := append([]string{":method", "POST", ":scheme", "http", ":authority", "gateway", ":path", completionsPath,
		"content-type", "application/json"}, pairs...)
	for i := 0; i+1 < len(all); i += 2 {
		_ = f.encode.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	return bytes.Clone(f.fields.Bytes())
}

func (f *h2) headers(id uint32, end bool, pairs ...string) error {
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block(pairs...), EndHeaders: true, EndStream: end})
}

func (f *h2) trailers(id uint32) error {
	f.fields.Reset()
	_ = f.encode.WriteField(hpack.HeaderField{Name: "x-trailer", Value: "v"})
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.fields.Bytes(), EndHeaders: true, EndStream: true})
}

func firstError(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

// overHTTP2 calls write n times with odd stream ids, over one connection. Then it asks the gateway over another
// connection whether it lives, and returns that answer.
func overHTTP2(n int, write func(f *h2, id uint32) error) func(gateway string) (int, []byte, error) {
	return func(gateway string) (int, []byte, error) {
		conn, err := net.DialTimeout("tcp", gateway, patience)
		if err != nil {
			return 0, nil, err
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		go func() { _, _ = io.Copy(io.Discard, conn) }() // so that the gateway can write; ends with the connection

		out := bufio.NewWriterSize(conn, 64<<10)
		f := &h2{Framer: http2.NewFramer(out, nil)}
		f.encode = hpack.NewEncoder(&f.fields)
		_, err = out.WriteString(http2.ClientPreface)
		if err == nil {
			err = f.WriteSettings()
		}
		for i := 0; i < n && err == nil; i++ {
			err = write(f, uint32(2*i+1))
		}
		_ = out.Flush() // the gateway may have closed the connection
		time.Sleep(200 * time.Millisecond)
		_ = conn.Close()
		return sendRaw("GET /live HTTP/1.1\r\nHost: gateway\r\n\r\n")(gateway)
	}
}
