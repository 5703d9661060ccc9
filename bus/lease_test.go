package bus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// epochs counts the changes of one worker's epoch that a router sees.
type epochs struct {
	mu            sync.Mutex
	changes, gone int
	current       uint64
}

func (e *epochs) apply(l bus.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Worker == nil {
		e.gone++
		e.current = 0
		return
	}
	if l.Worker.Epoch != e.current {
		e.changes++
		e.current = l.Worker.Epoch
	}
}

func (e *epochs) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("epoch %d, %d changes, gone %d times", e.current, e.changes, e.gone)
}

// watch shows the workers of a bus to e until the test ends.
func (e *epochs) watch(t *testing.T, url string) {
	b := connect(t, url)
	running(t, func(ctx context.Context) error { return b.WatchWorkers(ctx, e.apply, nil) })
}

// agent is a process that holds leases.
type agent struct {
	bus     *bus.Bus
	log     testkit.Log
	metrics *prometheus.Registry
}

func newAgent(t *testing.T, url string) *agent {
	a := &agent{metrics: prometheus.NewRegistry()}
	a.bus = testkit.JoinBus(t, bus.Config{URL: url, Log: a.log.Logger(), Metrics: a.metrics})
	return a
}

// hold holds the lease of worker w in an epoch until stop is called.
func (a *agent) hold(t *testing.T, epoch uint64) (claimed <-chan struct{}, stop func()) {
	first := make(chan struct{})
	stop = running(t, func(ctx context.Context) error {
		return a.bus.HoldWorker(ctx, bus.Claim{Name: "w", Claimed: func() { close(first) }, Current: func() fleet.Worker {
			w := worker("w", fleet.Ready)
			w.Epoch = epoch
			return w
		}})
	})
	return first, stop
}

