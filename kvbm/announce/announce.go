// Package announce has nodes find each other's stores of KV blocks by the bus.
//
// An [Announcer] publishes where this node serves the blocks of each model, and gives its stores the nodes that serve the same model. What
// comes from the bus is checked and bounded by package bus, and the number of peers by package peers. An address on the bus is trusted with
// nothing: a node that does not have the token of the model gets no blocks and sends none.
package announce

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/kvbm/peers"
)

// Store has the methods that an announcer needs of the store of a model: a [github.com/stator-project/stator/kvbm/node.Node].
type Store interface {
	// Found replaces the other nodes from which blocks are fetched.
	Found(others []peers.Found)
}

// Announcer publishes the addresses of this node's stores, and finds the addresses of other nodes' stores. Create it with [New], and run
// it once.
type Announcer struct {
	bus     *bus.Bus
	node    string
	changed chan struct{} // has one place: a change that finds it full is covered by the one before it

	mu     sync.Mutex
	served map[string]string // guarded by mu; addresses of this node by model

	followed map[string]*followed // by model; not changed while Run runs, and its values are of the one callback of the watch
}

// followed is the store of one model and the nodes found for it.
type followed struct {
	store Store
	found map[string]string // addresses by node
}

// New returns an announcer that has nothing to publish. node is the name of this node; it may be empty.
func New(b *bus.Bus, node string) *Announcer {
	return &Announcer{
		bus: b, node: node, changed: make(chan struct{}, 1), served: map[string]string{}, followed: map[string]*followed{},
	}
}

// Serve publishes the address of a model's store, or with an empty one that it is not served any more. It does not block.
func (a *Announcer) Serve(model, address string) {
	a.mu.Lock()
	if address == "" {
		delete(a.served, model)
	} else {
		a.served[model] = address
	}
	a.mu.Unlock()

	select {
	case a.changed <- struct{}{}:
	default: // a message is about to be sent, and it will have the newest state
	}
}

// Follow has a model's store get the nodes that serve the model. It is called before Run.
func (a *Announcer) Follow(model string, store Store) {
	a.followed[model] = &followed{store: store, found: map[string]string{}}
}

// Run publishes and finds addresses until ctx ends. Then this node's are withdrawn. It returns nil.
func (a *Announcer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { _ = a.bus.HoldKVStores(ctx, a.current, a.changed) })
	if len(a.followed) > 0 {
		return a.bus.WatchKVStores(ctx, a.apply)
	}
	<-ctx.Done()
	return nil
}

// current returns what this node serves.
func (a *Announcer) current() bus.KVStores {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := bus.KVStores{Node: a.node}
	for model, address := range a.served {
		out.Stores = append(out.Stores, bus.KVStore{Model: model, Address: address})
	}
	slices.SortFunc(out.Stores, func(x, y bus.KVStore) int { return strings.Compare(x.Model, y.Model) })
	return out
}

// apply gives the stores of this node what another one serves. Most messages change nothing.
func (a *Announcer) apply(s bus.KVStores) {
	if s.Node == a.node {
		return
	}
	served := map[string]string{}
	for _, x := range s.Stores {
		served[x.Model] = x.Address
	}
	for model, f := range a.followed {
		address := served[model]
		if f.found[s.Node] == address {
			continue
		}
		if address == "" {
			delete(f.found, s.Node)
		} else {
			f.found[s.Node] = address
		}
		f.store.Found(f.list())
	}
}

// list returns the addresses that were found, by node.
func (f *followed) list() (all []peers.Found) {
	for node, address := range f.found {
		all = append(all, peers.Found{Node: node, Address: address})
	}
	slices.SortFunc(all, func(x, y peers.Found) int { return strings.Compare(x.Node, y.Node) })
	return all
}
