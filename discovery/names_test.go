package discovery_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// names is a name server whose answers can be set.
type names struct {
	mu      sync.Mutex
	ips     map[string][]netip.Addr // of each host; a host without any does not exist
	silent  map[string]bool         // hosts whose lookups get no answer
	lookups map[string]int
}

func newNames() *names {
	return &names{ips: map[string][]netip.Addr{}, silent: map[string]bool{}, lookups: map[string]int{}}
}

// LookupNetIP answers as a net.Resolver does.
func (n *names) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	n.lookups[host]++
	ips, silent := slices.Clone(n.ips[host]), n.silent[host]
	n.mu.Unlock()

	switch {
	case silent:
		<-ctx.Done()
		return nil, ctx.Err()
	case len(ips) == 0:
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return ips, nil
}

// set makes a host have these IPs.
func (n *names) set(host string, ips ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ips[host] = nil
	for _, ip := range ips {
		n.ips[host] = append(n.ips[host], netip.MustParseAddr(ip))
	}
}

func (n *names) count(host string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lookups[host]
}

// named returns a worker that is listed by its name, at port 8000.
func named(name string) fleet.Worker {
	w := worker(name)
	w.Epoch = 0
	w.Address, w.Named, w.HealthPath = "", name+":8000", "/health"
	return w
}

// resolving is a process that resolves the names of its listed workers.
type resolving struct {
	*names
	t      *testing.T
	fleet  *fleet.Fleet
	listed *discovery.Listed
	log    testkit.Log
	moved  atomic.Int64
}

// resolve starts a process that lists these workers, in the bubble of a test, until stop is called.
func resolve(t *testing.T, n *names, later time.Duration, workers ...fleet.Worker) (p *resolving, stop func()) {
	t.Helper()
	p = &resolving{names: n, t: t, fleet: fleet.New(fleet.Hooks{})}
	var err error
	p.listed, err = discovery.NewListed(p.fleet, workers)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		discovery.Resolve(ctx, discovery.ResolveConfig{
			Listed: p.listed, Log: p.log.Logger(), Resolver: n, Later: later, Moved: func() { p.moved.Add(1) },
		})
	})
	synctest.Wait()
	return p, func() { cancel(); done.Wait() }
}

// pass lets time pass.
func (p *resolving) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// probe makes the engine of a worker answer a probe.
func (p *resolving) probe(name string, healthy bool) {
	now := time.Now()
	p.fleet.ObserveProbe(name, p.fleet.Snapshot().Worker(name).Address, fleet.Probe{Healthy: healthy, Refused: !healthy, Asked: now}, now)
	synctest.Wait()
}

// want checks the address and the state of a worker.
func (p *resolving) want(when, name, address string, state fleet.State) {
	p.t.Helper()
	w := p.fleet.Snapshot().Worker(name)
	if w.Address != address || w.State != state {
		p.t.Errorf("%s: %s is %s at %q, want %s at %q", when, name, w.State, w.Address, state, address)
	}
}

// TestNameOfAWorker: a worker has no address until its name resolves. Then it follows the name, as another engine each time,
// and keeps its last address while the name does not resolve.
func TestNameOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := resolve(t, newNames(), 0, named("a"))
		defer stop()
		p.want("without an answer", "a", "", fleet.Starting)
		if got := p.fleet.Snapshot().Unready("sim"); got != "a is starting (its name a does not resolve: no such host)" {
			t.Errorf("unready: %s", got)
		}

		p.set("a", "10.0.0.1")
		p.pass(3 * time.Second)
		p.want("with an answer", "a", "10.0.0.1:8000", fleet.Starting)
		p.probe("a", true)
		p.want("healthy", "a", "10.0.0.1:8000", fleet.Ready)
		before, _ := p.fleet.Snapshot().Rank("a", 0)

		p.set("a")
		p.pass(time.Minute)
		p.want("without a name", "a", "10.0.0.1:8000", fleet.Ready)
		if !p.log.Contains("the worker keeps its address") {
			t.Error("the log does not have that the name is gone")
		}
		p.set("a", "fd00::1")
		p.pass(30 * time.Second)
		p.want("at another address", "a", "[fd00::1]:8000", fleet.Starting)
		after, _ := p.fleet.Snapshot().Rank("a", 0)
		if after.Load == before.Load || after.Worker.Epoch == before.Worker.Epoch || p.moved.Load() != 2 {
			t.Errorf("it is the same engine: %+v; moved %d times", after.Worker, p.moved.Load())
		}
	})
}

