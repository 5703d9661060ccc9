package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// workerBucket is the key-value bucket of leases: a worker's name is its key.
const workerBucket = "workers"

// retryLease is how soon a lease is written again after an error.
const retryLease = 250 * time.Millisecond

// ErrLeave is the cause of a context's end with which HoldWorker leaves the lease to the next holder, or to
// expire: the engine lives on.
var ErrLeave = errors.New("the lease is left to its next holder")

// HoldWorker keeps a worker in the fleet until ctx ends, then removes it. It writes the lease every
// third of its lifetime, after every reconnection, and whenever changed receives; each time it calls
// current for the worker's description. Errors are logged and the lease is written again, so a holder
// outlives the loss of the server. It returns nil.
//
//	event                         effect
//	third of the lifetime passed  lease written
//	changed receives              lease written
//	server back after a loss      lease written
//	write failed                  written again after 250 ms
//	ctx ends                      lease removed; left, if the cause is ErrLeave
func (b *Bus) HoldWorker(ctx context.Context, name string, current func() fleet.Worker, changed <-chan struct{}) error {
	for {
		// Taken before the lease is written: a reconnection in between must not be missed.
		reconnected := b.Back()
		wait := b.cfg.LeaseTTL / 3
		if err := b.writeLease(ctx, current()); err != nil && ctx.Err() == nil {
			b.cfg.Log.Warn("lease not written; trying again", "worker", name, "err", err)
			wait = retryLease
		}

		next := time.NewTimer(wait)
		select {
		case <-next.C:
		case <-changed:
		case <-reconnected:
		case <-ctx.Done():
			next.Stop()
			if errors.Is(context.Cause(ctx), ErrLeave) {
				return nil
			}
			if err := b.removeLease(name); err != nil {
				b.cfg.Log.Debug("lease left to expire", "worker", name, "err", err)
			}
			return nil
		}
		next.Stop()
	}
}

// writeLease writes a worker's lease, which then lives for LeaseTTL. It opens the bucket each time,
// because a server that restarted has lost it.
func (b *Bus) writeLease(ctx context.Context, w fleet.Worker) error {
	// A write that takes longer than the lease lives is of no use.
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LeaseTTL)
	defer cancel()

	kv, err := b.bucket(ctx, workerBucket, b.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	if _, err := kv.Put(ctx, w.Name, encode(workerMessage(&w))); err != nil {
		return fmt.Errorf("write lease of %s: %w", w.Name, err)
	}
	return nil
}

// removeLease removes a worker from the fleet at once. If it fails the lease expires by itself.
func (b *Bus) removeLease(name string) error {
	if !b.nc.IsConnected() {
		return nil // the lease will expire
	}

	// The context of the holder has ended, which is why the lease is removed.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	kv, err := b.bucket(ctx, workerBucket, b.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	if err := kv.Delete(ctx, name); err != nil {
		return fmt.Errorf("remove lease of %s: %w", name, err)
	}
	return nil
}

// Lease is a worker's lease, after a change of it.
type Lease struct {
	Name string
	// Worker is the worker as its lease describes it; nil when it has none any more.
	Worker *fleet.Worker
	// Expired means that the agent has neither renewed nor removed the lease. The engine may still serve.
	Expired bool
}

// WatchWorkers calls apply for the lease of every worker now and at every change, until ctx ends. synced, if it is not nil, is called whenever all workers of the moment
// have been applied.
//
//	event                        effect
//	lease written                apply with the worker
//	lease removed                apply without a worker
//	lease expired                apply without a worker, Expired
//	bus lost                     nothing: the last known fleet stays in force
//	bus back                     leases that are not written again within one lifetime: as expired
func (b *Bus) WatchWorkers(ctx context.Context, apply func(Lease), synced func()) error {
	if synced == nil {
		synced = func() {}
	}
	b.watch(ctx, workerBucket, b.cfg.LeaseTTL, &membership{bus: b, apply: apply, synced: synced, known: map[string]bool{}})
	return nil
}

// membership is the fleet as a watch of the leases shows it. It is a watcher.
type membership struct {
	bus    *Bus
	apply  func(Lease)
	synced func()

	// Invariant: missing is a subset of known.
	known   map[string]bool // workers that were applied
	missing map[string]bool // those of known whose lease has not been seen since the watch started
}

// started makes every known worker show its lease again.
func (m *membership) started() {
	m.missing = map[string]bool{}
	for name := range m.known {
		m.missing[name] = true
	}
}

// settled removes the workers that have not shown their lease in time.
func (m *membership) settled() {
	for name := range m.missing {
		delete(m.known, name)
		m.apply(Lease{Name: name, Expired: true})
	}
	clear(m.missing)
}

// entry applies one change of a lease.
func (m *membership) entry(entry jetstream.KeyValueEntry) {
	if entry == nil {
		m.synced()
		return
	}

	name := entry.Key()
	delete(m.missing, name)

	if entry.Operation() != jetstream.KeyValuePut {
		delete(m.known, name)
		// The server purges what has expired. Agents delete.
		m.apply(Lease{Name: name, Expired: entry.Operation() == jetstream.KeyValuePurge})
		return
	}

	// The key is the name that NATS permissions can confine, so the value must agree with it.
	var received busv1.Worker
	w, err := decodeWorker(&received, entry.Value())
	if err == nil && w.Name != name {
		err = fmt.Errorf("the lease is of worker %q", w.Name)
	}

	if err != nil {
		m.bus.reader.refuse(kindWorker, name, err)
		return
	}

	m.bus.reader.observe(kindWorker, name, &received)

	m.known[name] = true
	m.apply(Lease{Name: name, Worker: &w})
}
