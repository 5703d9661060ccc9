package xds

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverygrpc "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/process"
)

// The size of BenchmarkOneWeight: pools, workers of each, and Envoys. With -short pools are smaller.
const (
	benchPools   = 10
	benchWorkers = 1000
	benchEnvoys  = 50
)

// benchClients is the variable with the address of the server, for the process that plays the Envoys.
const benchClients = "STATOR_XDS_BENCH_CLIENTS"

// BenchmarkOneWeight measures what one changed weight costs the control plane of 10,000 workers in pools of 1,000, whose Envoys
// have a stream of ADS each. An operation ends when all of them have received the change. The Envoys are played by a process of
// their own, so that cpu-ms/op counts the control plane alone; ns/op has the pauses between pushes, too.
func BenchmarkOneWeight(b *testing.B) {
	workers := benchWorkers
	if testing.Short() {
		workers = 50
	}
	f := benchFleet(b, workers)
	received := benchServer(b, f)
	total := benchEnvoys * benchPools
	received(total)

	plan := make([]fleet.Planned, 0, benchPools*workers)
	for pool := range benchPools {
		for i := range workers {
			plan = append(plan, fleet.Planned{Name: benchName(pool, i), Weight: 1})
		}
	}
	var all []float64
	for n := 0; b.Loop(); n++ {
		plan[n%benchPools*workers+n%workers].Weight += 100
		before := process.OwnCPU()
		if changed, err := f.SetPlanned(plan); err != nil || !changed {
			b.Fatal(changed, err)
		}
		total += benchEnvoys
		received(total)
		all = append(all, float64((process.OwnCPU()-before).Microseconds())/1000)
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "cpu-ms/op")
}

func benchModel(pool int) string { return "model-" + strconv.Itoa(pool) }

func benchName(pool, i int) string { return fmt.Sprintf("node-%d.worker-%04d", pool, i) }

// benchFleet returns a fleet with workers in all pools.
func benchFleet(b *testing.B, workers int) *fleet.Fleet {
	f := fleet.New(fleet.Hooks{})
	for pool := range benchPools {
		for i := range workers {
			_, err := f.Put(fleet.Worker{
				Name: benchName(pool, i), Model: benchModel(pool), Address: fmt.Sprintf("10.%d.%d.%d:8000", pool, i/250, 1+i%250), Ranks: 1,
				State: fleet.Ready,
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	return f
}

// benchServer serves the fleet to benchEnvoys Envoys in another process. received waits until they have received so many endpoint
// resources in all.
func benchServer(b *testing.B, f *fleet.Fleet) (received func(total int)) {
	s := NewServer(benchSettings(), f, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	g := grpc.NewServer(Options()...)
	s.Register(ctx, g)
	var all sync.WaitGroup
	all.Go(func() { _ = g.Serve(ln) })
	all.Go(func() { _ = s.Run(ctx) })

	clients := exec.Command(os.Args[0])
	clients.Env = append(os.Environ(), benchClients+"="+ln.Addr().String())
	clients.Stderr = os.Stderr
	out, err := clients.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	in, err := clients.StdinPipe() // the clients end when it is closed
	if err != nil {
		b.Fatal(err)
	}
	if err := clients.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = clients.Wait()
		stop()
		g.Stop()
		all.Wait()
	})

	lines := bufio.NewScanner(out)
	return func(total int) {
		for lines.Scan() {
			n, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "received "))
			if err == nil && n >= total {
				return
			}
		}
		b.Fatalf("the clients have ended: %v", lines.Err())
	}
}

func benchSettings() Settings {
	s := Settings{
		Listen: "127.0.0.1:80", ExtProc: []string{"127.0.0.1:9002"}, MaxBodyBytes: 1 << 20, SessionHeaders: []string{"x-session-id"},
		DecisionTimeout: time.Second, IdleTimeout: time.Minute,
	}
	for pool := range benchPools {
		s.Models = append(s.Models, benchModel(pool))
	}
	return s
}

// TestMain plays the Envoys of BenchmarkOneWeight in the process that it starts.
func TestMain(m *testing.M) {
	if address := os.Getenv(benchClients); address != "" {
		playEnvoys(address)
		return
	}
	os.Exit(m.Run())
}

// playEnvoys plays Envoys until the input ends. It prints how many endpoint resources they have received, whenever each has received
// the same number.
func playEnvoys(address string) {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()

	var received atomic.Int64
	var all sync.WaitGroup
	for i := range benchEnvoys {
		all.Go(func() { benchEnvoy(ctx, address, i, &received) })
	}
	all.Wait()
}

// benchEnvoy subscribes to all that an Envoy needs, and accepts it, until ctx ends.
func benchEnvoy(ctx context.Context, address string, i int, received *atomic.Int64) {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer func() { _ = connection.Close() }()
	stream, err := discoverygrpc.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}

	var pools []string
	for pool := range benchPools {
		pools = append(pools, PoolName(benchModel(pool)))
	}
	for _, r := range []*discoverygrpc.DeltaDiscoveryRequest{
		{Node: &corev3.Node{Id: "edge-" + strconv.Itoa(i)}, TypeUrl: resourcev3.ClusterType},
		{TypeUrl: resourcev3.EndpointType, ResourceNamesSubscribe: pools},
		{TypeUrl: resourcev3.ListenerType},
		{TypeUrl: resourcev3.RouteType, ResourceNamesSubscribe: []string{routesName}},
	} {
		if err := stream.Send(r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
	}

	for {
		r, err := stream.Recv()
		if err != nil {
			return // ctx has ended
		}
		if err := stream.Send(&discoverygrpc.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}); err != nil {
			return
		}
		if r.TypeUrl != resourcev3.EndpointType {
			continue
		}
		for range r.Resources {
			if n := received.Add(1); n%benchEnvoys == 0 {
				fmt.Printf("received %d\n", n)
			}
		}
	}
}
