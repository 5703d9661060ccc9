package xds

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
)

// httpOptions is the key of a cluster's HTTP settings.
const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// buildPool builds the cluster of one model. A request goes to the picked address. Without a pick, Maglev hashes
// the affinity header, and requests without that header are spread by weight.
func buildPool(model string, s Settings) (*clusterv3.Cluster, error) {
	var p packer

	// Maglev moves few requests when workers change, and spreads the requests without a hash by weight.
	fallback := policy("envoy.load_balancing_policies.maglev", p.pack(&maglevv3.Maglev{}))
	// Routers write the picked address into the metadata. Envoy writes the address that served the request
	// beside it, and the access log has both: so misdirected requests are counted.
	override := &overridev3.OverrideHost{
		OverrideHostSources: []*overridev3.OverrideHost_OverrideHostSource{{Metadata: metadataKey(envoynames.HeaderDestination)}},
		SelectedHostKey:     metadataKey(envoynames.HeaderDestinationServed),
		FallbackPolicy:      fallback,
	}

	c := &clusterv3.Cluster{
		Name: PoolName(model),
		// Endpoints come apart from the cluster, so that a new worker does not warm the cluster.
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource()},
		// A worker on the same network accepts at once or not at all.
		ConnectTimeout:      seconds(2e9),
		LoadBalancingPolicy: policy("envoy.load_balancing_policies.override_host", p.pack(override)),
		// By default Envoy uses unhealthy endpoints when fewer than half are healthy. Here the healthy ones
		// are always better.
		CommonLbConfig:   &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 0}},
		CircuitBreakers:  wideOpen(),
		OutlierDetection: ejection(),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{httpOptions: p.pack(&httpv3.HttpProtocolOptions{
			// vLLM's and SGLang's server closes a connection that was idle for five seconds. A request that is
			// sent at that moment would be reset, and retried at a worker without its cache.
			CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: seconds(4e9)},
			UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				// Engines serve HTTP/1.1.
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}},
			}},
		})},
	}
	if s.EngineTLS.CA != "" {
		c.TransportSocket = s.engineTLS(&p)
		plain := &corev3.TransportSocket{
			Name:       "envoy.transport_sockets.raw_buffer",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: p.pack(&rawv3.RawBuffer{})},
		}
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{{Name: "plain", Match: plainMark(), TransportSocket: plain}}
	}
	return c, p.err
}

// plainMark is the metadata of endpoints without TLS in a pool with TLS: relays, and engines that are an exception.
func plainMark() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"plain": structpb.NewBoolValue(true)}}
}

// markPlain has Envoy reach an endpoint without TLS.
func markPlain(e *endpointv3.LbEndpoint) {
	e.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.transport_socket_match": plainMark()}}
}

// ejection keeps requests without a decision away from workers that Envoy cannot reach, that hang, or that answer 502, 503 or
// 504, until the control plane has found out. Envoy counts a failed connection as 503 and a timeout as 504. (If it counted
// these errors apart, each new connection to a worker that hangs would begin the count again.) Picks are not affected:
// Envoy uses a picked endpoint whatever its health. Other server errors do not count, because a single prompt can cause
// them at each worker. At most half of the workers are ejected, so that a cause that all of them share does not end all
// service.
func ejection() *clusterv3.OutlierDetection {
	const failures, half = 3, 50
	off, on := wrapperspb.UInt32(0), wrapperspb.UInt32(100)
	return &clusterv3.OutlierDetection{
		ConsecutiveGatewayFailure:          wrapperspb.UInt32(failures),
		EnforcingConsecutiveGatewayFailure: on,
		EnforcingConsecutive_5Xx:           off,
		EnforcingSuccessRate:               off,
		Interval:                           seconds(time.Second),
		BaseEjectionTime:                   seconds(ejectFor),
		MaxEjectionTime:                    seconds(ejectAtMost),
		MaxEjectionPercent:                 wrapperspb.UInt32(half),
	}
}

