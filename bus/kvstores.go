package bus

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// KVStores are the stores of KV blocks of one node that other nodes can fetch from.
//
// They are plain messages and no entries of a bucket, because every agent publishes its own stores and receives the stores of all
// others. A role that writes a bucket must have no consumer on it: see [User.Permissions].
type KVStores struct {
	// Node is the agent's; empty for none.
	Node string
	// Stores has at most one for each model.
	Stores []KVStore
}

// KVStore is the store of one model.
type KVStore struct {
	Model string
	// Address is host:port, at which other nodes reach it. The host is an IP or a DNS name.
	Address string
}

// The bounds of the stores that are received.
const (
	maxKVStores     = 256  // of one node
	maxKVStoreNodes = 4096 // nodes that have some
	maxKVAddress    = 260  // bytes; a DNS name has at most 253
)

// kvStoresSubject returns the subject of a node's stores. "*" stands for any node.
func (b *Bus) kvStoresSubject(node string) string { return b.subject("kvstore", cmp.Or(node, noNode)) }

// HoldKVStores publishes the stores of a node until ctx ends. current is called for each message. It returns nil.
//
//	event                                  effect
//	changed has a value                    published at once
//	a third of the lifetime of leases      published again
//	reconnection                           published again
//	the agent ends, or current has none    receivers are sent an empty list, if they were sent a store before
//	the agent dies                         receivers drop the stores after one lifetime
func (b *Bus) HoldKVStores(ctx context.Context, current func() KVStores, changed <-chan struct{}) error {
	published := false
	b.republish(ctx, changed, func() {
		if s := current(); len(s.Stores) > 0 || published {
			b.publishKVStores(&s)
			published = len(s.Stores) > 0
		}
	})
	if published {
		b.publishKVStores(&KVStores{Node: current().Node})
	}
	return nil
}

// publishKVStores publishes stores. Nothing waits for a reconnection, because they are published again then.
func (b *Bus) publishKVStores(s *KVStores) {
	if !b.control.nc.IsConnected() {
		return
	}
	if err := b.control.nc.Publish(b.kvStoresSubject(s.Node), encode(kvStoresMessage(s))); err != nil {
		b.cfg.Log.Debug("stores of KV blocks not published; trying again", "err", err)
	}
}

// WatchKVStores calls apply for the stores of every node, this one's included, until ctx ends. apply is called for every message.
// Without stores the node has none any more: its agent has ended, or has not published for one lifetime. A message is dropped if
// it names another node than its subject does, or if 4,096 other nodes have stores already. A lost bus changes nothing. It
// returns nil.
func (b *Bus) WatchKVStores(ctx context.Context, apply func(KVStores)) error {
	w := &kvStoresWatch{bus: b, apply: apply, due: map[string]time.Time{}}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { w.expire(ctx) })

	const effect = "this node does not find the KV blocks of others"
	b.keepSubscribed(ctx, b.kvStoresSubject("*"), warnKVStores, effect, func() {}, w.message)
	return nil
}

// kvStoresWatch has the nodes with stores, and when those expire.
type kvStoresWatch struct {
	bus   *Bus
	apply func(KVStores)

	mu  sync.Mutex           // held while apply runs
	due map[string]time.Time // guarded by mu; by node
}

// message applies one message.
func (w *kvStoresWatch) message(m *nats.Msg) {
	var received busv1.KVStores
	s, err := decodeKVStores(&received, m.Data)
	if err == nil && m.Subject != w.bus.kvStoresSubject(s.Node) {
		err = fmt.Errorf("the stores are of node %q", s.Node)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.due[s.Node]; err == nil && !known && len(w.due) >= maxKVStoreNodes {
		err = fmt.Errorf("there are %d nodes with stores already", maxKVStoreNodes)
	}
	if !w.bus.reader.accept(kindKVStores, m.Subject, &received, err) {
		return
	}
	if len(s.Stores) == 0 {
		delete(w.due, s.Node)
	} else {
		w.due[s.Node] = time.Now().Add(w.bus.cfg.LeaseTTL)
	}
	w.apply(s)
}

// expire removes nodes that do not publish any more, until ctx ends.
func (w *kvStoresWatch) expire(ctx context.Context) {
	tick := time.NewTicker(w.bus.cfg.LeaseTTL / checks)
	defer tick.Stop()
	for {
		reconnected := w.bus.Back()
		select {
		case now := <-tick.C:
			w.check(now, w.bus.control.nc.IsConnected())
		case <-reconnected:
			w.check(time.Now(), false)
		case <-ctx.Done():
			return
		}
	}
}

// check removes the nodes that have expired. While the bus is away no node expires; all have one lifetime after its return.
func (w *kvStoresWatch) check(now time.Time, connected bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, due := range w.due {
		switch {
		case !connected:
			w.due[node] = now.Add(w.bus.cfg.LeaseTTL)
		case now.After(due):
			delete(w.due, node)
			w.apply(KVStores{Node: node})
		}
	}
}

// kvStoresMessage returns the message of stores.
func kvStoresMessage(s *KVStores) *busv1.KVStores {
	m := &busv1.KVStores{Node: s.Node}
	for _, x := range s.Stores {
		m.Stores = append(m.Stores, &busv1.KVStore{Model: x.Model, Address: x.Address})
	}
	return m
}

// decodeKVStores returns the stores in data, by way of the empty message m.
func decodeKVStores(m *busv1.KVStores, data []byte) (KVStores, error) {
	if err := decode(m, data); err != nil {
		return KVStores{}, err
	}
	if m.Node != "" && !fleet.ValidName(m.Node) {
		return KVStores{}, fmt.Errorf("node %.80q is not valid", m.Node)
	}
	if len(m.Stores) > maxKVStores {
		return KVStores{}, fmt.Errorf("%d stores: there must be at most %d", len(m.Stores), maxKVStores)
	}

	s := KVStores{Node: m.Node}
	models := map[string]bool{}
	for _, x := range m.Stores {
		if x.Model == "" || models[x.Model] {
			return KVStores{}, fmt.Errorf("model %.80q is empty or there twice", x.Model)
		}
		if !validKVAddress(x.Address) {
			return KVStores{}, fmt.Errorf("model %.80q: address %.80q is no IP or DNS name with a port", x.Model, x.Address)
		}
		models[x.Model] = true
		s.Stores = append(s.Stores, KVStore{Model: x.Model, Address: x.Address})
	}
	return s, nil
}

// validKVAddress reports whether one could connect to an address from another node.
func validKVAddress(address string) bool {
	if len(address) > maxKVAddress {
		return false
	}
	if _, _, isName := fleet.SplitName(address); isName {
		return true
	}
	at, err := netip.ParseAddrPort(address)
	ip := at.Addr()
	return err == nil && at.Port() > 0 && ip.Zone() == "" && !ip.IsUnspecified() && !ip.IsMulticast()
}
