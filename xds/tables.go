package xds

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// tables holds the listeners, routes and clusters of every connected Envoy. Routes and clusters are the same for
// all. A listener carries the node id of its Envoy, by which routers know whose request they decide: Envoy has no
// format for its node id that works in the metadata of a gRPC stream.
//
// All methods are safe for concurrent use.
type tables struct {
	cache cachev3.SnapshotCache // by node id

	mu       sync.Mutex
	streams  map[int64]string // guarded by mu; the node id of each stream
	shared   map[string]bool  // guarded by mu; node ids that two streams had at one time
	settings Settings         // guarded by mu; of the last push
	last     *Resources       // guarded by mu; of the last push; nil before the first one
	version  uint64           // guarded by mu
}

func newTables() *tables {
	return &tables{cache: cachev3.NewSnapshotCache(true, byNode{}, nil), streams: map[int64]string{}, shared: map[string]bool{}}
}

// byNode is the key of an Envoy in the cache: its node id.
type byNode struct{}

// ID returns the key of an Envoy in the cache.
func (byNode) ID(n *corev3.Node) string { return n.GetId() }

// join adds the stream of an Envoy. shared is true at the first time that another stream has its node id, too.
func (t *tables) join(stream int64, node string) (shared bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if _, known := t.streams[stream]; known {
		return false, nil
	}
	t.streams[stream] = node
	if t.last != nil {
		err = t.fill(node)
	}

	shared = t.count(node) > 1 && !t.shared[node]
	t.shared[node] = t.shared[node] || shared
	return shared, err
}

// leave removes a stream. The tables of an Envoy are dropped with its last stream.
func (t *tables) leave(stream int64) {
	t.mu.Lock()
	defer t.mu.Unlock()

	node, known := t.streams[stream]
	if !known {
		return // it ended before its first message
	}
	delete(t.streams, stream)
	if t.count(node) == 0 {
		t.cache.ClearSnapshot(node)
	}
}

// set replaces the tables of all connected Envoys.
func (t *tables) set(s Settings, r Resources) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	// Every push has a new version. The cache compares the content of resources, and Envoys get only those that
	// changed.
	t.version++
	t.settings = s
	t.last = &r
	filled := map[string]bool{}
	for _, node := range t.streams {
		if filled[node] {
			continue
		}
		filled[node] = true
		if err := t.fill(node); err != nil {
			return err
		}
	}
	return nil
}

// fill gives one Envoy the tables of the last push. mu is held.
func (t *tables) fill(node string) error {
	listeners, err := buildListeners(t.settings, node)
	if err != nil {
		return fmt.Errorf("build listeners of envoy %s: %w", node, err)
	}
	snap, err := cachev3.NewSnapshot(strconv.FormatUint(t.version, 10), map[resourcev3.Type][]types.Resource{
		resourcev3.ListenerType: resources(listeners),
		resourcev3.RouteType:    resources(t.last.Routes),
		resourcev3.ClusterType:  resources(t.last.Clusters),
	})
	if err != nil {
		return fmt.Errorf("make snapshot: %w", err)
	}
	if err := t.cache.SetSnapshot(context.Background(), node, snap); err != nil {
		return fmt.Errorf("set snapshot: %w", err)
	}
	return nil
}

// has reports whether a stream has joined.
func (t *tables) has(stream int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.streams[stream]
	return known
}

// node returns the node id of a stream.
func (t *tables) node(stream int64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams[stream]
}

// count returns how many streams have a node id. mu is held.
func (t *tables) count(node string) (n int) {
	for _, other := range t.streams {
		if other == node {
			n++
		}
	}
	return n
}

// resources converts a list of one type to a list of resources.
func resources[T types.Resource](in []T) []types.Resource {
	out := make([]types.Resource, len(in))
	for i, r := range in {
		out[i] = r
	}
	return out
}
