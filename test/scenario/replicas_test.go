package scenario

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/test/process"
)

// replicated is several routers behind several Envoys, on one bus. All Envoys have all routers in one cluster.
type replicated struct {
	t       *testing.T
	routers []*gateway // by its admin port
	envoys  []*frontEnd
}

// frontEnd is an Envoy with its own address.
type frontEnd struct {
	*gateway
	process *envoy.Process
}

// startReplicas starts a bus, an agent, routers, and a control plane for each Envoy: their listeners have different
// addresses, as on different machines.
// speedup divides the time of the engines.
func startReplicas(t *testing.T, routers, envoys, speedup int) *replicated {
	t.Helper()
	busAt := freeAddress(t)
	file := func(listen string) string {
		return configFile(t, fmt.Sprintf(`
gateway: {listen: "%s", decisionTimeout: 10s}
bus: {url: "nats://%s", leaseTTL: 5s}
models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: 3, args: {engineSpeedup: %d}}]}]
`, listen, busAt, speedup))
	}
	start(t, "bus", "--listen-address", busAt)
	common := file(freeAddress(t))
	start(t, "agent", "--config", common, "--admin-address", "127.0.0.1:0")

	p := &replicated{t: t}
	var addresses []string
	for range routers {
		at, admin := freeAddress(t), freeAddress(t)
		c := start(t, "extproc", "--config", common, "--listen-address", at, "--admin-address", admin)
		p.routers = append(p.routers, &gateway{t: t, admin: admin, up: c})
		addresses = append(addresses, "--extproc-address", at)
	}
	for i := range envoys {
		p.addEnvoy(fmt.Sprintf("edge-%d", i), file, addresses)
	}
	p.await()
	return p
}

func (p *replicated) addEnvoy(node string, file func(listen string) string, routers []string) {
	t := p.t
	t.Helper()
	listen, xdsAt := freeAddress(t), freeAddress(t)
	args := []string{"xds", "--config", file(listen), "--listen-address", xdsAt, "--admin-address", "127.0.0.1:0"}
	start(t, append(args, routers...)...)

	boot, err := exec.Command(binary, "envoy", "bootstrap", "--node-id", node, "--admin-address", "127.0.0.1:0", "--xds-address", xdsAt).Output()
	if err != nil {
		t.Fatal(err)
	}
	e, err := envoy.Start(envoy.Config{Path: envoyPath(t), Bootstrap: boot, Dir: t.TempDir(), Concurrency: 2, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop(context.Background()) })
	p.envoys = append(p.envoys, &frontEnd{&gateway{t: t, url: "http://" + listen}, e})
}

func (p *replicated) await() {
	p.t.Helper()
	for _, r := range p.routers {
		eventually(p.t, "a router is ready", func() error {
			_, err := get("http://" + r.admin + "/readyz")
			return err
		})
	}
	for _, e := range p.envoys {
		eventually(p.t, "requests are served as picked", func() error {
			r, err := e.tryChat(p.t.Context(), []message{{"user", "hello"}}, 1)
			if err == nil && r.decision == "" {
				err = errNotYet
			}
			return err
		})
	}
}

