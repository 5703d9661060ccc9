package bus

import (
	"context"
	"fmt"

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
	b.watch(ctx, workerBucket, allKeys, b.cfg.LeaseTTL, &membership{
		expiry: b.newExpiry(func(name string) { apply(Lease{Name: name, Expired: true}) }), apply: apply, synced: synced,
	})
	return nil
}

// membership is the fleet as a watch of the leases shows it. It is a watcher.
type membership struct {
	expiry
	apply  func(Lease)
	synced func()
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

	m.renewed(name)
	m.apply(Lease{Name: name, Worker: &w})
}
