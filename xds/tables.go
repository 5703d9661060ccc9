package xds

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// tables holds the listeners, secrets, routes and clusters of every connected Envoy. Secrets and routes are the same for all, and
// clusters for all of one version. A listener carries the node id of its Envoy, by which routers know whose request they decide: Envoy
// has no format for its node id that works in the metadata of a gRPC stream.
//
// All methods are safe for concurrent use.
type tables struct {
	cache cachev3.SnapshotCache // by edge

	mu       sync.Mutex
	streams  map[streamID]edge                // guarded by mu
	shared   map[string]bool                  // guarded by mu; node ids that two streams had at one time
	settings Settings                         // guarded by mu; of the last push
	last     *Resources                       // guarded by mu; of the last push; nil before the first one
	clusters map[Version][]*clusterv3.Cluster // guarded by mu; of the last push, for the versions of Envoys that have asked
	version  uint64                           // guarded by mu; of the last push
}

// streamID names a stream. The two services, and the two variants of the protocol, number their streams apart.
type streamID struct {
	isDelta, endpoints bool
	number             int64
}

// edge has the properties of an Envoy that its tables depend on. During an upgrade two Envoys may have one node id.
type edge struct {
	node    string
	version Version
}

// key returns the name of the tables of an Envoy in the cache.
func (e edge) key() string { return e.version.String() + " " + e.node }

func newTables() *tables {
	return &tables{cache: cachev3.NewSnapshotCache(true, byEdge{}, nil), streams: map[streamID]edge{}, shared: map[string]bool{}}
}

// byEdge finds the tables of an Envoy in the cache.
type byEdge struct{}

// ID returns the key of an Envoy in the cache. The stream of one that is too old has ended before.
func (byEdge) ID(n *corev3.Node) string {
	v, _ := versionOf(n)
	return edge{n.GetId(), v}.key()
}

// join adds the stream of an Envoy. shared is true at the first time that another stream has its node id, too.
func (t *tables) join(stream streamID, e edge) (shared bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if _, known := t.streams[stream]; known {
		return false, nil
	}
	t.streams[stream] = e
	if t.last != nil {
		err = t.fill(e)
	}

	shared = t.count(func(other edge) bool { return other.node == e.node }) > 1 && !t.shared[e.node]
	if shared {
		t.shared[e.node] = true
	}
	return shared, err
}

// leave removes a stream. The tables of an Envoy are dropped with its last stream.
func (t *tables) leave(stream streamID) {
	t.mu.Lock()
	defer t.mu.Unlock()

	e, known := t.streams[stream]
	if !known {
		return // it ended before its first message
	}
	delete(t.streams, stream)
	if t.count(func(other edge) bool { return other == e }) == 0 {
		t.cache.ClearSnapshot(e.key())
	}
}

// setTables replaces the tables of all connected Envoys.
func (t *tables) setTables(s Settings, r Resources) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	// Every push has a new version. The cache compares the content of resources, and Envoys get only changed
	// ones.
	t.version++
	t.settings = s
	t.last = &r
	t.clusters = map[Version][]*clusterv3.Cluster{}
	filled := map[edge]bool{}
	for _, e := range t.streams {
		if filled[e] {
			continue
		}
		filled[e] = true
		if err := t.fill(e); err != nil {
			return err
		}
	}
	return nil
}

// fill gives one Envoy the tables of the last push. mu is held.
func (t *tables) fill(e edge) error {
	listeners, err := buildListeners(t.settings, e.node, e.version)
	if err != nil {
		return fmt.Errorf("build listeners of envoy %s: %w", e.node, err)
	}
	clusters, err := t.clustersOf(e.version)
	if err != nil {
		return err
	}

	snap, err := cachev3.NewSnapshot(strconv.FormatUint(t.version, 10), map[resourcev3.Type][]types.Resource{
		resourcev3.ListenerType: resources(listeners),
		resourcev3.SecretType:   resources(t.last.Secrets),
		resourcev3.RouteType:    resources(t.last.Routes),
		resourcev3.ClusterType:  resources(clusters),
	})
	if err != nil {
		return fmt.Errorf("make snapshot: %w", err)
	}
	if err := t.cache.SetSnapshot(context.Background(), e.key(), snap); err != nil {
		return fmt.Errorf("set snapshot: %w", err)
	}
	return nil
}

// clustersOf returns the clusters of the last push for a version. mu is held.
func (t *tables) clustersOf(v Version) ([]*clusterv3.Cluster, error) {
	if list, known := t.clusters[v]; known {
		return list, nil
	}
	list, err := trimmed(v, t.last.Clusters)
	if err != nil {
		return nil, fmt.Errorf("trim clusters for Envoy %s: %w", v, err)
	}
	t.clusters[v] = list
	return list, nil
}

// has reports whether a stream has joined.
func (t *tables) has(stream streamID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.streams[stream]
	return known
}

// node returns the node id of a stream.
func (t *tables) node(stream streamID) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams[stream].node
}

// count returns the number of streams of Envoys for which is holds. mu is held.
func (t *tables) count(is func(edge) bool) (n int) {
	for _, e := range t.streams {
		if is(e) {
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
