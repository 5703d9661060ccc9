package stream_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/test/testkit"
)

// echo answers calls with their messages. open counts the connections that have not ended.
type echo struct {
	open atomic.Int64
	wait chan struct{} // received from before an answer to "wait"; nil does not wait
}

func (e *echo) connection() stream.Calls {
	e.open.Add(1)
	return e
}

func (e *echo) Close() { e.open.Add(-1) }

func (e *echo) Call(message []byte) ([]byte, error) {
	switch string(message) {
	case "decline":
		return nil, errors.New("a reason")
	case "wait":
		<-e.wait
	case "too much":
		return make([]byte, stream.MostAnswer+1), nil
	}
	return message, nil
}

// TestCalls makes calls from many goroutines beside transfers: each gets the answer to its own message.
func TestCalls(t *testing.T) {
	source, keys := someBlocks(layout, 64)
	e := &echo{}
	_, address := serve(t, source, func(c *stream.ServerConfig) { c.Calls = e.connection }, nil)
	c := connect(t, address, nil)

	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for k := range 20 {
				want := bytes.Repeat([]byte{byte(i), byte(k)}, 1+i*k)
				got, err := c.Call(t.Context(), want)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("an answer of %d bytes to %d bytes: %v", len(got), len(want), err)
				}
			}
		})
	}
	all.Go(func() {
		dst := slots(64)
		same(t, source, keys, dst, c.Fetch(t.Context(), keys, dst))
	})
	all.Wait()

	c.Close()
	testkit.Eventually(t, "all streams end", func() bool { return e.open.Load() == 0 })
	if _, err := c.Call(t.Context(), []byte("late")); !errors.Is(err, stream.ErrClosed) {
		t.Errorf("a call after Close: %v", err)
	}
}

// TestCallErrors has calls that are declined, too long, or given up. The connection is used on.
func TestCallErrors(t *testing.T) {
	source, keys := someBlocks(layout, 1)
	e := &echo{wait: make(chan struct{})}
	server, address := serve(t, source, func(c *stream.ServerConfig) { c.Calls = e.connection }, nil)
	c := connect(t, address, nil)
	if _, err := c.Call(t.Context(), []byte("decline")); !errors.Is(err, stream.ErrDeclined) || !bytes.Contains([]byte(err.Error()), []byte("a reason")) {
		t.Errorf("a call that was declined: %v", err)
	}
	if _, err := c.Call(t.Context(), []byte("too much")); !errors.Is(err, stream.ErrDeclined) {
		t.Errorf("an answer that is too long: %v", err)
	}
	for _, n := range []int{0, stream.MostCall + 1} {
		if _, err := c.Call(t.Context(), make([]byte, n)); err == nil {
			t.Errorf("a message of %d bytes was sent", n)
		}
	}

	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Call(short, []byte("wait")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call without an answer: %v", err)
	}
	close(e.wait) // the late answer is dropped
	answer, err := c.Call(t.Context(), []byte("next"))
	if err != nil || string(answer) != "next" {
		t.Errorf("the next call: %q, %v", answer, err)
	}
	dst := slots(1)
	same(t, source, keys, dst, c.Fetch(t.Context(), keys, dst))
	if n := server.Stats().Accepted; n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// TestPeerWithoutCalls: a server without calls, whose hello does not name them, gets none, and sends blocks.
func TestPeerWithoutCalls(t *testing.T) {
	source, keys := someBlocks(layout, 3)
	server, address := serve(t, source, nil, nil)
	c := connect(t, address, nil)
	if _, err := c.Call(t.Context(), []byte("message")); !errors.Is(err, stream.ErrNoCalls) {
		t.Errorf("the call: %v", err)
	}
	dst := slots(3)
	same(t, source, keys, dst, c.Fetch(t.Context(), keys, dst))
	if n := server.Stats().Accepted; n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// TestCallsEndWithTheirConnection: calls that wait get the error of the connection.
func TestCallsEndWithTheirConnection(t *testing.T) {
	source, _ := someBlocks(layout, 1)
	e := &echo{wait: make(chan struct{})}
	_, address := serve(t, source, func(c *stream.ServerConfig) { c.Calls = e.connection }, nil)
	c := connect(t, address, nil)
	ended := make(chan error, 4)
	for range cap(ended) {
		go func() {
			_, err := c.Call(t.Context(), []byte("wait"))
			ended <- err
		}()
	}
	testkit.Eventually(t, "a stream is open", func() bool { return e.open.Load() == 1 })
	c.Close()
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, stream.ErrClosed) {
			t.Errorf("the call ended with %v", err)
		}
	}
	close(e.wait)
}

// TestTooManyCalls: a client that does not keep to the bound of calls loses its connection.
func TestTooManyCalls(t *testing.T) {
	source, _ := someBlocks(layout, 1)
	e := &echo{wait: make(chan struct{})}
	_, address := serve(t, source, func(c *stream.ServerConfig) { c.Calls = e.connection }, nil)
	c := connect(t, address, func(c *stream.ClientConfig) { c.Requests = 100 })
	failed := make(chan error, 100)
	for range cap(failed) {
		go func() {
			_, err := c.Call(t.Context(), []byte("wait"))
			failed <- err
		}()
	}
	if err := <-failed; err == nil {
		t.Error("all calls were taken")
	}
	close(e.wait)
	c.Close()
	for range cap(failed) - 1 {
		<-failed
	}
}

// TestHandshakeThatEndsTwice: the server ends the connection during the handshake in the moment in which the context ends.
func TestHandshakeThatEndsTwice(t *testing.T) {
	for range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		here, there := net.Pipe()
		c, err := stream.NewClient(stream.ClientConfig{
			Token: token, Node: "client", Layout: layout, Dial: func(context.Context) (net.Conn, error) { return here, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = there.Read(make([]byte, 1))
			_ = there.Close()
			cancel()
		}()
		if _, err := c.Call(ctx, []byte("message")); err == nil {
			t.Fatal("a call without a server has an answer")
		}
		c.Close()
		cancel()
	}
}
