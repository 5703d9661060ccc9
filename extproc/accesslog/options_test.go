package accesslog

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

// TestVanishedEnvoyIsFound: an Envoy whose host loses power sends no end of its connections. The server pings it, and
// closes a connection without an answer, which ends the bookings of that Envoy.
func TestVanishedEnvoyIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := newMemory()
		g := grpc.NewServer(Options()...)
		served := make(chan error, 1)
		go func() { served <- g.Serve(ends) }()

		envoy := ends.dial()
		began := time.Now()
		go func() {
			const preface, settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
			_, _ = io.WriteString(envoy, preface+settings)
		}()
		_, _ = io.Copy(io.Discard, envoy) // it reads, and answers no ping
		if took := time.Since(began); took > pingInterval+pingTimeout+time.Second {
			t.Errorf("the connection was closed after %v", took)
		}

		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// inMemory is a listener for connections in memory.
type inMemory struct {
	conns chan net.Conn
	done  chan struct{}
	close sync.Once
}

func newMemory() *inMemory { return &inMemory{conns: make(chan net.Conn), done: make(chan struct{})} }

func (m *inMemory) dial() net.Conn {
	client, server := net.Pipe()
	m.conns <- server
	return client
}

func (m *inMemory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

func (m *inMemory) Close() error {
	m.close.Do(func() { close(m.done) })
	return nil
}

func (m *inMemory) Addr() net.Addr { return &net.TCPAddr{} }
