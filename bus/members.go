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

// Lease is a worker's lease, after a change of it.
type Lease struct {
	Name string
	// Worker is the worker as its lease describes it; nil when it has none any more.
	Worker *fleet.Worker
	// Expired means that the agent has neither renewed nor removed the lease. The engine may still serve.
	Expired bool
}

// WatchWorkers calls apply for the lease of every worker now and at every change, until ctx ends. synced, if it is
// not nil, is called whenever all workers of the moment have been applied.
//
//	event                          effect
//	lease written                  apply with the worker
//	lease removed                  apply without a worker
//	no write for one lifetime      the server is asked; if it has no lease, apply without a worker, Expired
//	bus lost                       nothing: the last known fleet stays in force
//	bus back                       all known workers have one lifetime to show their lease
func (b *Bus) WatchWorkers(ctx context.Context, apply func(Lease), synced func()) error {
	if synced == nil {
		synced = func() {}
	}
	b.watch(ctx, workerBucket, b.cfg.LeaseTTL, &membership{bus: b, apply: apply, synced: synced, due: map[string]time.Time{}})
	return nil
}

// membership is the fleet as a watch of the leases shows it. It is a watcher.
//
// The server could mark expired leases for its watchers, but only in buckets where a client that may write one lease can
// delete all others.
type membership struct {
	bus    *Bus
	apply  func(Lease)
	synced func()

	due map[string]time.Time // when to look for the lease, by worker that was applied
}

// checkTime is how long one answer about a lease may take.
const checkTime = 2 * time.Second

// started gives every known worker one lifetime to show its lease.
func (m *membership) started() {
	due := time.Now().Add(m.bus.cfg.LeaseTTL)
	for name := range m.due {
		m.due[name] = due
	}
}

// check removes the workers whose lease the server no longer has. Silence alone removes none: it may be the
// connection's.
func (m *membership) check(ctx context.Context, kv jetstream.KeyValue) {
	if !m.bus.control.nc.IsConnected() {
		return
	}

	now := time.Now()
	for name, due := range m.due {
		if now.Before(due) {
			continue
		}
		isGone, err := leaseIsGone(ctx, kv, name)
		switch {
		case err != nil:
			return // the server does not answer, so the last known fleet stays in force
		case isGone:
			delete(m.due, name)
			m.apply(Lease{Name: name, Expired: true})
		default: // it is about to expire, or its renewal is on the way
			m.due[name] = now.Add(m.bus.cfg.LeaseTTL / checks)
		}
	}
}

// leaseIsGone reports whether the server has no lease of a worker.
func leaseIsGone(ctx context.Context, kv jetstream.KeyValue, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()

	_, err := kv.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return true, nil // ErrKeyDeleted is one of these
	}
	return false, err
}

// entry applies one change of a lease.
func (m *membership) entry(entry jetstream.KeyValueEntry) {
	if entry == nil {
		m.synced()
		return
	}

	name := entry.Key()
	if entry.Operation() != jetstream.KeyValuePut {
		delete(m.due, name)
		m.apply(Lease{Name: name})
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

	m.due[name] = time.Now().Add(m.bus.cfg.LeaseTTL)
	m.apply(Lease{Name: name, Worker: &w})
}
