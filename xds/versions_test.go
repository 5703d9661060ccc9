package xds

import (
	"context"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	discoverygrpc "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointgrpc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// nodeOf returns the node of an Envoy of a version, as it sends it.
func nodeOf(id string, major, minor uint32) *corev3.Node {
	return &corev3.Node{Id: id, UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{
		UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: major, MinorNumber: minor, Patch: 2}},
	}}
}

// TestVersionOfNode: an Envoy that is newer than all known ones, or does not name its version, counts as the newest.
func TestVersionOfNode(t *testing.T) {
	for _, tt := range []struct {
		node   *corev3.Node
		want   Version
		admits bool
	}{
		{nodeOf("x", 1, 36), 36, true}, {nodeOf("x", 1, 38), 38, true}, {nodeOf("x", 1, 40), 40, true},
		{nodeOf("x", 1, 41), 40, true}, {nodeOf("x", 2, 0), 40, true}, {&corev3.Node{}, 40, true}, {nil, 40, true},
		{nodeOf("x", 1, 35), 0, false}, {nodeOf("x", 0, 40), 0, false},
	} {
		if v, ok := versionOf(tt.node); v != tt.want || ok != tt.admits {
			t.Errorf("%v: %s, %t", tt.node, v, ok)
		}
	}
}