// counter returns the value of a counter without labels.
func (a *agent) counter(t *testing.T, name string) float64 {
	t.Helper()
	families, err := a.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// TestTwoAgentsWithOneName: the second agent that claims a worker stands by with one error. Routers see one epoch of the
// worker throughout, also when the second agent leaves. When the first one leaves the second has the worker.
func TestTwoAgentsWithOneName(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	seen := &epochs{}
	seen.watch(t, e.URL())

	first, second := newAgent(t, e.URL()), newAgent(t, e.URL())
	claimed, stopFirst := first.hold(t, 1)
	<-claimed
	claimed, stopSecond := second.hold(t, 2)
	testkit.Eventually(t, "the second agent sees that the first one lives", func() bool {
		return second.log.Contains("two agents claim one worker")
	})
	time.Sleep(2 * testkit.LeaseTTL)
	stopSecond()
	time.Sleep(testkit.LeaseTTL / 5)

	if got := seen.String(); got != "epoch 1, 1 changes, gone 0 times" {
		t.Error(got)
	}
	if n := second.counter(t, "stator_bus_lease_conflicts_total"); n != 1 {
		t.Errorf("%g conflicts", n)
	}
	if first.log.Contains("level=ERROR") || second.log.Count("level=ERROR") != 1 {
		t.Errorf("first:\n%s\nsecond:\n%s", &first.log, &second.log)
	}
	select {
	case <-claimed:
		t.Error("the second agent has the lease")
	default:
	}

	claimed, _ = second.hold(t, 3)
	stopFirst()
	<-claimed
	// The bucket keeps a key's last entry only, so a router that reads late sees the new lease without the removal before it.
	testkit.Eventually(t, "routers see the second agent's worker", func() bool {
		got := seen.String()
		return got == "epoch 3, 2 changes, gone 1 times" || got == "epoch 3, 2 changes, gone 0 times"
	})
}

// TestRestartedAgentClaimsAtOnce: an agent that ended in order has deleted its leases, so the next one need not wait. After
// a crash it waits for the lease to expire, without an error.
func TestRestartedAgentClaimsAtOnce(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	for epoch := range uint64(3) {
		a := newAgent(t, e.URL())
		begin := time.Now()
		claimed, stop := a.hold(t, epoch+1)
		<-claimed
		stop()
		if waited := time.Since(begin); waited > testkit.LeaseTTL/2 {
			t.Errorf("start %d: claimed after %s", epoch, waited)
		}
	}

	crashed := newAgent(t, e.URL())
	claimed, _ := crashed.hold(t, 8)
	<-claimed
	crashed.bus.Close() // its lease stays

	next := newAgent(t, e.URL())
	claimed, _ = next.hold(t, 9)
	<-claimed
	if !next.log.Contains("waiting for it to expire") || next.log.Contains("level=ERROR") {
		t.Error(next.log.String())
	}
}

// TestAgentThatWasCutOffStandsDown: an agent pauses for longer than its lease lives, and another one claims the worker. The
// first agent finds that when it is back, and leaves the worker to the other one.
func TestAgentThatWasCutOffStandsDown(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	seen := &epochs{}
	seen.watch(t, e.URL())

	first, second := newAgent(t, e.URL()), newAgent(t, e.URL())
	pause, resume, claimed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	running(t, func(ctx context.Context) error {
		return first.bus.HoldWorker(ctx, bus.Claim{Name: "w", Claimed: func() { close(claimed) }, Current: func() fleet.Worker {
			select {
			case <-pause:
				<-resume
			default:
			}
			w := worker("w", fleet.Ready)
			w.Epoch = 1
			return w
		}})
	})
	<-claimed
	close(pause)
	claimed2, _ := second.hold(t, 2)
	<-claimed2
	close(resume)
	testkit.Eventually(t, "the first agent stands by", func() bool { return first.log.Contains("two agents claim one worker") })

	if got := seen.String(); got != "epoch 2, 2 changes, gone 1 times" && got != "epoch 2, 2 changes, gone 0 times" {
		t.Error(got)
	}
	if n := first.counter(t, "stator_bus_leases_lost_total"); n != 1 {
		t.Errorf("%g lost leases", n)
	}
}

// TestForeignBytesInALease: bytes that are no lease, left at the key of a worker, are replaced by its holder. Routers keep
// the worker meanwhile.
func TestForeignBytesInALease(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	seen := &epochs{}
	seen.watch(t, e.URL())
	a := newAgent(t, e.URL())
	claimed, _ := a.hold(t, 1)
	<-claimed
	testkit.Eventually(t, "the worker is seen", func() bool { return seen.String() == "epoch 1, 1 changes, gone 0 times" })

	nc, err := nats.Connect(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request("$KV.stator-test-workers.w", []byte(`{"stream":"x"}`), time.Second); err != nil {
		t.Fatal(err)
	}

	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), "stator-test-workers")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the lease is back", func() bool {
		entry, err := kv.Get(t.Context(), "w")
		return err == nil && entry.Value()[0] != '{'
	})
	if got := seen.String(); got != "epoch 1, 1 changes, gone 0 times" {
		t.Error(got)
	}
	if n := a.counter(t, "stator_bus_lease_conflicts_total"); n != 0 {
		t.Errorf("%g conflicts", n)
	}
}

// TestLeasesOfANode: the agent of a node cannot fill the fleet with workers. One that goes makes room for another.
func TestLeasesOfANode(t *testing.T) {
	l := newLockedBus(t)
	router := l.join("router", "password-of-r")
	seen := &members{m: map[string]fleet.Worker{}}
	running(t, func(ctx context.Context) error { return router.WatchWorkers(ctx, seen.apply, nil) })
	count := func() (ofA, ofB int) {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		for name := range seen.m {
			if fleet.NodeOf(name) == "a" {
				ofA++
				continue
			}
			ofB++
		}
		return ofA, ofB
	}

	evil := l.attack("agent-a", "password-of-a")
	const keys = "$KV.stator-test-workers."
	write := func(from, to int) {
		for i := from; i < to; i++ {
			name := fmt.Sprintf("a.w%d", i)
			if err := evil.Publish(keys+name, lease(t, name, "10.0.0.1:80")); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(0, 2000)
	holdAs(t, l.join("agent-b", "password-of-b"), "b.w")
	testkit.Eventually(t, "the router has the worker of the other node", func() bool {
		_, ofB := count()
		return ofB == 1
	})
	if ofA, _ := count(); ofA > 512 || ofA == 0 {
		t.Errorf("the router has %d workers of the node", ofA)
	}

	testkit.Eventually(t, "the leases have expired", func() bool {
		ofA, _ := count()
		return ofA == 0
	})
	write(3000, 3001)
	testkit.Eventually(t, "another worker has room", func() bool {
		ofA, _ := count()
		return ofA == 1
	})
}
