package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/kv/block"
)

var layout = block.Layout{Model: "m", Layers: 2, PageTokens: 16, Outer: 2, Inner: 64, DType: "float16", TPSize: 1, Hashing: "sha256"}

func endpoint() *Endpoint {
	return &Endpoint{
		Version: EndpointVersion, Agent: "node-1", Layout: layout, Slots: 8, Stride: layout.Bytes(), Base: 1 << 40, Metadata: []byte("m"),
	}
}

// pair returns two connected ends.
func pair(t *testing.T) (*Conn, *Conn) {
	t.Helper()

	a, socket, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewConn(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestFrames sends messages of several sizes, with and without a file, which arrive in order with their files.
func TestFrames(t *testing.T) {
	a, b := pair(t)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	go func() {
		for i := range 20 {
			var with *os.File
			if i%3 == 0 {
				with = file
			}
			if err := a.Send(&Request{ID: uint64(i), Op: OpRemovePeer, Name: strings.Repeat("x", i*5000)}, with); err != nil {
				t.Error(err)
			}
		}
		a.Close()
	}()
	for i := range 20 {
		var r Request
		got, err := b.Receive(&r)
		if err != nil {
			t.Fatal(err)
		}
		if r.ID != uint64(i) || len(r.Name) != i*5000 || (got != nil) != (i%3 == 0) {
			t.Errorf("message %d: id %d, %d bytes, file %v", i, r.ID, len(r.Name), got)
		}
		if got != nil {
			got.Close()
		}
	}
	if _, err := b.Receive(&Request{}); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestFrameBounds(t *testing.T) {
	a, b := pair(t)
	if err := a.Send(&Request{Name: strings.Repeat("x", MaxFrame)}, nil); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large message: %v", err)
	}

	if _, err := a.c.Write(binary.LittleEndian.AppendUint32(nil, MaxFrame+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Receive(&Request{}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large length: %v", err)
	}
}

func TestInvalidMessages(t *testing.T) {
	for name, change := range map[string]func(e *Endpoint){
		"version":  func(e *Endpoint) { e.Version = 2 },
		"a name":   func(e *Endpoint) { e.Agent = "" },
		"visible":  func(e *Endpoint) { e.Agent = "a\nb" },
		"layout":   func(e *Endpoint) { e.Layout.DType = "x" },
		"slots":    func(e *Endpoint) { e.Slots = MaxSlots + 1 },
		"stride":   func(e *Endpoint) { e.Stride = layout.Bytes() - 1 },
		"base":     func(e *Endpoint) { e.Base = math.MaxUint64 - 10 },
		"metadata": func(e *Endpoint) { e.Metadata = nil },
	} {
		e := endpoint()
		change(e)
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseEndpoint(text); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}

	for name, r := range map[string]*Request{
		"unknown":     {Op: "x"},
		"open":        {Op: OpOpen},
		"backends":    {Op: OpOpen, Open: &Open{Name: "a", Layout: layout, Slots: 1, Stride: layout.Bytes()}},
		"addPeer":     {Op: OpAddPeer},
		"transfer":    {Op: OpTransfer},
		"same number": {Op: OpTransfer, Transfer: &Transfer{Peer: "p", Local: []int32{1}, TimeoutMicros: 1}},
		"timeout":     {Op: OpTransfer, Transfer: &Transfer{Peer: "p", Local: []int32{1}, Remote: []int32{1}}},
		"slot -1":     {Op: OpTransfer, Transfer: &Transfer{Peer: "p", Local: []int32{-1}, Remote: []int32{1}, TimeoutMicros: 1}},
		"1 to":        {Op: OpRemovePeer},
	} {
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzFrame reads frames of any bytes as requests. No frame may panic, and a valid request has to keep its meaning when it is sent on.
func FuzzFrame(f *testing.F) {
	text, err := json.Marshal(&Request{ID: 7, Op: OpTransfer, Transfer: &Transfer{
		Peer: "p", Local: []int32{1}, Remote: []int32{2}, TimeoutMicros: 5,
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(len(text)), text)
	f.Add(uint32(1<<31), []byte("{}"))
	f.Add(uint32(2), []byte(`{"op":"open","open":{}}`))
	f.Fuzz(func(t *testing.T, n uint32, data []byte) {
		var r Request
		if err := readMessage(bytes.NewReader(data), n, &r); err != nil || r.Validate() != nil {
			return
		}
		again, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		var second Request
		if err := readMessage(bytes.NewReader(again), uint32(len(again)), &second); err != nil || second.Validate() != nil {
			t.Errorf("%s is invalid after it was written again: %v", data, err)
		}
	})
}

// FuzzEndpoint reads endpoints of any bytes. A valid one has slots within the address space.
func FuzzEndpoint(f *testing.F) {
	text, err := json.Marshal(endpoint())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := ParseEndpoint(data)
		if err != nil {
			return
		}
		if end := e.Base + uint64(e.Slots)*uint64(e.Stride); end < e.Base || end > math.MaxInt64 || e.Layout.Bytes() > e.Stride {
			t.Errorf("slots end at %#x", end)
		}
	})
}
