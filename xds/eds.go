package xds

import (
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
)

// endpointCallbacks returns the callbacks of the endpoint service, for Envoys whose listeners, routes and clusters come from
// elsewhere. It has the endpoints that Envoys get over ADS. An Envoy opens a stream for each cluster. The callbacks log what Envoys
// ask for and refuse.
func (s *Server) endpointCallbacks() serverv3.Callbacks {
	of := newSubscribers()
	asked := func(stream streamID, r request) error { return s.subscribe(of, stream, r) }
	return s.callbacks(true, asked, func(stream streamID, n *corev3.Node) {
		if of.leave(stream) {
			s.log.Info("envoy has unsubscribed from endpoints", "node", n.GetId())
		}
	})
}

// subscribe logs the news in a request: an Envoy, a refusal, or names that are no pools. Such a name gets no endpoints until a
// model has that pool. An Envoy that is too old gets an error.
func (s *Server) subscribe(of *subscribers, stream streamID, r request) error {
	if _, err := s.admit(r.node); err != nil {
		return err
	}

	id, first := of.join(stream, r.node)
	s.status.join(stream, r.node, time.Now())
	if first {
		s.log.Info("envoy subscribes to endpoints", "node", id)
	}
	s.answered(stream, resourcev3.EndpointType, r)
	if r.refuses {
		s.log.Error("envoy refused its endpoints and keeps the last ones", "node", id, "err", r.why)
	}

	var pools []string
	for _, m := range s.settings.Load().Models {
		pools = append(pools, PoolName(m))
	}
	for _, name := range r.names {
		if slices.Contains(pools, name) || !of.report(stream, name) {
			continue
		}
		s.log.Warn("envoy asks for the endpoints of a cluster that is no pool and gets none: name the cluster as one of the pools, "+
			"or set its eds_cluster_config.service_name", "node", id, "cluster", name, "pools", strings.Join(pools, ", "))
	}
	return nil
}

// subscribers are the streams of the endpoint service. All methods are safe for concurrent use.
type subscribers struct {
	mu      sync.Mutex
	streams map[streamID]*subscriber // guarded by mu
}

// subscriber is one stream.
type subscriber struct {
	node     string
	reported map[string]bool // names that are no pools and are logged, at most maxReported
}

// maxReported bounds how many unknown names of one stream are remembered and logged, and maxName their length in bytes.
const (
	maxReported = 16
	maxName     = 256
)

func newSubscribers() *subscribers { return &subscribers{streams: map[streamID]*subscriber{}} }

// join returns the node id of a stream. first is true if no other stream of its variant has it, at the first request of this one.
// Later requests may carry no node.
func (s *subscribers) join(stream streamID, node *corev3.Node) (id string, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if known := s.streams[stream]; known != nil {
		return known.node, false
	}
	first = !s.has(stream.isDelta, node.GetId())
	s.streams[stream] = &subscriber{node: node.GetId(), reported: map[string]bool{}}
	return node.GetId(), first
}

// leave removes a stream. It reports whether it was the last one of its Envoy and variant.
func (s *subscribers) leave(stream streamID) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	was := s.streams[stream]
	if was == nil {
		return false // it ended before its first request
	}
	delete(s.streams, stream)
	return !s.has(stream.isDelta, was.node)
}

// has reports whether a stream of a variant has a node id. mu is held.
func (s *subscribers) has(isDelta bool, node string) bool {
	for id, other := range s.streams {
		if id.isDelta == isDelta && other.node == node {
			return true
		}
	}
	return false
}

// report reports whether a name of a stream is to be logged: once, and not without end.
func (s *subscribers) report(stream streamID, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	known := s.streams[stream]
	if known == nil || len(known.reported) >= maxReported || len(name) > maxName || known.reported[name] {
		return false
	}
	known.reported[name] = true
	return true
}
