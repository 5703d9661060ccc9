package relay

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/extproc/exchange"
)

// stall watches the response of one worker to a stream that another worker may continue. A frozen process, and one behind a broken network,
// keep their connections and send nothing. The response is cut off then:
//
//	the worker                 and nothing has come for
//	is down                    downSilence
//	has left the fleet         goneSilence: it may have left in order, and finish its streams
//
// A worker that is ready is only slow. If nothing comes for doubtSilence, and for longer than doubtGaps mean gaps between the reads of this
// response, the worker is in doubt, and its engine is asked at once. Clients that take no bytes make no silence, because the relay reads no
// further for them.
type stall struct {
	heard   atomic.Int64 // when the last read of the response has begun, in nanoseconds since 1970
	gap     atomic.Int64 // the mean time of the last reads, in nanoseconds
	reading atomic.Bool  // the relay waits for the worker
	off     atomic.Bool  // nobody could continue: the stream has lost its promise, or no other attempt may begin it
	cut     atomic.Bool  // the response was cut off
}

const (
	downSilence = time.Second
	goneSilence = 10 * time.Second
	// doubtSilence and doubtGaps are many times the gap that another request's prefill makes in a stream.
	doubtSilence = time.Second
	doubtGaps    = 20
	// readyLook is the interval at which the response of a ready worker is looked at.
	readyLook = time.Second
	// stallLook is the interval at which the response of a worker that is down or gone is looked at.
	stallLook = 100 * time.Millisecond
)

// watch calls cut when the response is to be cut off, and returns then, or when ctx ends.
func (s *stall) watch(ctx context.Context, a *exchange.Attempt, cut func()) {
	for {
		down, gone, changed := a.Worker()
		bound := downSilence
		if gone {
			bound = goneSilence
		}

		again := readyLook
		silence := s.silence()
		switch {
		case s.off.Load():
		case down || gone:
			if silence >= bound {
				s.cut.Store(true)
				cut()
				return
			}
			again = stallLook
		case silence >= max(doubtSilence, doubtGaps*time.Duration(s.gap.Load())):
			a.Doubt(time.Now())
		}

		select {
		case <-changed:
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

// silence returns how long the relay has waited for the worker.
func (s *stall) silence() time.Duration {
	if !s.reading.Load() {
		return 0
	}
	return time.Since(time.Unix(0, s.heard.Load()))
}

// wait records that the relay waits for the worker from now on.
func (s *stall) wait() {
	s.heard.Store(time.Now().UnixNano())
	s.reading.Store(true)
}

// watched is the body of a response whose stall is watched.
type watched struct {
	io.ReadCloser
	stall *stall
}

func (w watched) Read(p []byte) (int, error) {
	w.stall.wait()
	n, err := w.ReadCloser.Read(p)
	w.stall.gap.Add((int64(w.stall.silence()) - w.stall.gap.Load()) / 8)
	w.stall.reading.Store(false)
	if err != nil && w.stall.cut.Load() {
		err = exchange.ErrStalled
	}
	return n, err
}
