package enginesim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/sim/engine"
)

// lease is a prompt whose blocks another engine fetches.
//
//	state       event                                   next state and effect
//	computing   the prompt is computed                  kept
//	computing   the request ends before that            ended
//	computing   the other engine leaves                 ended; the request frees its blocks at its end
//	kept        the other engine has fetched the blocks ended; the blocks are free
//	kept        the other engine leaves                 the same, without success
//	kept        the lease's time is over                the same
type lease struct {
	id       string
	prompt   string            // see hashOf
	tokens   int               // of all prompts
	requests []*engine.Request // finished ones keep their blocks

	taken    bool          // an engine has come for the blocks; guarded by leases.mu
	expiry   *time.Timer   // ends a lease that is kept; nil for others; guarded by leases.mu
	fetched  bool          // the transfer was successful; set before ended is closed
	met      chan struct{} // closed when taken is set
	computed chan struct{} // closed when the state becomes kept
	ended    chan struct{} // closed when the state becomes ended
}

// leases are the leases of one engine. Each belongs to a request, or has blocks, so their number is bounded.
type leases struct {
	sim *Sim

	mu     sync.Mutex
	byID   map[string]*lease // leases that have not ended; guarded by mu
	opened chan struct{}     // closed, and replaced, when a lease begins; guarded by mu
	closed bool              // no lease begins any more; guarded by mu
}

// newLeases returns the leases of an engine that has none yet.
func newLeases(s *Sim) *leases {
	return &leases{sim: s, byID: map[string]*lease{}, opened: make(chan struct{})}
}

// randomID returns an id that no other engine has.
func randomID() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// open begins a lease in the state computing. It returns nil if there is one of that id, and when the engine stops.
func (l *leases) open(id string, c *completion) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.byID[id] != nil {
		return nil
	}

	// The core frees no blocks of these requests by itself, even if they are computed already.
	x := &lease{id: id, prompt: hashOf(c), tokens: c.prompts, requests: c.requests,
		met: make(chan struct{}), computed: make(chan struct{}), ended: make(chan struct{})}
	for _, r := range c.requests {
		r.Keep = true
	}
	l.byID[id] = x
	close(l.opened)
	l.opened = make(chan struct{})
	return x
}

// keep sets the state kept. It returns false if the lease has ended: then the caller frees the blocks.
func (l *leases) keep(x *lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID[x.id] != x {
		return false
	}
	close(x.computed)
	// An engine that has come for the blocks ends the lease when it has them, or leaves.
	if !x.taken {
		x.expiry = time.AfterFunc(l.sim.cfg.Lease, func() {
			if l.endLease(x, false) && l.sim.cfg.KVTransferKind == fleet.TransferNixl {
				l.sim.metrics.expired.Inc()
			}
		})
	}
	return true
}

// take takes a lease for the engine that fetches its blocks, which must end it. It returns nil if there is none, or if it is
// taken.
func (l *leases) take(id string) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takeLocked(id)
}

// takeLocked is take. mu is held.
func (l *leases) takeLocked(id string) *lease {
	x := l.byID[id]
	if x == nil || x.taken {
		return nil
	}
	x.taken = true
	close(x.met)
	if x.expiry != nil {
		x.expiry.Stop()
	}
	return x
}

// await is take for a lease that may begin later. It waits until ctx ends, and then for the blocks.
func (l *leases) await(ctx context.Context, id string) (*lease, error) {
	x, err := l.awaitOpen(ctx, id)
	if err != nil {
		return nil, err
	}
	select {
	case <-x.computed:
		return x, nil
	case <-x.ended:
		return nil, fmt.Errorf("the request of %s has ended without blocks", id)
	case <-ctx.Done():
		l.endLease(x, false)
		return nil, ctx.Err()
	}
}

// awaitOpen is the first part of await.
func (l *leases) awaitOpen(ctx context.Context, id string) (*lease, error) {
	for {
		// A lease that begins after this look closes opened.
		l.mu.Lock()
		opened, known := l.opened, l.byID[id] != nil
		x := l.takeLocked(id)
		l.mu.Unlock()

		switch {
		case x != nil:
			return x, nil
		case known:
			return nil, fmt.Errorf("another engine fetches %s", id)
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// transfer waits for the time of a transfer, and ends the lease. It returns an error if the lease ends before, or ctx.
func (l *leases) transfer(ctx context.Context, x *lease, tokens int) error {
	t := time.NewTimer(l.sim.transferTime(tokens))
	defer t.Stop()
	select {
	case <-t.C:
	case <-x.ended:
	case <-ctx.Done():
		l.endLease(x, false)
		return ctx.Err()
	}
	if !l.endLease(x, true) {
		return fmt.Errorf("the request of %s has ended", x.id)
	}
	return nil
}

// endLease ends a lease, and frees the blocks of requests that are done. It returns false if the lease has ended before.
func (l *leases) endLease(x *lease, fetched bool) bool {
	// The lock is not held while the engine's is: keep is called without it, and endLease by timers.
	l.mu.Lock()
	if l.byID[x.id] != x {
		l.mu.Unlock()
		return false
	}
	delete(l.byID, x.id)
	if x.expiry != nil {
		x.expiry.Stop()
	}
	x.fetched = fetched
	l.mu.Unlock()

	// Goroutines that wait for the end find fetched set.
	close(x.ended)
	l.sim.release(x.requests)
	return true
}

// withdraw ends a lease that its request has not kept, and frees all blocks of the request, which must be done.
func (l *leases) withdraw(x *lease) {
	if !l.endLease(x, false) {
		l.sim.release(x.requests)
	}
}

// close ends all leases. None begins after it.
func (l *leases) close() {
	l.mu.Lock()
	l.closed = true

	// Each lease takes the lock at its end.
	var all []*lease
	for _, x := range l.byID {
		all = append(all, x)
	}
	l.mu.Unlock()
	for _, x := range all {
		l.endLease(x, false)
	}
}
