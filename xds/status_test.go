package xds

import (
	"fmt"
	"strings"
	"testing"
	"time"

	discoverygrpc "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointgrpc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/stator-project/stator/test/testkit"
)

// typeOf returns the status of a type for the only Envoy.
func typeOf(s *Server, kind string) (found TypeStatus) {
	for _, e := range s.Status().Envoys {
		for _, t := range e.Types {
			if t.Type == kind {
				found = t
			}
		}
	}
	return found
}

// TestStatusOfAnEnvoy: the status has the resources that a real stream of ADS was sent, accepted and refused, and forgets the
// Envoy when its stream ends.
func TestStatusOfAnEnvoy(t *testing.T) {
	s, f, log, connection := servedModel(t)
	stream, err := discoverygrpc.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoverygrpc.DeltaDiscoveryRequest) {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	receive := func() *discoverygrpc.DeltaDiscoveryResponse {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	send(&discoverygrpc.DeltaDiscoveryRequest{
		Node: nodeOf("edge", 1, 40), TypeUrl: resourcev3.EndpointType, ResourceNamesSubscribe: []string{PoolName("sim")},
	})
	first := receive()
	send(&discoverygrpc.DeltaDiscoveryRequest{TypeUrl: resourcev3.EndpointType, ResponseNonce: first.Nonce})
	testkit.Eventually(t, "the first version is accepted", func() bool {
		return typeOf(s, "endpoint").Accepted == first.SystemVersionInfo
	})

	addWorker(t, f, "b", "127.0.0.1:8002")
	second := receive()
	why := strings.Repeat("x", 2*maxMessage)
	send(&discoverygrpc.DeltaDiscoveryRequest{
		TypeUrl: resourcev3.EndpointType, ResponseNonce: second.Nonce, ErrorDetail: grpcstatus.New(codes.InvalidArgument, why).Proto(),
	})
	testkit.Eventually(t, "the second version is refused", func() bool { return typeOf(s, "endpoint").Refusal != nil })

	status := s.Status()
	e := status.Envoys[0]
	if len(status.Envoys) != 1 || e.Node != "edge" || e.Version != "1.40.2" || e.Streams != 1 || len(e.Types) != 1 || status.Unlisted != 0 {
		t.Errorf("%+v", status)
	}
	got := e.Types[0]
	if got.Type != "endpoint" || got.Sent != second.SystemVersionInfo || got.Accepted != first.SystemVersionInfo || got.Pushes < 2 {
		t.Errorf("%+v", got)
	}
	if got.Refusal.Version != second.SystemVersionInfo || got.Refusal.Message != why[:maxMessage] || got.Refusal.At.IsZero() {
		t.Errorf("%+v", got.Refusal)
	}
	if n := testutil.ToFloat64(s.metrics.nacks.WithLabelValues("endpoint")); n != 1 || log.Count("envoy refused its configuration") != 1 {
		t.Errorf("%g refusals: %s", n, log)
	}

	// Later versions are sent and accepted as before, and the refusal stays visible.
	addWorker(t, f, "c", "127.0.0.1:8003")
	third := receive()
	send(&discoverygrpc.DeltaDiscoveryRequest{TypeUrl: resourcev3.EndpointType, ResponseNonce: third.Nonce})
	testkit.Eventually(t, "the third version is accepted", func() bool {
		got := typeOf(s, "endpoint")
		return got.Accepted == third.SystemVersionInfo && got.Refusal != nil && got.Refusal.Version == second.SystemVersionInfo
	})
	_ = stream.CloseSend()
	testkit.Eventually(t, "the Envoy is forgotten", func() bool { return len(s.Status().Envoys) == 0 })
}

// TestStatusOfTheEndpointService: streams of one Envoy in both services are one entry.
func TestStatusOfTheEndpointService(t *testing.T) {
	s, _, _, connection := servedModel(t)
	whole, err := endpointgrpc.NewEndpointDiscoveryServiceClient(connection).StreamEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ads, err := discoverygrpc.NewAggregatedDiscoveryServiceClient(connection).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	node := nodeOf("edge", 1, 40)
	if err := whole.Send(&discoverygrpc.DiscoveryRequest{Node: node, ResourceNames: []string{PoolName("sim")}}); err != nil {
		t.Fatal(err)
	}
	if err := ads.Send(&discoverygrpc.DiscoveryRequest{Node: node, TypeUrl: resourcev3.ClusterType}); err != nil {
		t.Fatal(err)
	}

	for sizes := 0; sizes == 0; {
		r, err := whole.Recv()
		if err != nil {
			t.Fatal(err)
		}
		sizes = sizeOf(t, r.Resources)
		err = whole.Send(&discoverygrpc.DiscoveryRequest{
			ResourceNames: []string{PoolName("sim")}, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "both streams are there, and both types", func() bool {
		list := s.Status().Envoys
		return len(list) == 1 && list[0].Streams == 2 && len(list[0].Types) == 2 && typeOf(s, "endpoint").Accepted != ""
	})
}

// TestBadSettingsAreShown: settings that cannot be built leave the last ones in force, whose endpoints follow the fleet. The status
// has the reason until there are good ones.
func TestBadSettingsAreShown(t *testing.T) {
	s, f, log, client := endpointService(t)
	stream, err := client.StreamEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{PoolName("sim")}
	if err := stream.Send(&discoverygrpc.DiscoveryRequest{Node: nodeOf("edge", 1, 40), ResourceNames: names}); err != nil {
		t.Fatal(err)
	}
	awaitSize := func(n int) {
		t.Helper()
		for size := -1; size != n; {
			r, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			size = sizeOf(t, r.Resources)
			err = stream.Send(&discoverygrpc.DiscoveryRequest{ResourceNames: names, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	awaitSize(1)

	good := *s.settings.Load()
	bad := good
	bad.Models, bad.ExtProc = []string{"other"}, []string{"nonsense"}
	s.Reload(bad)
	testkit.Eventually(t, "the failure is shown", func() bool { return len(s.Status().Failures) == 1 })
	if got := s.Status().Failures[0]; got.Part != partTables || !strings.Contains(got.Error, "nonsense") || got.Since.IsZero() {
		t.Errorf("%+v", got)
	}
	addWorker(t, f, "b", "127.0.0.1:8002")
	awaitSize(2)
	s.Reload(good)
	testkit.Eventually(t, "the failure is gone", func() bool { return len(s.Status().Failures) == 0 })
	if log.Count("configuration not pushed; the last one stays in force") != 1 {
		t.Error(log.String())
	}
}

// TestStatusIsBounded: Envoys beyond the bound are counted only, and so are responses without an answer.
func TestStatusIsBounded(t *testing.T) {
	j, now := newJournal(), time.Unix(1000, 0)
	for i := range maxEnvoys + 3 {
		j.join(streamID{number: int64(i)}, nodeOf(fmt.Sprintf("edge-%05d", i), 1, 40), now)
	}
	if got := j.now(); len(got.Envoys) != maxEnvoys || got.Unlisted != 3 {
		t.Errorf("%d Envoys and %d more", len(got.Envoys), got.Unlisted)
	}
	for i := range maxEnvoys + 3 {
		j.leave(streamID{number: int64(i)})
	}
	if got := j.now(); len(got.Envoys) != 0 || got.Unlisted != 0 {
		t.Errorf("%d Envoys and %d more", len(got.Envoys), got.Unlisted)
	}

	id := streamID{number: 1}
	j.join(id, nodeOf("edge", 1, 40), now)
	for i := range 100 {
		j.sent(id, resourcev3.ClusterType, response{fmt.Sprint(i), fmt.Sprint("v", i)}, now)
	}
	if n := len(j.streams[id].unanswered["cluster"]); n != maxUnanswered {
		t.Errorf("%d responses are kept", n)
	}
	j.answered(id, resourcev3.ClusterType, request{nonce: "1"}, now) // it was dropped
	j.answered(id, resourcev3.ClusterType, request{nonce: "98"}, now)
	j.answered(id, resourcev3.ClusterType, request{nonce: "97"}, now) // 98 is an answer to it, too
	if got := j.now().Envoys[0].Types[0]; got.Accepted != "v98" || got.Sent != "v99" || got.Pushes != 100 {
		t.Errorf("%+v", got)
	}
}
