package planner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// press is a Publisher that remembers.
type press struct {
	mu        sync.Mutex
	published []string // guarded by mu
	fails     bool     // guarded by mu
	back      chan struct{}
}

func (p *press) Back() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.back
}

func (p *press) PublishPlan(_ context.Context, made plan.Plan) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails {
		return errors.New("no bus")
	}
	line := ""
	for _, pool := range made.Pools {
		line += fmt.Sprintf("%s %d of %d, ", pool.Model, pool.Ready, pool.Replicas)
	}
	p.published = append(p.published, strings.TrimSuffix(line, ", "))
	return nil
}

func (p *press) fail(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails = yes
}

func (p *press) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.published, "; ")
}

// office is a planner that runs in a bubble of time.
type office struct {
	t *testing.T
	*press
	planner *Planner
	fleet   *fleet.Fleet
	log     bytes.Buffer
}

func run(t *testing.T, test func(o *office)) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{t: t, press: &press{back: make(chan struct{})}, fleet: fleet.New(fleet.Hooks{})}
		o.planner = New(replicas(2), o.fleet, o.press,
			slog.New(slog.NewTextHandler(&o.log, nil)), prometheus.NewRegistry())
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- o.planner.Run(ctx) }()
		synctest.Wait()
		test(o)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// replicas are the settings of a model with one pool.
func replicas(n int) *plan.Settings {
	return &plan.Settings{Models: []plan.Model{{Name: "sim", Pools: []plan.Configured{{Replicas: n}}}}}
}

func (o *office) worker(name string, s fleet.State) {
	o.t.Helper()
	if _, err := o.fleet.Put(fleet.Worker{Name: name, Model: "sim", Address: "10.0.0.1:8000", Ranks: 1, State: s}); err != nil {
		o.t.Fatal(err)
	}
	synctest.Wait()
}

func (o *office) pass(d time.Duration) {
	time.Sleep(d) // in the bubble this takes no time
	synctest.Wait()
}

func (o *office) want(published string) {
	o.t.Helper()
	if got := o.press.String(); got != published {
		o.t.Errorf("published %q, want %q", got, published)
	}
}

// A plan is published when it differs from the last one, and only then.
func TestPublishedOncePerChange(t *testing.T) {
	run(t, func(o *office) {
		o.want("sim 0 of 2")
		o.pass(time.Hour)
		o.want("sim 0 of 2")
		o.worker("a", fleet.Starting)
		o.want("sim 0 of 2")
		o.worker("a", fleet.Ready)
		o.want("sim 0 of 2; sim 1 of 2")
		o.worker("b", fleet.Ready)
		o.fleet.Remove("a")
		synctest.Wait()
		o.want("sim 0 of 2; sim 1 of 2; sim 2 of 2; sim 1 of 2")
		if got := o.planner.Current().Pools[0]; got.Ready != 1 || got.Reason == "" {
			t.Errorf("the current plan is %+v", got)
		}
		if n := testutil.ToFloat64(o.planner.metrics.plans.WithLabelValues("published")); n != 4 {
			t.Errorf("%g are counted", n)
		}
	})
}

// New replicas are planned at once.
func TestReload(t *testing.T) {
	run(t, func(o *office) {
		for n := 3; n < 6; n++ {
			o.planner.Reload(replicas(n))
		}
		synctest.Wait()
		if got := o.planner.Current().Pools[0].Replicas; got != 5 {
			t.Errorf("%d replicas are planned", got)
		}
		if !strings.HasPrefix(o.press.String(), "sim 0 of 2; ") || !strings.HasSuffix(o.press.String(), "; sim 0 of 5") {
			t.Errorf("published %s", o.press)
		}
	})
}

// A plan that could not be published is not the current one, and is tried again.
func TestPublishFails(t *testing.T) {
	run(t, func(o *office) {
		o.fail(true)
		o.worker("a", fleet.Ready)
		o.pass(2 * interval)
		if got := o.planner.Current().Pools[0].Ready; got != 0 {
			t.Errorf("the current plan counts %d: nobody has read that", got)
		}
		o.fail(false)
		o.pass(interval)
		o.want("sim 0 of 2; sim 1 of 2")
		if !strings.Contains(o.log.String(), `level=WARN msg="plan not published; the last one stays in force" err="no bus"`) {
			t.Errorf("the log says %s", &o.log)
		}
	})
}

// A bus that comes back may have forgotten everything: the plan is published again, unchanged.
func TestBusComesBack(t *testing.T) {
	run(t, func(o *office) {
		o.worker("a", fleet.Ready)
		o.mu.Lock()
		o.fails = true // it is not quite there yet
		close(o.back)
		o.back = make(chan struct{})
		o.mu.Unlock()
		synctest.Wait()
		o.fail(false)
		o.pass(interval)
		o.want("sim 0 of 2; sim 1 of 2; sim 1 of 2")
		o.pass(time.Hour)
		o.want("sim 0 of 2; sim 1 of 2; sim 1 of 2")
	})
}

func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}
