package nixl

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// bucket is an object store with the part of S3's protocol that the OBJ plugin uses: PUT, GET with ranges, and HEAD. It checks no
// signatures.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte // by path
	ranges  []string          // that were asked for
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Method == http.MethodPut {
		body, err := readBody(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		b.objects[r.URL.Path] = body
		w.Header().Set("ETag", `"1"`)
		return
	}

	data, ok := b.objects[r.URL.Path]
	if !ok {
		http.Error(w, "<Error><Code>NoSuchKey</Code></Error>", http.StatusNotFound)
		return
	}
	b.ranges = append(b.ranges, r.Header.Get("Range"))
	http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), bytes.NewReader(data))
}

// object returns the bytes of an object.
func (b *bucket) object(path string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objects[path]
}

// wasAsked reports whether a range of bytes was asked for.
func (b *bucket) wasAsked(bytes string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.ranges, bytes)
}

// readBody reads a body that may be in the chunks of aws-chunked: a length in hexadecimal with a signature after a semicolon, and the bytes.
func readBody(r *http.Request) ([]byte, error) {
	if !strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		return io.ReadAll(r.Body)
	}
	in := bufio.NewReader(r.Body)
	var body []byte
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		length, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseUint(length, 16, 30)
		if err != nil {
			return nil, fmt.Errorf("chunk %q: %w", line, err)
		}
		if n == 0 {
			return body, nil // trailers follow
		}
		chunk := make([]byte, n+2) // with the end of the line
		if _, err := io.ReadFull(in, chunk); err != nil {
			return nil, err
		}
		body = append(body, chunk[:n]...)
	}
}

// TestObjects puts an object, reads it back whole and in part, and asks which objects exist.
func TestObjects(t *testing.T) {
	const size = 256 << 10
	lib := library(t)
	store := &bucket{objects: map[string][]byte{}}
	server := httptest.NewServer(store)
	defer server.Close()

	m := memory(t, size)
	a, err := lib.NewAgent(AgentConfig{Name: "objects"})
	must(t, err)
	defer a.Close()
	obj, err := a.CreateBackend("OBJ", map[string]string{
		"access_key": "a", "secret_key": "s", "bucket": "blocks", "endpoint_override": server.URL, "scheme": "http", "region": "us-east-1",
		"use_virtual_addressing": "false",
	})
	must(t, err)
	must(t, a.Register(DRAM, []Descriptor{m.At(0, size)}, obj))
	object := Descriptor{Len: size, Device: 7, Meta: []byte("key-1")}
	must(t, a.Register(Object, []Descriptor{object}, obj))

	copyObject := func(op Op, offset, length int) {
		t.Helper()
		remote := Descriptor{Addr: uint64(offset), Len: uint64(length), Device: object.Device}
		r, err := a.CreateRequest(op, Side{DRAM, []Descriptor{m.At(offset, length)}}, Side{Object, []Descriptor{remote}}, a.Name(), nil)
		must(t, err)
		transfer(t, r)
		must(t, r.Close())
	}
	fill(m.Bytes(), 4)
	want := bytes.Clone(m.Bytes())
	copyObject(Write, 0, size)
	if got := store.object("/blocks/key-1"); !bytes.Equal(got, want) {
		t.Errorf("the object has %d bytes that differ from the memory", len(got))
	}
	clear(m.Bytes())
	copyObject(Read, 0, size)
	if !bytes.Equal(m.Bytes(), want) {
		t.Error("the bytes that were read differ")
	}
	clear(m.Bytes())
	copyObject(Read, 4096, 100)
	if !bytes.Equal(m.Bytes()[4096:4196], want[4096:4196]) || m.Bytes()[4196] != 0 || !store.wasAsked("bytes=4096-4195") {
		t.Error("a part that was read differs, or more than the part was asked for")
	}

	exists, err := a.Query(Object, []Descriptor{object, {Device: 8, Meta: []byte("absent")}}, obj)
	must(t, err)
	if !slices.Equal(exists, []bool{true, false}) {
		t.Errorf("query: %v", exists)
	}
	must(t, a.Deregister(Object, []Descriptor{object}, obj))
}
