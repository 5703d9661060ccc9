package planner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/planlog"
	"github.com/stator-project/stator/internal/route/peers"
)

// press is a Bus that remembers the published plans, and on which this planner leads from the start.
type press struct {
	mu        sync.Mutex
	published []string // guarded by mu
	fails     bool     // guarded by mu
	back      chan struct{}
	demand    func(*bus.Demand)
	load      func(bus.Load)
}

func (p *press) Back() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.back
}

func (p *press) Lead(ctx context.Context, lead func(ctx context.Context, term uint64)) error {
	lead(ctx, 7)
	return nil
}

func (p *press) SubscribeDemand(ctx context.Context, apply func(*bus.Demand)) error {
	p.mu.Lock()
	p.demand = apply
	p.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (p *press) SubscribeLoad(ctx context.Context, apply func(bus.Load)) error {
	p.mu.Lock()
	p.load = apply
	p.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (p *press) SubscribeBookings(ctx context.Context, _ func(*peers.Update)) error {
	<-ctx.Done()
	return nil
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

func run(t *testing.T, test func(o *office), change ...func(*Config)) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{t: t, press: &press{back: make(chan struct{})}, fleet: fleet.New(fleet.Hooks{})}
		cfg := Config{
			Settings: replicas(2), Fleet: o.fleet, Bus: o.press, Log: slog.New(slog.NewTextHandler(&o.log, nil)),
			Metrics: prometheus.NewRegistry(),
		}
		for _, c := range change {
			c(&cfg)
		}
		o.planner = New(cfg)
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
	o.pass(together)
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
		o.pass(together)
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
			o.planner.Reload(replicas(n), false)
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

// A plan that could not be published is made all the same, and is published later.
func TestPublishFails(t *testing.T) {
	run(t, func(o *office) {
		o.fail(true)
		o.worker("a", fleet.Ready)
		o.pass(2 * plan.DefaultEvery)
		if got := o.planner.Current().Pools[0].Ready; got != 1 {
			t.Errorf("the current plan counts %d", got)
		}
		o.fail(false)
		o.pass(plan.DefaultEvery)
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
		o.pass(plan.DefaultEvery)
		o.want("sim 0 of 2; sim 1 of 2; sim 1 of 2")
		o.pass(time.Hour)
		o.want("sim 0 of 2; sim 1 of 2; sim 1 of 2")
	})
}

// hands is a connector that fails a few times.
type hands struct {
	fail    int
	got     []int
	advised int // plans
}

func (h *hands) Advise(plan.Plan) { h.advised++ }

func (h *hands) Apply(_ context.Context, p plan.Plan) error {
	if h.fail > 0 {
		h.fail--
		return errors.New("no hands")
	}
	h.got = append(h.got, p.Pools[0].Replicas)
	return nil
}

// The connector gets every plan while the planner leads, so that it knows that. An advisory planner carries nothing out.
func TestConnector(t *testing.T) {
	h := &hands{fail: 2}
	run(t, func(o *office) {
		o.pass(time.Minute)
		o.planner.Reload(replicas(4), false)
		o.pass(time.Minute)
		if len(h.got) < 20 || fmt.Sprint(slices.Compact(h.got)) != "[2 4]" {
			t.Errorf("carried out: %v", h.got)
		}
	}, func(c *Config) { c.Connector = h })

	idle := &hands{}
	run(t, func(o *office) {
		o.pass(time.Minute)
		o.want("sim 0 of 2")
		if len(idle.got) > 0 {
			t.Error("an advisory planner has carried a plan out")
		}
		if idle.advised == 0 {
			t.Error("an advisory planner has not shown its plans to the connector")
		}
	}, func(c *Config) { c.Connector, c.Advisory = idle, true })
}

// What routers and engines report reaches plans as the demand and the loads of an interval.
func TestObservation(t *testing.T) {
	var mu sync.Mutex
	var all []plan.Observation
	observed := func() plan.Observation {
		mu.Lock()
		defer mu.Unlock()
		return all[len(all)-1]
	}
	run(t, func(o *office) {
		o.worker("a", fleet.Ready)
		report := func(requests, ended uint64) {
			o.press.demand(&bus.Demand{Replica: "r", Models: []bus.ModelDemand{{
				Model: "sim", Requests: requests, PromptTokens: 100 * requests, PromptSquares: 1e4 * float64(requests), Ended: ended,
				ResponseBytes: 50 * ended, ResponseSquares: 2500 * float64(ended), Waiting: 3,
			}}})
		}
		load := func(gaps uint64, hits uint64) {
			o.press.load(bus.Load{
				Worker: "a", Running: 4, KVUsage: 0.5, Gaps: gaps, GapTime: time.Duration(gaps) * 10 * time.Millisecond, PrefixHits: hits,
			})
		}
		report(1000, 900) // the sums of before do not count
		load(5000, 100)
		o.pass(plan.DefaultEvery)
		report(1050, 940)
		load(5000+40*9, 600)
		o.pass(plan.DefaultEvery)

		last := observed()
		d := last.Demand[0]
		if d.Requests != 50 || d.Prompt.Sum != 5000 || d.Answer.Count != 40 || d.Answer.Sum != 400 || d.Waiting != 3 {
			t.Errorf("demand %+v", d)
		}
		w := last.Workers[0]
		if w.Load == nil || w.Load.Running != 4 || w.Load.ITL != 10*time.Millisecond || w.Load.Found < 99 || w.Load.Found > 101 {
			t.Errorf("load %+v", w.Load)
		}

		// Silence is not known demand, and an old report no load.
		o.pass(4 * plan.DefaultEvery)
		last = observed()
		if last.Demand != nil || last.Workers[0].Load != nil {
			t.Errorf("after silence: %+v", last)
		}

		// A replica that has started again counts from 0, and its first report after that is new.
		report(5, 5)
		o.pass(plan.DefaultEvery)
		report(9, 7)
		o.pass(plan.DefaultEvery)
		if d := observed().Demand[0]; d.Requests != 4 {
			t.Errorf("after a restart: %+v", d)
		}
	}, func(c *Config) {
		c.Record = func(o *plan.Observation, _ *plan.Plan) error {
			mu.Lock()
			defer mu.Unlock()
			if !o.Between {
				all = append(all, *o)
			}
			return nil
		}
	})
}

// A log has every plan, and all of them can be made again. A full file is replaced, and its successor continues it.
func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plans.jsonl")
	log, err := OpenLog(path, 64<<10, map[string][]float64{"sim": {1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	recorded := 0
	run(t, func(o *office) {
		o.worker("a", fleet.Ready)
		o.pass(time.Minute)
		o.planner.Reload(replicas(3), false)
		o.pass(10 * time.Minute)
	}, func(c *Config) {
		c.Record = func(o *plan.Observation, p *plan.Plan) error {
			recorded++ // the planner has ended when it is read
			return log.Record(o, p)
		}
	})

	again := &planlog.Again{}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(data)) {
		l, err := planlog.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := again.Next(&l); err != nil {
			t.Fatal(err)
		}
	}
	if again.Plans != recorded || again.Different != 0 || recorded < 100 {
		t.Errorf("%d plans were made, and made again: %+v", recorded, again)
	}

	full, err := OpenLog(path, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	o := &plan.Observation{At: time.Now(), Settings: replicas(1)}
	p, _ := plan.Next(plan.State{}, *o)
	for range 3 {
		if err := full.Record(o, &p); err != nil {
			t.Fatal(err)
		}
	}
	data, _ = os.ReadFile(path)
	if l, err := planlog.Parse(bytes.Split(data, []byte("\n"))[0]); err != nil || !l.Begin.Continued {
		t.Errorf("the next file begins with %s, %v", data, err)
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// TestRequestsWaitForAnIdleModel: when requests begin to wait for a model without workers a plan is made at once, between two regular ones,
// and once: reports of more requests wait for the next. Without hands that start workers the plan has no time of a start.
func TestRequestsWaitForAnIdleModel(t *testing.T) {
	settings := replicas(1)
	settings.Models[0].IdleAfter = time.Minute
	settings.Models[0].Pools[0].StartUp = time.Minute
	report := func(o *office, up time.Duration, requests uint64, waiting int) {
		o.demand(&bus.Demand{Replica: "r", Up: up, Models: []bus.ModelDemand{{Model: "sim", Requests: requests, Waiting: waiting}}})
		synctest.Wait()
	}
	h := &hands{}
	run(t, func(o *office) {
		for i := range 61 {
			report(o, time.Duration(i+1)*time.Second, 0, 0)
			o.pass(time.Second)
		}
		o.pass(4 * time.Second)
		o.want("sim 0 of 1; sim 0 of 0")
		report(o, 70*time.Second, 0, 40)
		o.want("sim 0 of 1; sim 0 of 0; sim 0 of 1")
		if p := o.planner.Current().Pools[0]; p.StartUp != time.Minute {
			t.Errorf("a start takes %v", p.StartUp)
		}
		before := len(h.got)
		report(o, 71*time.Second, 0, 41)
		if len(h.got) != before {
			t.Error("another plan was made for one more request")
		}
	}, func(c *Config) { c.Settings, c.Connector = settings, h })

	for name, change := range map[string]func(*Config){
		"without a connector": func(c *Config) {},
		"advisory":            func(c *Config) { c.Connector, c.Advisory = &hands{}, true },
	} {
		run(t, func(o *office) {
			o.pass(time.Minute)
			if p := o.planner.Current().Pools[0]; p.StartUp != 0 {
				t.Errorf("%s a start takes %v", name, p.StartUp)
			}
		}, func(c *Config) { c.Settings = settings }, change)
	}
}