// TestLookupsFollowHealth: the name of a ready worker is looked up every 30 s, at once when it is down, and then more often.
func TestLookupsFollowHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNames()
		n.set("a", "10.0.0.1")
		p, stop := resolve(t, n, 0, named("a"))
		defer stop()
		p.probe("a", true)
		p.pass(time.Second)

		before := p.count("a")
		p.pass(5 * time.Minute)
		if got := p.count("a") - before; got != 10 {
			t.Errorf("%d lookups in 5 minutes for a ready worker", got)
		}
		p.set("a", "10.0.0.2")
		p.probe("a", false)
		p.probe("a", false) // down by the second one
		p.want("as soon as it is down", "a", "10.0.0.2:8000", fleet.Starting)

		before = p.count("a")
		p.pass(5 * time.Minute)
		if got := p.count("a") - before; got < 100 || got > 105 {
			t.Errorf("%d lookups in 5 minutes for one that is not ready", got)
		}
	})
}

// TestNewAddressWaits: a process that must be later than others uses a new address later, but the first one at once.
func TestNewAddressWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNames()
		n.set("a", "10.0.0.1")
		p, stop := resolve(t, n, 3*time.Second, named("a"))
		defer stop()
		p.want("at first", "a", "10.0.0.1:8000", fleet.Starting)
		p.probe("a", true)
		p.pass(time.Second) // the next lookup after this is at 30.5 s

		p.set("a", "10.0.0.2")
		p.pass(32 * time.Second)
		p.want("before the wait is over", "a", "10.0.0.1:8000", fleet.Ready)
		p.pass(3 * time.Second)
		p.want("after it", "a", "10.0.0.2:8000", fleet.Starting)
	})
}

// TestProcessesFindOneAddress: processes that have seen other histories of a name with several IPs use the same one, and have
// the same epoch, by which routers exchange bookings. The log warns once. A host with an IP of each kind is no reason to.
func TestProcessesFindOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNames()
		n.set("a", "10.0.0.9")
		n.set("b", "::1", "127.0.0.1")
		old, stopOld := resolve(t, n, 0, named("a"), named("b"))
		defer stopOld()
		n.set("a", "10.0.0.9", "::ffff:10.0.0.3", "10.0.0.4", "10.0.0.3", "0.0.0.0")
		old.pass(time.Minute)
		young, stopYoung := resolve(t, n, 0, named("b"), named("a"))
		defer stopYoung()

		for _, p := range []*resolving{old, young} {
			p.want("with several IPs", "a", "10.0.0.3:8000", fleet.Starting)
			p.want("with one of each kind", "b", "127.0.0.1:8000", fleet.Starting)
			if got := strings.Count(p.log.String(), "has several IPs"); got != 1 {
				t.Errorf("%d warnings:\n%s", got, p.log.String())
			}
		}
		if a, b := old.fleet.Snapshot().Worker("a").Epoch, young.fleet.Snapshot().Worker("a").Epoch; a != b {
			t.Errorf("epochs %d and %d", a, b)
		}
	})
}

// TestSilentNameServer: a lookup without an answer ends, with a reason, and delays no other worker.
func TestSilentNameServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNames()
		n.silent["a"] = true
		n.set("b", "10.0.0.2")
		n.set("c", "0.0.0.0")
		p, stop := resolve(t, n, 0, named("a"), named("b"), named("c"))
		defer stop()
		p.want("meanwhile", "b", "10.0.0.2:8000", fleet.Starting)
		p.pass(2 * time.Second)
		p.want("after its time", "a", "", fleet.Starting)
		unready := p.fleet.Snapshot().Unready("")
		for _, want := range []string{"its name a does not resolve: no answer in time", "its name c does not resolve: the answer has no address of a host"} {
			if !strings.Contains(unready, want) {
				t.Errorf("unready: %s; want %s", unready, want)
			}
		}
	})
}

// TestListOfNamesChanges: a worker keeps the address that its name has while the list changes, without the name it has none of
// it, and one that leaves the list is not looked up any more.
func TestListOfNamesChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNames()
		n.set("a", "10.0.0.1")
		n.set("b", "10.0.0.2")
		p, stop := resolve(t, n, 0, named("a"), named("b"))
		defer stop()
		p.probe("a", true)
		p.probe("b", true)

		a, moved := named("a"), named("b")
		a.Weight = 7
		moved.Named = "c:8000"
		if err := p.listed.Set([]fleet.Worker{a, moved}); err != nil {
			t.Fatal(err)
		}
		p.want("with another weight", "a", "10.0.0.1:8000", fleet.Ready)
		p.want("with another name", "b", "", fleet.Starting)
		if err := p.listed.Set([]fleet.Worker{a}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := p.count("b") + p.count("c")
		p.pass(time.Minute)
		if got := p.count("b") + p.count("c") - before; got > 0 {
			t.Errorf("%d lookups for a worker that left", got)
		}
		bad := named("b")
		bad.Named = "10.0.0:80"
		if err := p.listed.Set([]fleet.Worker{bad}); err == nil || !strings.Contains(err.Error(), "must be a DNS name and a port") {
			t.Errorf("a wrong name: %v", err)
		}
	})
}
