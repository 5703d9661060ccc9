package xds

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverygrpc "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// callbacks returns the callbacks of a service, in both variants of the protocol: the endpoint service, or ADS. They count streams and
// answers. asked handles requests, and left the ends of streams.
func (s *Server) callbacks(
	endpoints bool, asked func(streamID, request) error, left func(streamID, *corev3.Node),
) serverv3.Callbacks {
	whole := func(n int64) streamID { return streamID{endpoints: endpoints, number: n} }
	delta := func(n int64) streamID { return streamID{isDelta: true, endpoints: endpoints, number: n} }
	open := func(context.Context, int64, string) error {
		s.metrics.streams.Inc()
		return nil
	}
	closed := func(stream streamID, node *corev3.Node) {
		s.metrics.streams.Dec()
		s.status.leave(stream)
		left(stream, node)
	}
	pushed := func(stream streamID, url string, r response) {
		s.metrics.pushes.WithLabelValues(shortType(url)).Inc()
		s.status.sent(stream, url, r, time.Now())
	}

	return serverv3.CallbackFuncs{
		StreamOpenFunc: open, DeltaStreamOpenFunc: open,
		StreamClosedFunc:      func(n int64, node *corev3.Node) { closed(whole(n), node) },
		DeltaStreamClosedFunc: func(n int64, node *corev3.Node) { closed(delta(n), node) },
		StreamRequestFunc:     func(n int64, r *discoverygrpc.DiscoveryRequest) error { return asked(whole(n), wholeRequest(r)) },
		StreamDeltaRequestFunc: func(n int64, r *discoverygrpc.DeltaDiscoveryRequest) error {
			return asked(delta(n), deltaRequest(r))
		},
		StreamResponseFunc: func(_ context.Context, n int64, r *discoverygrpc.DiscoveryRequest, out *discoverygrpc.DiscoveryResponse) {
			pushed(whole(n), r.GetTypeUrl(), response{out.GetNonce(), out.GetVersionInfo()})
		},
		StreamDeltaResponseFunc: func(n int64, r *discoverygrpc.DeltaDiscoveryRequest, out *discoverygrpc.DeltaDiscoveryResponse) {
			pushed(delta(n), r.GetTypeUrl(), response{out.GetNonce(), out.GetSystemVersionInfo()})
		},
	}
}

// asked handles a request on a stream of ADS: it gives each Envoy its tables, and logs which Envoy refused which resources.
func (s *Server) asked(stream streamID, r request) error {
	if err := s.joined(stream, r.node); err != nil {
		return err
	}
	s.answered(stream, r.url, r)
	if r.refuses {
		s.log.Error("envoy refused its configuration and keeps the last one", "node", s.tables.node(stream), "type", shortType(r.url),
			"err", r.why)
	}
	return nil
}

// request is a request of either variant of the protocol.
type request struct {
	node  *corev3.Node
	url   string // of the type of resource
	nonce string // of the response that it answers; empty for none
	// refuses means that the Envoy did not accept that response, and why is its reason, cut to maxMessage.
	refuses bool
	why     string
	names   []string // of the resources that it asks for
}

func wholeRequest(r *discoverygrpc.DiscoveryRequest) request {
	e := r.GetErrorDetail()
	return request{r.GetNode(), r.GetTypeUrl(), r.GetResponseNonce(), e != nil, clip(e.GetMessage(), maxMessage), r.GetResourceNames()}
}

func deltaRequest(r *discoverygrpc.DeltaDiscoveryRequest) request {
	e := r.GetErrorDetail()
	return request{
		r.GetNode(), r.GetTypeUrl(), r.GetResponseNonce(), e != nil, clip(e.GetMessage(), maxMessage), r.GetResourceNamesSubscribe(),
	}
}

// answered records the answer in a request to a response of a type.
func (s *Server) answered(stream streamID, url string, r request) {
	s.status.answered(stream, url, r, time.Now())
	if r.refuses {
		s.metrics.nacks.WithLabelValues(shortType(url)).Inc()
	}
}

// left handles the end of a stream of ADS.
func (s *Server) left(stream streamID, node *corev3.Node) {
	isKnown := s.tables.has(stream)
	s.tables.leave(stream)
	if isKnown {
		s.log.Info("envoy disconnected", "node", node.GetId())
	}
}

// joined gives an Envoy its own tables at the first message of its stream, or ends the stream of one that is too old. Later
// messages may carry no node.
func (s *Server) joined(stream streamID, node *corev3.Node) error {
	if node == nil || s.tables.has(stream) { // Envoy may repeat its node in each message
		return nil
	}
	version, err := s.admit(node)
	if err != nil {
		return err
	}
	s.status.join(stream, node, time.Now())

	shared, err := s.tables.join(stream, edge{node.GetId(), version})
	if shared {
		s.log.Warn("two Envoys have the same node id, or one has reconnected: bookings of an Envoy that dies end only when all "+
			"with its node id are gone; give each Envoy its own (stator envoy bootstrap --node-id)", "node", node.GetId())
	}
	return err
}

// admit returns the version of an Envoy, or an error for one that is too old, which ends its stream. Envoy logs the error, and
// tries again.
func (s *Server) admit(node *corev3.Node) (Version, error) {
	v, ok := versionOf(node)
	if ok {
		return v, nil
	}

	id, full := node.GetId(), fullVersion(node)
	id = id[:min(len(id), maxName)]
	s.metrics.tooOld.Inc()
	if s.tooOld.isFirst(id + " " + full) {
		s.log.Error("envoy is refused: upgrade it, its version is too old", "node", id, "version", full, "oldest", oldestVersion.String())
	}
	return 0, grpcstatus.Errorf(codes.FailedPrecondition,
		"Envoy %s (node id %q) is too old for this control plane: upgrade it to %s or later; versions up to %s are known to work",
		full, id, oldestVersion, newestVersion)
}

// fullVersion returns the version of an Envoy with its patch, such as 1.38.3.
func fullVersion(node *corev3.Node) string {
	v := node.GetUserAgentBuildVersion().GetVersion()
	return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
}

// onceEach finds names that it has not met yet, so that each is logged once. It remembers at most maxRemembered of them, and
// then finds no further one.
type onceEach struct {
	mu    sync.Mutex
	names map[string]bool // guarded by mu
}

const maxRemembered = 1024

// isFirst reports whether a name is met for the first time.
func (o *onceEach) isFirst(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.names[name] || len(o.names) >= maxRemembered {
		return false
	}
	if o.names == nil {
		o.names = map[string]bool{}
	}
	o.names[name] = true
	return true
}

// shortType returns the short name of a resource type. The names are a closed set, so they can be label values.
func shortType(url string) string {
	switch url {
	case resourcev3.ListenerType:
		return "listener"
	case resourcev3.RouteType:
		return "route"
	case resourcev3.ClusterType:
		return "cluster"
	case resourcev3.EndpointType:
		return "endpoint"
	default:
		return "other"
	}
}
