package xds

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverygrpc "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointgrpc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// endpointService runs a server with one model, and returns a client of its endpoint service.
func endpointService(t *testing.T) (s *Server, f *fleet.Fleet, log *testkit.Log, client endpointgrpc.EndpointDiscoveryServiceClient) {
	t.Helper()
	s, f, log, connection := servedModel(t)
	return s, f, log, endpointgrpc.NewEndpointDiscoveryServiceClient(connection)
}

// servedModel runs a server with one model and one worker, and returns a connection to it.
func servedModel(t *testing.T) (s *Server, f *fleet.Fleet, log *testkit.Log, connection *grpc.ClientConn) {
	t.Helper()
	log, f = &testkit.Log{}, fleet.New(fleet.Hooks{})
	settings := Settings{
		Listen: "127.0.0.1:0", ExtProc: []string{"127.0.0.1:9002"}, Models: []string{"sim"}, MaxBodyBytes: 1 << 20, SessionHeaders: []string{"x-session-id"},
		DecisionTimeout: time.Second, IdleTimeout: time.Minute,
	}
	s = NewServer(settings, f, log.Logger(), prometheus.NewRegistry())
	addWorker(t, f, "a", "127.0.0.1:8001")

	ctx, stop := context.WithCancel(context.Background())
	ln, g := bufconn.Listen(1<<20), grpc.NewServer(Options()...)
	s.Register(ctx, g)
	ended := make(chan struct{})
	go func() { _ = g.Serve(ln) }()
	go func() { _ = s.Run(ctx); close(ended) }()
	connection, err := grpc.NewClient("passthrough:stator",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = connection.Close()
		stop()
		g.Stop()
		<-ended
	})
	return s, f, log, connection
}

func addWorker(t *testing.T, f *fleet.Fleet, name, address string) {
	t.Helper()
	if _, err := f.Put(fleet.Worker{Name: name, Model: "sim", Address: address, Ranks: 1, Engine: "sim", State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
}

// sizeOf returns the number of endpoints of the pool of sim, and fails on any other name.
func sizeOf(t *testing.T, list []*anypb.Any) (n int) {
	t.Helper()
	for _, r := range list {
		var c endpointv3.ClusterLoadAssignment
		if err := r.UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		if c.ClusterName != PoolName("sim") {
			t.Errorf("endpoints of %s, which is no pool", c.ClusterName)
		}
		n += len(c.Endpoints[0].LbEndpoints)
	}
	return n
}

// TestEndpointsAlone: both variants of the endpoint service serve the pools that are asked for, and changes. They invent nothing for
// other names, and log them once with the pools that there are.
func TestEndpointsAlone(t *testing.T) {
	s, f, log, client := endpointService(t)
	edge := &corev3.Node{Id: "edge"}
	names := []string{PoolName("sim"), "engines"}

	whole, err := client.StreamEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// wholeOf reads answers until one has so many endpoints, and accepts each. The first may be empty, before the first push.
	wholeOf := func(n int) *discoverygrpc.DiscoveryResponse {
		for {
			r, err := whole.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if err := whole.Send(&discoverygrpc.DiscoveryRequest{ResourceNames: names, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce}); err != nil {
				t.Fatal(err)
			}
			if sizeOf(t, r.Resources) == n {
				return r
			}
		}
	}
	if err := whole.Send(&discoverygrpc.DiscoveryRequest{Node: edge, ResourceNames: names}); err != nil {
		t.Fatal(err)
	}
	wholeOf(1)

	delta, err := client.DeltaEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	deltaOf := func(n int) *discoverygrpc.DeltaDiscoveryResponse {
		for {
			r, err := delta.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if err := delta.Send(&discoverygrpc.DeltaDiscoveryRequest{ResponseNonce: r.Nonce}); err != nil {
				t.Fatal(err)
			}
			size := 0
			for _, one := range r.Resources {
				size += sizeOf(t, []*anypb.Any{one.Resource})
			}
			if size == n {
				return r
			}
		}
	}
	if err := delta.Send(&discoverygrpc.DeltaDiscoveryRequest{Node: edge, ResourceNamesSubscribe: names}); err != nil {
		t.Fatal(err)
	}
	deltaOf(1)
	if n := testutil.ToFloat64(s.metrics.streams); n != 2 {
		t.Errorf("%g streams", n)
	}

	addWorker(t, f, "b", "127.0.0.1:8002")
	last := wholeOf(2)
	deltaOf(2)
	if n := log.Count("cluster that is no pool"); n != 2 { // one for each stream
		t.Errorf("%d lines: %s", n, log)
	}
	if text := log.String(); !strings.Contains(text, "cluster=engines") || !strings.Contains(text, "pools=pool/sim") {
		t.Error(text)
	}

	refusal := &discoverygrpc.DiscoveryRequest{ResourceNames: names, ResponseNonce: last.Nonce, ErrorDetail: grpcstatus.New(codes.InvalidArgument, "too odd").Proto()}
	if err := whole.Send(refusal); err != nil {
		t.Fatal(err)
	}
	_ = whole.CloseSend()
	_ = delta.CloseSend()
	testkit.Eventually(t, "the ends of both streams are logged", func() bool {
		return testutil.ToFloat64(s.metrics.streams) == 0 && log.Count("envoy has unsubscribed from endpoints") == 2
	})
	if !strings.Contains(log.String(), "too odd") || testutil.ToFloat64(s.metrics.nacks.WithLabelValues("endpoint")) != 1 {
		t.Errorf("the refusal is not logged and counted: %s", log)
	}
}

// TestEndpointServiceHasNothingElse: a request for no name gets nothing, and one for another type ends the stream.
func TestEndpointServiceHasNothingElse(t *testing.T) {
	_, _, _, client := endpointService(t)
	stream, err := client.StreamEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoverygrpc.DiscoveryRequest{Node: &corev3.Node{Id: "edge"}}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil || len(r.Resources) > 0 {
		t.Errorf("%v, %v", r, err)
	}
	if err := stream.Send(&discoverygrpc.DiscoveryRequest{TypeUrl: resourcev3.ListenerType}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err == nil {
		t.Errorf("listeners: %v", r)
	}
}

// TestReportedNamesAreBounded: an Envoy that asks for ever new names does not fill the log.
func TestReportedNamesAreBounded(t *testing.T) {
	s := newSubscribers()
	stream, gone := streamID{endpoints: true, number: 1}, streamID{endpoints: true, number: 2}
	s.join(stream, &corev3.Node{Id: "edge"})
	if s.report(stream, strings.Repeat("x", maxName+1)) || s.report(gone, "x") {
		t.Error("a long name, or one of a stream that is gone, is reported")
	}
	reported := 0
	for i := range 10 * maxReported {
		if s.report(stream, strings.Repeat("x", i+1)) {
			reported++
		}
	}
	if reported != maxReported {
		t.Errorf("%d names", reported)
	}
}