// TestResourcesOfVersions: what Envoys get differs by their versions alone, also where two of them have one node id. Clusters are
// built once for each version.
func TestResourcesOfVersions(t *testing.T) {
	s := Settings{
		Listen: "127.0.0.1:80", ExtProc: []string{"127.0.0.1:9002"}, Models: []string{"m"}, SessionHeaders: []string{"x"}, MaxBodyBytes: 1 << 20,
		AnswerTokens: true,
	}
	r, err := Build(s, fleet.New(fleet.Hooks{}).Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	x := newTables()
	for v := oldestVersion; v <= newestVersion; v++ {
		for n, node := range []string{"upgraded", "another"} {
			if _, err := x.join(streamID{isDelta: n == 0, number: int64(v)}, edge{node, v}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := x.setTables(s, r); err != nil {
		t.Fatal(err)
	}

	for v := oldestVersion; v <= newestVersion; v++ {
		snap, err := x.cache.GetSnapshot(edge{"upgraded", v}.key())
		if err != nil {
			t.Fatal(err)
		}
		filters := filtersOf(t, snap.GetResources(resourcev3.ListenerType)[listenerName].(*listenerv3.Listener))
		bound, count := "envoy.filters.http.buffer", 4
		if v >= 40 {
			bound, count = "envoy.filters.http.body_size_limit", 5
		}
		if len(filters) != count || filters[1] != bound || slices.Contains(filters, "envoy.filters.http.ai_protocol_manager") != (v >= 40) {
			t.Errorf("%s: filters %s", v, filters)
		}

		pool := snap.GetResources(resourcev3.ClusterType)[PoolName("m")].(*clusterv3.Cluster)
		if got := reportsServed(t, pool); got != (v >= 38) {
			t.Errorf("%s: selected_host_key is there: %t", v, got)
		}
		other, err := x.cache.GetSnapshot(edge{"another", v}.key())
		if err != nil || other.GetResources(resourcev3.ClusterType)[PoolName("m")] != pool {
			t.Errorf("%s: two Envoys have two copies of a cluster, %v", v, err)
		}
	}
	if !reportsServed(t, r.Clusters[len(r.Clusters)-1]) {
		t.Error("the configuration itself was trimmed")
	}
}

func filtersOf(t *testing.T, l *listenerv3.Listener) (names []string) {
	t.Helper()
	var manager hcmv3.HttpConnectionManager
	if err := l.FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(&manager); err != nil {
		t.Fatal(err)
	}
	for _, f := range manager.HttpFilters {
		names = append(names, f.Name)
	}
	return names
}

func reportsServed(t *testing.T, pool *clusterv3.Cluster) bool {
	t.Helper()
	var override overridev3.OverrideHost
	if err := pool.LoadBalancingPolicy.Policies[0].TypedExtensionConfig.TypedConfig.UnmarshalTo(&override); err != nil {
		t.Fatal(err)
	}
	return override.SelectedHostKey != nil
}

// TestWholeStateOverADS: an Envoy that asks for the state of the world gets its tables, and changes of the fleet.
func TestWholeStateOverADS(t *testing.T) {
	s, f, _, connection := servedModel(t)
	stream, err := discoverygrpc.NewAggregatedDiscoveryServiceClient(connection).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{resourcev3.RouteType: {routesName}, resourcev3.EndpointType: {PoolName("sim")}}
	for _, url := range []string{resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.ListenerType, resourcev3.RouteType} {
		err := stream.Send(&discoverygrpc.DiscoveryRequest{Node: nodeOf("whole", 1, 40), TypeUrl: url, ResourceNames: names[url]})
		if err != nil {
			t.Fatal(err)
		}
	}

	// await reads answers, and accepts each, until one of a type has so many resources, or so many endpoints.
	await := func(url string, n int) {
		t.Helper()
		for {
			r, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			err = stream.Send(&discoverygrpc.DiscoveryRequest{
				TypeUrl: r.TypeUrl, ResourceNames: names[r.TypeUrl], VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce,
			})
			if err != nil {
				t.Fatal(err)
			}
			size := len(r.Resources)
			if r.TypeUrl == resourcev3.EndpointType {
				size = sizeOf(t, r.Resources)
			}
			if r.TypeUrl == url && size == n {
				return
			}
		}
	}
	await(resourcev3.RouteType, 1) // the last of the types that were asked for
	addWorker(t, f, "b", "127.0.0.1:8002")
	await(resourcev3.EndpointType, 2)
	next := *s.settings.Load()
	next.Models = []string{"sim", "other"}
	s.Reload(next)
	await(resourcev3.ClusterType, 4) // two pools, the routers, and the one without endpoints
}

// TestTooOldEnvoysAreRefused: the stream of an Envoy before 1.36 ends with an error that names its version and what to do, in
// each service and variant. It is counted each time and logged once.
func TestTooOldEnvoysAreRefused(t *testing.T) {
	s, _, log, connection := servedModel(t)
	ads, eds := discoverygrpc.NewAggregatedDiscoveryServiceClient(connection), endpointgrpc.NewEndpointDiscoveryServiceClient(connection)
	old := nodeOf("edge-old", 1, 35)
	whole := &discoverygrpc.DiscoveryRequest{Node: old, TypeUrl: resourcev3.ClusterType}
	delta := &discoverygrpc.DeltaDiscoveryRequest{Node: old, TypeUrl: resourcev3.ClusterType}

	for name, ask := range map[string]func() error{
		"ADS":        func() error { return refusalOf(t, ads.StreamAggregatedResources, whole) },
		"ADS, delta": func() error { return refusalOf(t, ads.DeltaAggregatedResources, delta) },
		"EDS":        func() error { return refusalOf(t, eds.StreamEndpoints, &discoverygrpc.DiscoveryRequest{Node: old}) },
		"EDS, delta": func() error { return refusalOf(t, eds.DeltaEndpoints, &discoverygrpc.DeltaDiscoveryRequest{Node: old}) },
	} {
		err := ask()
		for _, part := range []string{"1.35.2", "edge-old", "1.36", "upgrade it"} {
			if grpcstatus.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v lacks %q", name, err, part)
			}
		}
	}
	if n := testutil.ToFloat64(s.metrics.tooOld); n != 4 {
		t.Errorf("%g refusals are counted", n)
	}
	if n := log.Count("its version is too old"); n != 1 {
		t.Errorf("%d lines: %s", n, log)
	}
	testkit.Eventually(t, "the streams have ended", func() bool { return testutil.ToFloat64(s.metrics.streams) == 0 })
	if _, err := s.tables.cache.GetSnapshot(edge{"edge-old", 0}.key()); err == nil {
		t.Error("it has tables")
	}
}

// refusalOf opens a stream, asks once, and returns the error with which the stream ends.
func refusalOf[Q any, S interface {
	Send(*Q) error
	RecvMsg(any) error
}](t *testing.T, open func(context.Context, ...grpc.CallOption) (S, error), question *Q) error {
	t.Helper()
	stream, err := open(t.Context())
	if err == nil {
		err = stream.Send(question)
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream.RecvMsg(&discoverygrpc.DiscoveryResponse{})
}

// TestRefusalsAreBounded: names without end do not fill the memory or the log.
func TestRefusalsAreBounded(t *testing.T) {
	s := NewServer(Settings{}, fleet.New(fleet.Hooks{}), (&testkit.Log{}).Logger(), prometheus.NewRegistry())
	long := nodeOf(strings.Repeat("x", 1<<20), 1, 20)
	if err := s.joined(streamID{}, long); err == nil || len(err.Error()) > 2*maxName {
		t.Errorf("%.600v", err)
	}
	reported := 0
	for i := range 2 * maxRemembered {
		if s.tooOld.isFirst(strings.Repeat("x", i)) {
			reported++
		}
	}
	if reported != maxRemembered-1 || slices.ContainsFunc([]string{"", "x", "another"}, s.tooOld.isFirst) {
		t.Errorf("%d names", reported)
	}
}
