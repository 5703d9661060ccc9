package xds

import (
	"errors"
	"fmt"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
)

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
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
		// Without a healthy router requests go on undecided at once.
		HealthyPanicThreshold: &typev3.Percent{Value: 0},
		// By default an ejection takes effect up to a second after the change of health before it.
		UpdateMergeWindow: seconds(0),
	}
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
