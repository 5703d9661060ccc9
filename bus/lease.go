package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// workerBucket is the key-value bucket of leases: a worker's name is its key.
const workerBucket = "workers"

const (
	// retryLease is the time after an error until a lease is written again.
	retryLease = 250 * time.Millisecond
	// retryClaim is the longest time between two attempts to claim a lease that another agent holds.
	retryClaim = time.Second
	// removeTime is the longest time that the removal of a lease may take.
	removeTime = time.Second
)

// ErrLeave is the cause of a context's end with which HoldWorker leaves the lease to the next holder, or to
// expire: the engine lives on.
var ErrLeave = errors.New("the lease is left to its next holder")

// newHolder returns a name for this process that no other has.
func newHolder() string { return rand.Text() }

// Claim is a worker that an agent wants to keep in the fleet.
type Claim struct {
	// Name is the worker's name.
	Name string
	// Current returns the worker's description at any time.
	Current func() fleet.Worker
	// Changed receives when the description has changed. Nil never does.
	Changed <-chan struct{}
	// Holder names the holder of the lease. A process that continues the work of an earlier one, of which it
	// knows that it has ended, uses the same name, and then need not wait for the lease to expire. Empty is
	// a name that no other process has.
	Holder string
	// Claimed is called once, when the lease is this process's for the first time. Nil is not called.
	Claimed func()
}

// errHeld is returned when another process holds a lease.
var errHeld = errors.New("another agent holds the lease")

// holding is the state of one lease at the process that wants it.
//
//	state           event                                effect                              next state
//	claiming        the lease is free                    created                             held
//	claiming        it is this process's                 updated: a write had no answer      held
//	claiming        it is unreadable                     replaced: it is of no agent         held
//	claiming        another process holds it             one warning                         claiming, again in a second
//	claiming        the other process has renewed it     one error, a conflict is counted    claiming, again in a second
//	held            a third of the lifetime passed       updated at its revision             held
//	held            the update finds another revision    a loss is counted; claimed at once  claiming
//	any             the write fails                      written again after 250 ms          the same
//	held            the context ends                     deleted at its revision             -
//	held            it ends with the cause ErrLeave      left                                -
type holding struct {
	bus   *Bus
	lease Claim

	revision uint64 // of the lease as this process wrote it; 0 while it is not held
	claimed  bool   // it was held once

	foreign  uint64    // the revision of another process's lease; 0 if there was none
	conflict bool      // that process lives
	warned   time.Time // when a failed write was last logged
}

// HoldWorker keeps a worker in the fleet until ctx ends, then removes it. The lease belongs to one process: while
// another one holds it, HoldWorker stands by, and claims the lease when it has expired or was deleted. Errors are
// logged and the lease is written again, so a holder outlives the loss of the server. It returns nil.
func (b *Bus) HoldWorker(ctx context.Context, c Claim) error {
	c.Holder = cmp.Or(c.Holder, b.holder)
	h := &holding{bus: b, lease: c}
	for {
		// Taken before the lease is written: a reconnection in between must not be missed.
		reconnected := b.Back()
		next := time.NewTimer(h.keep(ctx))

		select {
		case <-next.C:
		case <-c.Changed:
		case <-reconnected:
		case <-ctx.Done():
			next.Stop()
			if errors.Is(context.Cause(ctx), ErrLeave) {
				return nil
			}
			if err := h.remove(); err != nil {
				b.cfg.Log.Debug("lease left to expire", "worker", c.Name, "err", err)
			}
			return nil
		}
		next.Stop()
	}
}

// keep writes the lease and returns when to do it again.
func (h *holding) keep(ctx context.Context) (wait time.Duration) {
	err := h.write(ctx)

	switch {
	case err == nil:
		h.foreign = 0
		h.conflict = false
		h.warned = time.Time{}
		if !h.claimed && h.lease.Claimed != nil {
			h.lease.Claimed()
		}
		h.claimed = true
		return h.bus.cfg.LeaseTTL / 3
	case errors.Is(err, errHeld):
		return min(retryClaim, h.bus.cfg.LeaseTTL/3)
	case ctx.Err() != nil:
		return retryLease
	}

	h.bus.leases.failures.Inc()
	if now := time.Now(); now.Sub(h.warned) >= logEvery {
		h.warned = now
		h.bus.cfg.Log.Warn("lease not written; trying again", "worker", h.lease.Name, "err", err)
	}
	return retryLease
}

// write renews the lease, or claims it. The lease then lives for LeaseTTL.
func (h *holding) write(ctx context.Context) error {
	// A write that takes longer than the lease lives is of no use.
	ctx, cancel := context.WithTimeout(ctx, h.bus.cfg.LeaseTTL)
	defer cancel()

	kv, err := h.bus.bucket(ctx, workerBucket, h.bus.cfg.LeaseTTL)
	if err != nil {
		return err
	}

	if h.revision == 0 {
		err = h.claim(ctx, kv)
	} else {
		err = h.renew(ctx, kv)
	}
	if h.bus.checkBucket(workerBucket, err) != nil && !errors.Is(err, errHeld) {
		return fmt.Errorf("write lease of %s: %w", h.lease.Name, err)
	}
	return err
}

