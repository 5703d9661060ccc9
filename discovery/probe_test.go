package discovery_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// TestProbesOfListedWorkers: an engine that loads is waited for, and one that fails is down, though it is the only one. Its
// cache is known to be lost once. Then it is back.
func TestProbesOfListedWorkers(t *testing.T) {
	e := startEngine(t)
	e.status.Store(http.StatusServiceUnavailable)
	w := e.worker("a")
	w.HealthPath = "/health"
	f, metrics := fleet.New(fleet.Hooks{}), prometheus.NewRegistry()
	if _, err := discovery.NewListed(f, []fleet.Worker{w}); err != nil {
		t.Fatal(err)
	}

	var log testkit.Log
	var died atomic.Int32
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		discovery.Probe(ctx, discovery.ProbeConfig{
			Fleet: f, Log: log.Logger(), Metrics: metrics, Died: func(*fleet.Worker) { died.Add(1) },
		})
	})
	defer done.Wait()
	defer stop()
	await := func(want string, health fleet.HealthState) {
		t.Helper()
		testkit.Eventually(t, want, func() bool {
			return members(f) == want && f.Snapshot().Ranks[0].Load.Health().View().State == health
		})
	}

	testkit.Eventually(t, "the log has why it is not ready", func() bool { return log.Contains("/health answers 503") })
	await("a starting", fleet.HealthUnknown)
	e.status.Store(http.StatusOK)
	await("a ready", fleet.HealthReady)
	e.status.Store(http.StatusInternalServerError)
	await("a down", fleet.HealthDown)
	e.status.Store(http.StatusOK)
	await("a ready", fleet.HealthHalfOpen)

	if n := died.Load(); n != 1 {
		t.Errorf("its cache was lost %d times", n)
	}
	if n, err := testutil.GatherAndCount(metrics, "stator_health_workers"); err != nil || n != fleet.HealthStates {
		t.Errorf("%d states are counted, %v", n, err)
	}
}

// TestProbesOfLeasedWorkersInDoubt: the engine of a worker with a current lease is asked from the first doubt until it is ready,
// and not before or after. It can be down meanwhile, whatever its lease has.
func TestProbesOfLeasedWorkersInDoubt(t *testing.T) {
	c := follow(t, fleet.New(fleet.Hooks{}), discovery.Config{})
	e := startEngine(t)
	c.hold(e.worker("a"))
	c.await("a ready")
	health := c.fleet.Snapshot().Ranks[0].Load.Health()
	await := func(want fleet.HealthState) {
		t.Helper()
		testkit.Eventually(t, want.String(), func() bool { return health.View().State == want })
	}
	time.Sleep(300 * time.Millisecond) // longer than the pause before an engine of unknown health is asked again
	if n := e.asked.Load(); n > 0 {
		t.Errorf("asked %d times without a doubt", n)
	}

	health.ObserveUnserved(time.Now())
	await(fleet.HealthReady)
	if n := e.asked.Load(); n != 1 {
		t.Errorf("asked %d times after a doubt", n)
	}
	time.Sleep(1300 * time.Millisecond) // longer than the pause before a listed worker that is ready is asked again
	if n := e.asked.Load(); n != 1 {
		t.Errorf("asked %d times after the doubt has ended", n)
	}

	e.status.Store(http.StatusInternalServerError)
	health.ObserveUnserved(time.Now())
	await(fleet.HealthDown)
	c.await("a down")
	e.status.Store(http.StatusOK)
	await(fleet.HealthHalfOpen)
	c.await("a ready")
}
