package xds

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverygrpc "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
)

// endpointCallbacks returns the callbacks of the endpoint service, for Envoys whose listeners, routes and clusters come from
// elsewhere. It has the endpoints that Envoys get over ADS, in both variants of the protocol. An Envoy opens a stream for each
// cluster. The callbacks count streams and answers, and log what Envoys ask for and refuse. The two variants number their streams
// apart.
func (s *Server) endpointCallbacks() serverv3.Callbacks {
	whole, delta := newSubscribers(false), newSubscribers(true)
	open := func(context.Context, int64, string) error {
		s.metrics.streams.Inc()
		return nil
	}
	closed := func(of *subscribers) func(int64, *corev3.Node) {
		return func(stream int64, n *corev3.Node) {
			s.metrics.streams.Dec()
			s.status.leave(of.id(stream))
			if of.leave(stream) {
				s.log.Info("envoy has unsubscribed from endpoints", "node", n.GetId())
			}
		}
	}
	pushed := func(of *subscribers, stream int64, r response) {
		s.metrics.pushes.WithLabelValues(shortType(resourcev3.EndpointType)).Inc()
		s.status.sent(of.id(stream), resourcev3.EndpointType, r, time.Now())
	}

	return serverv3.CallbackFuncs{
		StreamOpenFunc: open, DeltaStreamOpenFunc: open,
		StreamClosedFunc: closed(whole), DeltaStreamClosedFunc: closed(delta),
		StreamRequestFunc: func(stream int64, r *discoverygrpc.DiscoveryRequest) error {
			return s.subscribe(whole, stream, wholeRequest(r), r.GetResourceNames())
		},
		StreamDeltaRequestFunc: func(stream int64, r *discoverygrpc.DeltaDiscoveryRequest) error {
			return s.subscribe(delta, stream, deltaRequest(r), r.GetResourceNamesSubscribe())
		},
		StreamResponseFunc: func(_ context.Context, n int64, _ *discoverygrpc.DiscoveryRequest, out *discoverygrpc.DiscoveryResponse) {
			pushed(whole, n, response{out.GetNonce(), out.GetVersionInfo()})
		},
		StreamDeltaResponseFunc: func(n int64, _ *discoverygrpc.DeltaDiscoveryRequest, out *discoverygrpc.DeltaDiscoveryResponse) {
			pushed(delta, n, response{out.GetNonce(), out.GetSystemVersionInfo()})
		},
	}
}

// subscribe logs the news in a request: an Envoy, a refusal, or names that are no pools. Such a name gets no endpoints until a
// model has that pool. An Envoy that is too old gets an error.
func (s *Server) subscribe(of *subscribers, stream int64, r request, names []string) error {
	if _, err := s.admit(r.node); err != nil {
		return err
	}

	id, first := of.join(stream, r.node)
	s.status.join(of.id(stream), r.node, time.Now())
	if first {
		s.log.Info("envoy subscribes to endpoints", "node", id)
	}
	s.answered(of.id(stream), resourcev3.EndpointType, r)
	if r.refuses {
		s.log.Error("envoy refused its endpoints and keeps the last ones", "node", id, "err", r.why)
	}

	var pools []string
	for _, m := range s.settings.Load().Models {
		pools = append(pools, PoolName(m))
	}
	for _, name := range names {
		if slices.Contains(pools, name) || !of.report(stream, name) {
			continue
		}
		s.log.Warn("envoy asks for the endpoints of a cluster that is no pool and gets none: name the cluster as one of the pools, "+
			"or set its eds_cluster_config.service_name", "node", id, "cluster", name, "pools", strings.Join(pools, ", "))
	}
	return nil
}

// subscribers are the streams of one variant of the endpoint service. All methods are safe for concurrent use.
type subscribers struct {
	isDelta bool

	mu      sync.Mutex
	streams map[int64]*subscriber // guarded by mu
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

func newSubscribers(isDelta bool) *subscribers {
	return &subscribers{isDelta: isDelta, streams: map[int64]*subscriber{}}
}

// id returns the name of a stream, which is unique among the streams of all services.
func (s *subscribers) id(stream int64) streamID {
	return streamID{isDelta: s.isDelta, endpoints: true, number: stream}
}

// join returns the node id of a stream. first is true if no other stream has it, at the first request of this one. Later requests may
// carry no node.
func (s *subscribers) join(stream int64, node *corev3.Node) (id string, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if known := s.streams[stream]; known != nil {
		return known.node, false
	}
	first = !s.has(node.GetId())
	s.streams[stream] = &subscriber{node: node.GetId(), reported: map[string]bool{}}
	return node.GetId(), first
}

// leave removes a stream. It reports whether it was the last one of its Envoy.
func (s *subscribers) leave(stream int64) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	was := s.streams[stream]
	if was == nil {
		return false // it ended before its first request
	}
	delete(s.streams, stream)
	return !s.has(was.node)
}

// has reports whether a stream has a node id. mu is held.
func (s *subscribers) has(node string) bool {
	for _, other := range s.streams {
		if other.node == node {
			return true
		}
	}
	return false
}

// report reports whether a name of a stream is to be logged: once, and not without end.
func (s *subscribers) report(stream int64, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	known := s.streams[stream]
	if known == nil || len(known.reported) >= maxReported || len(name) > maxName || known.reported[name] {
		return false
	}
	known.reported[name] = true
	return true
}