// ejectFor is the time for which a worker is ejected, times the number of its ejections in a row, and ejectAtMost bounds that.
const (
	ejectFor    = 5 * time.Second
	ejectAtMost = 30 * time.Second
)

// emptyCluster returns the cluster of requests that no worker may get. Envoy answers them with 503.
func emptyCluster() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 undecidedName,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment:       &endpointv3.ClusterLoadAssignment{ClusterName: undecidedName},
	}
}

// policy returns a load-balancing policy.
func policy(name string, config *anypb.Any) *clusterv3.LoadBalancingPolicy {
	return &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{
		TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: name, TypedConfig: config},
	}}}
}

// metadataKey returns the path of a key that routers set in the metadata of a request.
func metadataKey(key string) *metadatav3.MetadataKey {
	return &metadatav3.MetadataKey{Key: envoynames.NamespaceLB, Path: []*metadatav3.MetadataKey_PathSegment{{
		Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: key},
	}}}
}

// wideOpen raises Envoy's limit of 1,024 requests per cluster. Routers limit the load of workers, and the cluster
// of routers has a stream for every decision that is being made.
func wideOpen() *clusterv3.CircuitBreakers {
	n := wrapperspb.UInt32(100_000)
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections: n, MaxPendingRequests: n, MaxRequests: n, MaxRetries: wrapperspb.UInt32(1_000),
	}}}
}

// buildEndpoints lists the workers of a model, in the order of their names. Ready workers have their weight. All others
// are listed too, and get no requests without a decision: running requests go on at draining ones, and a router may find a
// worker ready before the control plane does. Envoy ignores a pick of an address that it does not have, and uses one
// whatever its health. Workers that have just left are unhealthy; see Leaving. So are relays, which only get the requests
// that name them.
func buildEndpoints(model string, workers []*fleet.Worker, s *Settings, leaving []Leaving) *endpointv3.ClusterLoadAssignment {
	var lb []*endpointv3.LbEndpoint
	listed := map[string]bool{}
	add := func(address string, weight uint32, health corev3.HealthStatus, isPlain bool) {
		a, err := socketAddress(address)
		// The fleet has validated addresses; a worker whose name does not resolve has none. Two workers with one address are
		// one endpoint for Envoy.
		if err != nil || listed[address] {
			return
		}
		listed[address] = true
		e := endpoint(a, max(1, weight), health)
		if isPlain {
			markPlain(e)
		}
		lb = append(lb, e)
	}

	// Clients' requests go to no prefill worker, with a decision or without one: routers send it the prompts themselves.
	for _, w := range workers {
		if w.Role != fleet.Prefill {
			add(w.Address, w.Weight, healthOf(w.State), s.EnginesInClear.Has(w.Address))
		}
	}
	for _, relay := range s.Relays {
		add(relay, 1, corev3.HealthStatus_UNHEALTHY, true)
	}
	for _, l := range leaving {
		if l.Model == model {
			add(l.Address, 1, corev3.HealthStatus_UNHEALTHY, s.EnginesInClear.Has(l.Address))
		}
	}

	return &endpointv3.ClusterLoadAssignment{
		ClusterName: PoolName(model),
		Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: lb}},
	}
}

// healthOf returns the health of an endpoint.
func healthOf(s fleet.State) corev3.HealthStatus {
	switch s {
	case fleet.Ready:
		return corev3.HealthStatus_HEALTHY
	case fleet.Draining:
		return corev3.HealthStatus_DRAINING
	default:
		return corev3.HealthStatus_UNHEALTHY
	}
}

// endpoint returns an endpoint of a cluster.
func endpoint(a *corev3.Address, weight uint32, h corev3.HealthStatus) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: a}},
		LoadBalancingWeight: wrapperspb.UInt32(weight),
		HealthStatus:        h,
	}
}
