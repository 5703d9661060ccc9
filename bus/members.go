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
//	lease beyond maxNodeLeases     refused, and taken when its agent writes it again and others of its node have gone
//	lease removed                  apply without a worker
//	no write for one lifetime      the server is asked; if it has no lease, apply without a worker, Expired
//	bus lost                       nothing: the last known fleet stays in force
//	bus back                       all known workers have one lifetime to show their lease
func (b *Bus) WatchWorkers(ctx context.Context, apply func(Lease), synced func()) error {
	if synced == nil {
		synced = func() {}
	}
	m := &membership{apply: apply, synced: synced, nodes: map[string]int{}}
	m.expiry = b.newExpiry(func(name string) {
		m.uncount(name)
		apply(Lease{Name: name, Expired: true})
	})
	b.watch(ctx, workerBucket, allKeys, b.cfg.LeaseTTL, m)
	return nil
}

// maxNodeLeases is the greatest number of workers that a node may have. The agent of a node could fill the memory of all
// receivers otherwise. Workers without a node are not counted: no user of a bus with users can write their leases, but for an
// admin.
const maxNodeLeases = 512

// membership is the fleet as a watch of the leases shows it. It is a watcher.
type membership struct {
	expiry
	apply  func(Lease)
	synced func()
	nodes  map[string]int // the leases of each node, of the names in due
}

// admit counts the lease of a worker, and returns an error if its node has too many.
func (m *membership) admit(name string) error {
	node := fleet.NodeOf(name)
	if _, known := m.due[name]; known {
		return nil
	}
	if node != "" && m.nodes[node] >= maxNodeLeases {
		return fmt.Errorf("node %s has %d workers already, which is the most", node, maxNodeLeases)
	}
	m.nodes[node]++
	return nil
}

// remove forgets the lease of a worker.
func (m *membership) remove(name string) {
	if _, known := m.due[name]; !known {
		return
	}
	delete(m.due, name)
	m.uncount(name)
}

// uncount takes a worker away from the count of its node.
func (m *membership) uncount(name string) {
	node := fleet.NodeOf(name)
	m.nodes[node]--
	if m.nodes[node] == 0 {
		delete(m.nodes, node)
	}
}

// entry applies one change of a lease.
func (m *membership) entry(entry jetstream.KeyValueEntry) {
	if entry == nil {
		m.synced()
		return
	}

	name := entry.Key()
	if entry.Operation() != jetstream.KeyValuePut {
		m.remove(name)
		m.apply(Lease{Name: name})
		return
	}

	// The key is the name that NATS permissions can confine, so the value must agree with it.
	var received busv1.Worker
	w, err := decodeWorker(&received, entry.Value())
	if err == nil && w.Name != name {
		err = fmt.Errorf("the lease is of worker %q", w.Name)
	}
	if err == nil {
		err = m.admit(name)
	}
	if !m.bus.reader.accept(kindWorker, name, &received, err) {
		return
	}
	m.renewed(name)
	m.apply(Lease{Name: name, Worker: &w})
}
