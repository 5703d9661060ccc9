package xds

import (
	"errors"
	"fmt"
	"strings"
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

	"github.com/stator-project/stator/internal/fleet"

	"github.com/stator-project/stator/internal/envoynames"
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

// routerPings is the time between Envoy's pings to a router on a connection. A router that does not answer for
// half of it is treated as gone.
const routerPings = 10 * time.Second

// routerHealth checks routers, so that none of several that hangs or has vanished delays its share of the requests for
// ever. It is patient, because a router that is merely slow still decides.
func routerHealth() *corev3.HealthCheck {
	const interval, again = 2 * time.Second, 500 * time.Millisecond
	return &corev3.HealthCheck{
		Timeout:            seconds(interval),
		Interval:           seconds(interval),
		UnhealthyThreshold: wrapperspb.UInt32(3),
		// One that is back is used at once.
		HealthyThreshold:  wrapperspb.UInt32(1),
		UnhealthyInterval: seconds(again),
		// By default a cluster without requests is checked once a minute.
		NoTrafficInterval: seconds(again),
		HealthChecker: &corev3.HealthCheck_GrpcHealthCheck_{
			GrpcHealthCheck: &corev3.HealthCheck_GrpcHealthCheck{Authority: envoynames.Authority},
		},
	}
}

// routerEjection has Envoy leave a router at the first connection that fails, until its health is checked. A router that was killed would
// otherwise get its share of the requests for about a second, and they would go on undecided. Statuses of gRPC do not count, and an only
// router is not left: at most half of them are.
func routerEjection() *clusterv3.OutlierDetection {
	const half = 50
	off := wrapperspb.UInt32(0)
	return &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors:  true,
		ConsecutiveLocalOriginFailure:   wrapperspb.UInt32(1),
		EnforcingLocalOriginSuccessRate: off,
		EnforcingConsecutive_5Xx:        off,
		EnforcingSuccessRate:            off,
		Interval:                        seconds(time.Second),
		BaseEjectionTime:                seconds(time.Second),
		MaxEjectionTime:                 seconds(4 * time.Second),
		MaxEjectionPercent:              wrapperspb.UInt32(half),
	}
}

// buildExtProcCluster builds the cluster of routers: they decide, and receive access-log entries. Envoy
// balances over all of them.
func buildExtProcCluster(s Settings) (*clusterv3.Cluster, error) {
	var p packer
	if len(s.ExtProc) == 0 {
		return nil, errors.New("no address of a router is configured")
	}

	c, err := buildServers(extProcCluster, s.ExtProc)
	if err != nil {
		return nil, err
	}
	c.CircuitBreakers = wideOpen()
	c.HealthChecks = []*corev3.HealthCheck{routerHealth()}
	c.OutlierDetection = routerEjection()
	// Without a healthy router requests go on undecided at once.
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 0}}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: p.pack(overHTTP2(&corev3.Http2ProtocolOptions{
		// A body may be large and is sent as one message. These windows hold several of them.
		InitialStreamWindowSize:     wrapperspb.UInt32(4 << 20),
		InitialConnectionWindowSize: wrapperspb.UInt32(64 << 20),
		// A router whose host has vanished must not delay requests until TCP gives up.
		ConnectionKeepalive: &corev3.KeepaliveSettings{Interval: seconds(routerPings), Timeout: seconds(routerPings / 2)},
	}))}
	if s.ExtProcSecrets != "" {
		c.TransportSocket = clientTLS(s.ExtProcSecrets, s.ExtProcServerName, &p)
	}
	return c, p.err
}

// overHTTP2 returns the HTTP settings of a cluster of gRPC servers.
func overHTTP2(o *corev3.Http2ProtocolOptions) *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: o},
		}},
	}
}

// buildServers builds a cluster of routers or control planes: where they are, and no more.
func buildServers(name string, addresses []string) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, ConnectTimeout: seconds(1e9),
	}
	var servers []*endpointv3.LbEndpoint
	for _, text := range addresses {
		address, isName, err := serverAddress(text)
		if err != nil {
			return nil, err
		}
		if isName {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
			c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
		}
		servers = append(servers, endpoint(address, 1, corev3.HealthStatus_UNKNOWN))
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: servers}},
	}
	return c, nil
}

// CheckServers returns an error for invalid addresses of routers or control planes, which Envoys reach with TLS or without.
func CheckServers(addresses []string, withTLS bool) error {
	names, sockets := 0, 0
	for _, a := range addresses {
		_, isName, err := serverAddress(a)
		if err != nil {
			return err
		}
		if isName {
			names++
		}
		if strings.HasPrefix(a, unixPrefix) {
			sockets++
		}
	}

	// A cluster has one transport, and one way of discovery.
	if withTLS && sockets > 0 {
		return errors.New("a Unix socket has no TLS")
	}
	if names > 0 && sockets > 0 {
		return errors.New("names and Unix sockets cannot be used together")
	}
	return nil
}

// serverAddress parses ip:port, unix:///path, or name:port. Envoy resolves a name, and uses all its addresses.
func serverAddress(s string) (a *corev3.Address, isName bool, err error) {
	a, err = grpcAddress(s)
	if err == nil {
		return a, false, nil
	}
	host, port, ok := fleet.SplitName(s)
	if !ok {
		return nil, false, fmt.Errorf("address %q: use ip:port, name:port, or unix:///path", s)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}, true, nil
}

// unixPrefix begins the addresses of Unix sockets.
const unixPrefix = "unix://"

// grpcAddress parses ip:port or unix:///path.
func grpcAddress(s string) (*corev3.Address, error) {
	if path, ok := strings.CutPrefix(s, unixPrefix); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}, nil
	}
	return socketAddress(s)
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
