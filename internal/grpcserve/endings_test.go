package grpcserve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestLastMessageAndStatusComeTogether: the status of a stream is in the same write as its last message, although the handler's goroutine
// rests between them. Without EndTogether it is not.
func TestLastMessageAndStatusComeTogether(t *testing.T) {
	for _, together := range []bool{true, false} {
		ln := &recorder{Listener: listen(t)}
		client := serveStreams(t, ln, func(s grpc.ServerStream) error {
			if together {
				EndTogether(s.Context())
			}
			return s.SendMsg(wrapperspb.String("the last message"))
		})
		if got, err := call(t.Context(), client); err != nil || got != "the last message" {
			t.Fatalf("received %q, %v", got, err)
		}
		if got := ln.statusFollows("the last message"); got != together {
			t.Errorf("EndTogether %t: in one write %t", together, got)
		}
	}
}

// TestResetStreamHoldsNoOthers: a stream that the client resets while it ends has no status. Other streams of the connection go on.
func TestResetStreamHoldsNoOthers(t *testing.T) {
	begun := make(chan struct{})
	var first sync.Once
	client := serveStreams(t, listen(t), func(s grpc.ServerStream) error {
		mine := false
		first.Do(func() { mine = true })
		if !mine {
			return s.SendMsg(wrapperspb.String("served"))
		}
		EndTogether(s.Context())
		close(begun)
		<-s.Context().Done()
		return s.Context().Err()
	})

	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	if got, err := call(ctx, client); err == nil {
		t.Fatalf("received %q", got)
	}
	for range 3 {
		if got, err := call(t.Context(), client); err != nil || got != "served" {
			t.Fatalf("received %q, %v", got, err)
		}
	}
}

// TestHeldBytesAreBounded: more than maxHeld is written while a stream ends, and what is held for long, too.
func TestHeldBytesAreBounded(t *testing.T) {
	var e Endings
	ln := e.Listener(listen(t))
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := accepted.(*heldConn)
	defer func() { _ = c.Close() }()

	c.begin()
	for _, size := range []int{maxHeld, 1, 5} { // the second exceeds the bound, the third is held until it is late
		if n, err := c.Write(make([]byte, size)); n != size || err != nil {
			t.Fatalf("%d bytes written of %d: %v", n, size, err)
		}
	}
	if n, err := io.ReadFull(client, make([]byte, maxHeld+6)); err != nil {
		t.Errorf("%d bytes came: %v", n, err)
	}
}

// serveStreams serves streams by a handler, whose goroutine rests before gRPC writes the status.
func serveStreams(t *testing.T, ln net.Listener, handler func(grpc.ServerStream) error) *grpc.ClientConn {
	t.Helper()
	var e Endings
	rest := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		err := next(srv, s)
		time.Sleep(20 * time.Millisecond)
		return err
	}
	srv := grpc.NewServer(e.Option(), grpc.StreamInterceptor(rest))
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { return handler(s) }}},
	}, struct{}{})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(e.Listener(ln)) }()

	client, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return client
}

// call opens a stream and returns its only message.
func call(ctx context.Context, client *grpc.ClientConn) (string, error) {
	s, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test/Stream")
	if err != nil {
		return "", err
	}
	var m wrapperspb.StringValue
	if err := s.RecvMsg(&m); err != nil {
		return "", err
	}
	if err := s.RecvMsg(&wrapperspb.StringValue{}); !errors.Is(err, io.EOF) {
		return "", err
	}
	return m.Value, nil
}

// recorder is a listener that keeps what its connections write.
type recorder struct {
	net.Listener
	mu     sync.Mutex
	writes [][]byte
}

func (r *recorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	return recorded{c, r}, err
}

type recorded struct {
	net.Conn
	to *recorder
}

func (c recorded) Write(p []byte) (int, error) {
	c.to.mu.Lock()
	c.to.writes = append(c.to.writes, slices.Clone(p))
	c.to.mu.Unlock()
	return c.Conn.Write(p)
}

// statusFollows reports whether the write with a message also has a frame of headers that ends the stream.
func (r *recorder) statusFollows(message string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.writes {
		if !bytes.Contains(w, []byte(message)) {
			continue
		}
		frames := http2.NewFramer(io.Discard, bytes.NewReader(w))
		for {
			f, err := frames.ReadFrame()
			if err != nil {
				return false
			}
			if h, ok := f.(*http2.HeadersFrame); ok && h.StreamEnded() {
				return true
			}
		}
	}
	return false
}
