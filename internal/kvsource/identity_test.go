package kvsource

import (
	"testing"
	"testing/synctest"
	"time"
)

// newTestSource returns a source that is not run. Nothing answers at its replay socket, if it has one.
func newTestSource(t *testing.T, cfg Config) *Source {
	t.Helper()
	cfg.Endpoint = "tcp://127.0.0.1:1"
	cfg.RetryMin = time.Millisecond
	cfg.Timeout = 5 * time.Millisecond
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.consumer = deaf{}
	return s
}

// TestUnidentifiedMessagesDoNotReplaceTheLast: a source compares the last message that it accepted before a
// connection, until the engine has answered. Messages of the connection may be another process's: if they replaced
// it, that process would be taken for the old one.
func TestUnidentifiedMessagesDoNotReplaceTheLast(t *testing.T) {
	s := newTestSource(t, Config{Replay: "tcp://127.0.0.1:1"})
	s.onConnection(t.Context(), 1)
	s.deliver(liveMessage{seq: 4, payload: []byte("of one process")})
	first := s.last

	s.onConnection(t.Context(), 2)
	s.onLive(t.Context(), liveMessage{seq: 5, payload: []byte("of which process?")})
	if !first.known || s.last != first {
		t.Errorf("the last message is %+v, and was %+v", s.last, first)
	}
}

// TestNumbersRevealARestartWithoutAReplaySocket: no process publishes a number twice. So the first message of a
// connection belongs to another process if its number is not above the last one accepted.
func TestNumbersRevealARestartWithoutAReplaySocket(t *testing.T) {
	s := newTestSource(t, Config{})
	for _, c := range []struct {
		connection bool
		seq        uint64
		restarts   uint64
	}{
		{true, 0, 0}, {false, 1, 0},
		{true, 2, 0}, // nothing was missed, or another process has counted as far
		{true, 2, 1}, {false, 3, 1},
		{true, 0, 2}, {false, 1, 2},
	} {
		if c.connection {
			s.onConnection(t.Context(), 1)
		}
		s.onLive(t.Context(), liveMessage{seq: c.seq})
		if n := s.Stats().Restarts; n != c.restarts {
			t.Errorf("after message %d: %d restarts, want %d", c.seq, n, c.restarts)
		}
	}
}

// TestWaitingMessagesAreBoundedInBytes: the source stops reading its connection at the bound. A message above the
// bound waits alone.
func TestWaitingMessagesAreBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestSource(t, Config{BufferBytes: 10})
		go func() {
			for _, size := range []int{6, 4, 1, 20} {
				s.pass(t.Context(), liveMessage{payload: make([]byte, size)})
			}
		}()

		for _, want := range []int64{10, 5, 1, 20, 0} {
			synctest.Wait()
			if n := s.Stats().WaitingBytes; n != want {
				t.Errorf("%d bytes wait, want %d", n, want)
			}
			if want > 0 {
				s.taken(<-s.live)
			}
		}
		if s.Stats().BufferFull == 0 {
			t.Error("it is not counted that the buffer was full")
		}
	})
}
