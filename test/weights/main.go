// Command weights measures how long a real Envoy takes until it has a changed weight: from the change in the control plane's fleet
// until the page /clusters of Envoy's admin server shows the weight of the endpoint.
//
// The control plane runs in this process and serves Envoy over loopback. Changes are further apart than the pace of a cluster's
// updates, which would be part of the time otherwise. Envoy's page is read again and again, so its own time is included.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/xds"
)

func main() { process.Main("weights", run) }

const (
	model = "sim"
	// bound is the longest time of the slowest change.
	bound = 200 * time.Millisecond
	// apart is the time between two changes: the pace of a cluster's updates, and some more.
	apart = 1100 * time.Millisecond
	// patience is the time for which a change is awaited.
	patience = 10 * time.Second
)

func run(ctx context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("weights", flag.ContinueOnError)
	f.SetOutput(out)
	trials := f.Int("trials", 20, "`times` that a weight is changed")
	workers := f.Int("workers", 8, "`workers` of the pool, at most 250")
	path := f.String("envoy", "", "`file` of Envoy (default that of the checkout, or of the PATH)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *trials < 1 || *workers < 1 || *workers > 250 {
		return errors.New("--trials must be at least 1, and --workers between 1 and 250")
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := &measurement{fleet: fleet.New(fleet.Hooks{}), workers: *workers}
	end, err := m.start(ctx, *path)
	defer end()
	if err != nil {
		return err
	}

	var times []time.Duration
	for i := range *trials {
		took, err := m.change(ctx, i%*workers, uint32(2+i))
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	return report(out, times, *workers)
}

// report prints the figures, and returns an error if a change took too long.
func report(out io.Writer, times []time.Duration, workers int) error {
	slices.Sort(times)
	at := func(share float64) time.Duration {
		return times[int(share*float64(len(times)-1)+0.5)].Round(100 * time.Microsecond)
	}
	fmt.Fprintf(out, "weight in the fleet to weight in Envoy, %d changes, %d workers: p50 %s, p95 %s, max %s; load average %s\n",
		len(times), workers, at(0.5), at(0.95), at(1), process.LoadAverage())
	if slowest := times[len(times)-1]; slowest > bound {
		return fmt.Errorf("the slowest change took %s: it must be at most %s", slowest, bound)
	}
	return nil
}

// measurement is a fleet with its control plane and an Envoy.
type measurement struct {
	fleet   *fleet.Fleet
	workers int
	admin   string // of Envoy
}

func nameOf(i int) string { return fmt.Sprintf("w%d", i) }

func addressOf(i int) string { return fmt.Sprintf("127.0.1.%d:8000", i+1) }

// start adds the workers, and starts the control plane and Envoy. end stops both; it is never nil.
func (m *measurement) start(ctx context.Context, path string) (end func(), err error) {
	var all []func()
	end = func() {
		for _, stop := range slices.Backward(all) {
			stop()
		}
	}
	for i := range m.workers {
		w := fleet.Worker{Name: nameOf(i), Model: model, Address: addressOf(i), Ranks: 1, State: fleet.Ready}
		if _, err := m.fleet.Put(w); err != nil {
			return end, err
		}
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return end, err
	}
	all = append(all, m.serve(ctx, ln))

	path, err = envoy.Find(path)
	if err != nil {
		return end, err
	}
	boot, err := xds.Bootstrap(xds.BootstrapSettings{NodeID: "gateway-0", Admin: "127.0.0.1:0", XDS: ln.Addr().String()})
	if err != nil {
		return end, err
	}
	dir, err := os.MkdirTemp("", "stator-weights-")
	if err != nil {
		return end, err
	}
	all = append(all, func() { _ = os.RemoveAll(dir) })

	p, err := envoy.Start(envoy.Config{Path: path, Bootstrap: boot, Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return end, err
	}
	all = append(all, func() { p.Stop(context.Background()) })
	if err := p.WaitReady(ctx); err != nil {
		return end, err
	}
	m.admin, err = p.AdminAddress()
	return end, err
}

// serve runs the control plane until stop is called.
func (m *measurement) serve(ctx context.Context, ln net.Listener) (stop func()) {
	s := xds.NewServer(xds.Settings{
		Listen: "127.0.0.1:0", ExtProc: []string{"127.0.0.1:9"}, Models: []string{model}, MaxBodyBytes: 1 << 20,
		SessionHeaders: []string{"x-session-id"}, DecisionTimeout: time.Second, IdleTimeout: time.Minute,
	}, m.fleet, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	g := grpc.NewServer(xds.Options()...)
	ctx, cancel := context.WithCancel(ctx)
	s.Register(ctx, g)

	ended := make(chan struct{}, 2)
	go func() { _ = s.Run(ctx); ended <- struct{}{} }()
	go func() { _ = g.Serve(ln); ended <- struct{}{} }()
	return func() {
		cancel()
		g.Stop()
		<-ended
		<-ended
	}
}

// change sets the weight of one worker, and returns how long it took until Envoy had it. All others get the weight that they are
// configured with.
func (m *measurement) change(ctx context.Context, worker int, weight uint32) (took time.Duration, err error) {
	select {
	case <-time.After(apart):
	case <-ctx.Done():
		return 0, ctx.Err()
	}

	began := time.Now()
	if _, err := m.fleet.SetPlanned([]fleet.Planned{{Name: nameOf(worker), Weight: weight}}); err != nil {
		return 0, err
	}
	want := fmt.Sprintf("%s::%s::weight::%d\n", xds.PoolName(model), addressOf(worker), weight)
	for time.Since(began) < patience {
		page, err := m.clusters(ctx)
		if err != nil {
			return 0, err
		}
		if strings.Contains(page, want) {
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("weight %d of %s did not reach Envoy within %s", weight, nameOf(worker), patience)
}

// clusters returns Envoy's page of endpoints.
func (m *measurement) clusters(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.admin+"/clusters", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	return string(text), err
}
