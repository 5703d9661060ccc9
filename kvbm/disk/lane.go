package disk

import (
	"context"
	"sync"

	"github.com/stator-project/stator/internal/kv/block"
)

// lane has the requests of one direction, read or write, and the goroutines that carry them out. So a disk that no longer takes
// writes does not keep reads waiting.
//
// The number of requests is fixed: they are in free, with a caller, in queue or with a goroutine.
type lane struct {
	free    chan *request
	queue   chan *request
	workers sync.WaitGroup
}

// request is one Load or Store.
type request struct {
	key      block.Key
	priority uint8
	slot     int   // of a Load
	entry    entry // of a Load
	epoch    uint64

	done chan error // has room for one
	mu   sync.Mutex
	data []byte // the caller's memory, which only withData gives to others
	// abandoned is set when the caller returned, and finished when the result is in done. Never both.
	abandoned, finished bool
}

// newLane starts a goroutine for each buffer. They call work until stop.
func newLane(buffers [][]byte, waiting int, work func(r *request, buf []byte) error) *lane {
	n := len(buffers) + waiting
	l := &lane{free: make(chan *request, n), queue: make(chan *request, n)}
	for range n {
		l.free <- &request{done: make(chan error, 1)}
	}

	for _, buf := range buffers {
		l.workers.Go(func() {
			for r := range l.queue {
				l.finish(r, work(r, buf))
			}
		})
	}
	return l
}

// getRequest returns a request, and nil if as many wait as may.
func (l *lane) getRequest() *request {
	select {
	case r := <-l.free:
		return r
	default:
		return nil
	}
}

// putRequest takes back a request.
func (l *lane) putRequest(r *request) {
	r.data = nil
	r.abandoned = false
	r.finished = false
	l.free <- r
}

// doRequest queues a request and waits for its result, or for the end of the context. Afterwards nothing uses the caller's memory.
func (l *lane) doRequest(ctx context.Context, r *request) error {
	l.queue <- r // there is room for every request

	select {
	case err := <-r.done:
		l.putRequest(r)
		return err
	case <-ctx.Done():
	}

	r.mu.Lock()
	r.abandoned = !r.finished
	abandoned := r.abandoned
	r.mu.Unlock()
	if abandoned {
		return ctx.Err()
	}
	err := <-r.done
	l.putRequest(r)
	return err
}

// finish hands the result to the caller, unless that has returned.
func (l *lane) finish(r *request, err error) {
	r.mu.Lock()
	r.finished = !r.abandoned
	finished := r.finished
	r.mu.Unlock()

	if finished {
		r.done <- err
	} else {
		l.putRequest(r)
	}
}

// left reports whether the caller returned.
func (r *request) left() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.abandoned
}

// withData calls use with the caller's memory, which stays the caller's to wait for. It returns false if the caller returned.
func (r *request) withData(use func(data []byte)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.abandoned {
		use(r.data)
	}
	return !r.abandoned
}

// stop waits for the goroutines, which finish the requests in the queue. No caller may use the lane any more.
func (l *lane) stop() {
	close(l.queue)
	l.workers.Wait()
}