// play sends requests through all Envoys. One in five is cancelled at a random moment.
func (p *replicated) play(requests, clients int) (answered, cancelled int64) {
	var next, ok, left atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for {
				i := int(next.Add(1))
				if i > requests {
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				tokens := 1 + i%30
				if i%5 == 0 {
					tokens = 100_000 // it must not be done before
					time.AfterFunc(time.Duration(rand.IntN(100))*time.Millisecond, cancel)
				}
				_, err := p.envoys[i%len(p.envoys)].tryChat(ctx, []message{{"user", fmt.Sprintf("What is the answer to question %d?", i)}}, tokens)
				switch {
				case err == nil:
					ok.Add(1)
				case i%5 == 0:
					left.Add(1)
				default:
					p.t.Errorf("request %d: %v", i, err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	return ok.Load(), left.Load()
}

// assertNothingBooked waits until no router has a booking, and demands that entries ended them: not an empty engine,
// nor a lost Envoy.
func (p *replicated) assertNothingBooked() {
	p.t.Helper()
	for _, r := range p.routers {
		r.assertNothingBooked()
		if n := r.metric("stator_route_bookings_ended_total", `reason="reconciled"`); n != 0 {
			p.t.Errorf("%g bookings ended because their engine was empty", n)
		}
		if n := r.metric("stator_accesslog_foreign_ends_total", `result="dropped"`); n != 0 {
			p.t.Errorf("%g ends were dropped", n)
		}
	}
}

// sum adds a metric of all routers up.
func (p *replicated) sum(name string, labels ...string) (n float64) {
	for _, r := range p.routers {
		n += r.metric(name, labels...)
	}
	return n
}

// TestSeveralRoutersEndAllBookings: Envoy balances decisions over the routers, and sends its access log to one of
// them per thread. Every booking ends at the router that made it, also of requests that were cancelled.
func TestSeveralRoutersEndAllBookings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ routers, envoys int }{{2, 1}, {2, 2}} {
		t.Run(fmt.Sprintf("routers=%d,envoys=%d", c.routers, c.envoys), func(t *testing.T) {
			p := startReplicas(t, c.routers, c.envoys, 1)
			answered, cancelled := p.play(400, 16)
			t.Logf("%d answered, %d cancelled", answered, cancelled)
			p.assertNothingBooked()
			for i, r := range p.routers {
				if n := r.metric("stator_extproc_requests_total", `outcome="picked"`); n < 100 {
					t.Errorf("router %d picked %g of 400", i, n)
				}
			}
			if n := p.sum("stator_accesslog_foreign_ends_total", `result="forwarded"`); n == 0 {
				t.Error("no end was forwarded: the test shows nothing")
			}
			if n := p.sum("stator_accesslog_abandoned_bookings_total"); n != 0 {
				t.Errorf("%g bookings were abandoned", n)
			}
		})
	}
}

// TestKilledEnvoyLosesItsBookingsAlone: two Envoys on one host have streams open at two routers. One is killed. Its
// bookings end at both routers, and those of the other stay until their requests end.
func TestKilledEnvoyLosesItsBookingsAlone(t *testing.T) {
	t.Parallel()
	p := startReplicas(t, 2, 2, 1)
	const each = 12
	ctx, cancel := context.WithCancel(t.Context())
	var open sync.WaitGroup
	t.Cleanup(func() { cancel(); open.Wait() })
	for _, e := range p.envoys {
		for range each {
			open.Go(func() {
				_, _ = e.send(ctx, http.MethodPost, chatPath, []byte(`{"model":"sim","max_tokens":100000,"messages":[{"role":"user","content":"Tell me everything."}]}`))
			})
		}
	}
	booked := func(want float64) func() error {
		return func() error {
			if n := p.sum("stator_route_bookings"); n != want {
				return fmt.Errorf("%g bookings", n)
			}
			return nil
		}
	}
	eventually(t, "all requests are booked", booked(2*each))

	if err := exec.Command("kill", "-9", fmt.Sprint(p.envoys[0].process.PID())).Run(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bookings of the killed Envoy have ended", booked(each))
	time.Sleep(7 * time.Second) // longer than late entries are waited for
	if err := booked(each)(); err != nil {
		t.Errorf("the other Envoy's bookings did not stay: %v", err)
	}

	cancel()
	open.Wait()
	p.assertNothingBooked()
	if n := p.sum("stator_accesslog_abandoned_bookings_total"); n != each {
		t.Errorf("%g bookings were abandoned", n)
	}
}

// TestHangingRouterIsLeftOut: one of two routers hangs. Its share of the requests waits for it at first, and then the
// other router decides all of them. When it goes on, it decides again, and no booking is left anywhere.
func TestHangingRouterIsLeftOut(t *testing.T) {
	t.Parallel()
	p := startReplicas(t, 2, 1, 1)
	p.play(50, 8)
	hanging := p.routers[0].up.cmd.Process
	if err := hanging.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	decided := func(n int) error {
		for i := range n {
			r, err := p.envoys[0].tryChat(t.Context(), []message{{"user", fmt.Sprintf("Is router %d there?", i)}}, 1)
			if err != nil {
				return err
			}
			if r.decision == "" {
				return fmt.Errorf("request %d of %d was not decided", i, n)
			}
		}
		return nil
	}
	eventually(t, "the other router decides all requests", func() error { return decided(40) })

	if err := hanging.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	before := p.routers[0].metric("stator_extproc_requests_total", `outcome="picked"`)
	eventually(t, "it decides again", func() error {
		if err := decided(10); err != nil {
			return err
		}
		if p.routers[0].metric("stator_extproc_requests_total", `outcome="picked"`) < before+5 {
			return errNotYet
		}
		return nil
	})
	for _, r := range p.routers {
		r.assertNothingBooked()
	}
}

// TestKilledRouterIsLeftAtOnce: one of two routers is killed. Envoy connects to it once more, and the other router decides all further
// requests, long before the health check has failed three times. The same is so if Envoy has just begun to use the router again.
func TestKilledRouterIsLeftAtOnce(t *testing.T) {
	t.Parallel()
	p := startReplicas(t, 2, 1, 1)
	p.play(50, 8)
	killed := p.routers[0]
	killed.up.kill()
	p.assertDecided(30)

	killed.up = start(t, killed.up.cmd.Args[1:]...)
	p.await()
	eventually(t, "the router decides again", func() error {
		if _, err := p.envoys[0].tryChat(t.Context(), []message{{"user", "Are you there?"}}, 1); err != nil {
			return err
		}
		if killed.metric("stator_extproc_requests_total", `outcome="picked"`) == 0 {
			return errNotYet
		}
		return nil
	})
	killed.up.kill()
	p.assertDecided(30)
}

// assertDecided sends requests one after another, and fails the test if more of them are undecided than Envoy may have sent to a router
// that is gone: each second, each of its threads may try the router again.
func (p *replicated) assertDecided(requests int) {
	p.t.Helper()
	undecided, began := 0, time.Now()
	for i := range requests {
		r, err := p.envoys[0].tryChat(p.t.Context(), []message{{"user", fmt.Sprintf("Who decides on request %d?", i)}}, 1)
		if err != nil {
			p.t.Fatal(err)
		}
		if r.decision == "" {
			undecided++
		}
	}
	if most := 4 + 4*int(time.Since(began)/time.Second); undecided > most {
		p.t.Errorf("%d of %d requests were not decided: want at most %d", undecided, requests, most)
	}
}

// TestReplicasUnderLoad plays ten thousand requests through each set-up and prints what was left and what it cost. It
// takes minutes, so it runs only by `make test-replicas`.
func TestReplicasUnderLoad(t *testing.T) {
	if os.Getenv(replicasVariable) == "" {
		t.Skip("it takes minutes: run `make test-replicas`")
	}
	const requests, clients = 10_000, 48
	t.Log("routers Envoys answered cancelled bookings-after-5s CPU-of-routers CPU-of-Envoys load-average")
	for _, c := range []struct{ routers, envoys int }{{1, 1}, {2, 1}, {3, 1}, {2, 2}} {
		t.Run(fmt.Sprintf("routers=%d,envoys=%d", c.routers, c.envoys), func(t *testing.T) {
			p := startReplicas(t, c.routers, c.envoys, 20)
			answered, cancelled := p.play(requests, clients)
			time.Sleep(5 * time.Second)

			left := p.sum("stator_route_bookings")
			var routers, envoys time.Duration
			for _, r := range p.routers {
				routers += cpuOf(t, r.up.cmd.Process.Pid)
			}
			for _, e := range p.envoys {
				envoys += cpuOf(t, e.process.PID())
			}
			t.Logf("%7d %6d %8d %9d %17g %14s %13s %12s", c.routers, c.envoys, answered, cancelled, left, routers, envoys, process.LoadAverage())
			if left != 0 {
				t.Errorf("%g bookings are left", left)
			}
			p.assertNothingBooked()
			if n := p.sum("stator_accesslog_abandoned_bookings_total"); n != 0 {
				t.Errorf("%g bookings were abandoned", n)
			}
		})
	}
}

// cpuOf returns the CPU time that a process has used.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	spent, err := process.CPU(pid)
	if err != nil {
		t.Fatal(err)
	}
	return spent
}