// renew updates a lease that this process holds. If another write came between it claims the lease again.
func (h *holding) renew(ctx context.Context, kv jetstream.KeyValue) error {
	revision, err := kv.Update(ctx, h.lease.Name, h.value(), h.revision)
	if err == nil {
		h.revision = revision
		return nil
	}
	if !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return err
	}

	// An earlier write of this process may have arrived without an answer. Everything else is a loss.
	there, err := h.readLease(ctx, kv)
	if err == nil && there.owner == ownProcess {
		h.revision, err = kv.Update(ctx, h.lease.Name, h.value(), there.revision)
		return err
	}
	h.revision = 0
	h.bus.leases.lost.Inc()
	return h.claim(ctx, kv)
}

// claim takes a lease that is free, is this process's already, or cannot be read. It returns errHeld for a lease
// that another process holds.
func (h *holding) claim(ctx context.Context, kv jetstream.KeyValue) error {
	revision, err := kv.Create(ctx, h.lease.Name, h.value())
	if err == nil {
		h.revision = revision
		return nil
	}
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return err
	}

	there, err := h.readLease(ctx, kv)
	if err != nil {
		return err // it may have expired meanwhile; the next attempt creates it
	}
	if there.owner == otherProcess {
		h.standBy(there)
		return errHeld
	}

	h.revision, err = kv.Update(ctx, h.lease.Name, h.value(), there.revision)
	return err
}

// owner is who holds a lease.
type owner int

const (
	noProcess owner = iota // the value is no lease of the worker
	ownProcess
	otherProcess
)

// found is a lease as it is on the server.
type found struct {
	revision uint64
	owner    owner
	host     string // the machine of its holder
	address  string // of the engine that it describes
}

// readLease returns the lease that is on the server. A value that is no lease of this worker has no holder: anything that
// can publish to the key could have left it there.
func (h *holding) readLease(ctx context.Context, kv jetstream.KeyValue) (found, error) {
	entry, err := kv.Get(ctx, h.lease.Name)
	if err != nil {
		return found{}, err
	}

	var received busv1.Worker
	w, err := decodeWorker(&received, entry.Value())
	there := found{revision: entry.Revision(), owner: otherProcess, host: received.Host, address: w.Address}
	switch {
	case err != nil || w.Name != h.lease.Name:
		there.owner = noProcess
	case received.Holder == h.lease.Holder:
		there.owner = ownProcess
	}
	return there, nil
}

// standBy logs that another process holds the lease: first as a warning, because a process that has just ended leaves
// its leases behind, and as an error when the other process has renewed it.
func (h *holding) standBy(by found) {
	log := h.bus.cfg.Log.With("worker", h.lease.Name, "host", by.host, "address", by.address)
	switch {
	case h.foreign == 0:
		log.Warn("another agent holds the lease of the worker; waiting for it to expire", "lifetime", h.bus.cfg.LeaseTTL)
	case h.foreign != by.revision && !h.conflict:
		h.conflict = true
		h.bus.leases.conflicts.Inc()
		log.Error("two agents claim one worker, and the other one has it: its engine here gets no requests; " +
			"give each agent its own --node")
	}
	h.foreign = by.revision
}

// value returns the bytes of the lease.
func (h *holding) value() []byte {
	w := h.lease.Current()
	m := workerMessage(&w)
	m.Holder = h.lease.Holder
	m.Host, _ = os.Hostname() // for people; it may be empty
	return encode(m)
}

// remove removes the worker from the fleet at once. If it fails the lease expires by itself.
func (h *holding) remove() error {
	if !h.bus.control.nc.IsConnected() {
		return nil // the lease will expire
	}

	// The context of the holder has ended, which is why the lease is removed.
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	kv, err := h.bus.bucket(ctx, workerBucket, h.bus.cfg.LeaseTTL)
	if err != nil {
		return err
	}

	// A write without an answer may have given the lease another revision.
	err = h.deleteAt(ctx, kv, h.revision)
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		there, readErr := h.readLease(ctx, kv)
		if readErr != nil || there.owner != ownProcess {
			return readErr
		}
		err = h.deleteAt(ctx, kv, there.revision)
	}
	if err != nil {
		return fmt.Errorf("remove lease of %s: %w", h.lease.Name, err)
	}
	return nil
}

// deleteAt deletes the lease if it has the revision, which for 0 no lease has.
func (h *holding) deleteAt(ctx context.Context, kv jetstream.KeyValue, revision uint64) error {
	if revision == 0 {
		return jetstream.ErrKeyRevisionMismatch
	}
	return kv.Delete(ctx, h.lease.Name, jetstream.LastRevision(revision))
}
