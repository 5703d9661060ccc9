package extproc

import (
	"context"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stator-project/stator/test/testkit"
)

// TestHealthByName: the port for health alone answers by the names that manifests of endpoint pickers ask for. A router is alive from the
// start, ready when every model has a ready worker, and not ready from the moment on when it stops.
func TestHealthByName(t *testing.T) {
	testkit.NoLeaks(t)
	cfg := settings(t, `{name: sim, path: "builtin:sim", workers: [{name: w0, address: "10.0.0.1:80", healthPath: none}]}`)
	r, err := New(Config{Settings: cfg, Log: new(testkit.Log).Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := healthv1.NewHealthClient(conn)
	all := append([]string{healthLiveness, healthServer}, healthReadiness...)
	are := func(want map[string]bool) bool {
		for _, name := range all {
			answer, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
			if err != nil || (answer.Status == healthv1.HealthCheckResponse_SERVING) != want[name] {
				return false
			}
		}
		return true
	}

	ctx, stop := context.WithCancel(t.Context())
	done, mayListen := make(chan error, 1), make(chan struct{})
	go func() {
		done <- r.Run(ctx, RunConfig{Health: ln, Listen: func() (net.Listener, error) {
			<-mayListen
			return net.Listen("tcp", "127.0.0.1:0")
		}})
	}()
	testkit.Eventually(t, "it is alive alone", func() bool { return are(map[string]bool{healthLiveness: true}) })

	close(mayListen)
	ready := map[string]bool{}
	for _, name := range all {
		ready[name] = true
	}
	testkit.Eventually(t, "it is ready", func() bool { return are(ready) })

	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, name := range append(healthReadiness, healthServer) {
		answer, err := r.doors.health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
		if err != nil || answer.Status != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("%q of a router that has stopped: %v, %v", name, answer, err)
		}
	}
}
