package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// TestPlanning runs testdata/planning/*.txt: requests, a plan for each moment, and what becomes of the fleet. Prefill takes 10 ms
// and 1 ms for each token of a prompt, and a decode step 5 ms. Verbs:
//
//	fleet [workers=N] [prefill=N] [start-up=D] [max=N] [gpus=N]   the engines at the start
//	requests at=D [n=N] [every=D] [prompt=N] [output=N]           requests that share nothing
//	restart worker=N at=D after=D                                 the engine dies, and is back after a time
//	plan at=D [decode=N] [prefill=N] [drain=NAME,…]               from then on there should be as many engines
//	run [observe=D]                                               prints the numbers of engines when they change; with observe the
//	                                                              observation at that time; and where requests were served
//
// Plans are made every second.
func TestPlanning(t *testing.T) {
	datadriven.Walk(t, "testdata/planning", func(t *testing.T, file string) {
		s := &scenario{}
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string { return s.do(t, d) })
	})
}

// scenario is the run that the verbs of a file have described so far.
type scenario struct {
	cfg      Config
	arrivals []trace.Arrival
	plans    []timedPlan
}

// timedPlan is the plan from a time on.
type timedPlan struct {
	at              time.Duration
	decode, prefill int
	drain           []string
}

func (s *scenario) do(t *testing.T, d *datadriven.TestData) string {
	a := arguments{t, d}
	switch d.Cmd {
	case "fleet":
		*s = scenario{cfg: split(a.number("workers", 1), a.number("prefill", 0))}
		s.cfg.GPUs = a.number("gpus", 1)
		s.cfg.Planning = &Planning{Every: time.Second, StartUp: a.duration("start-up", 0), Max: a.number("max", 0)}
	case "requests":
		for i := range a.number("n", 1) {
			prompt := trace.Segments{{ID: uint64(len(s.arrivals) + 1), Length: a.number("prompt", 100)}}
			at := a.duration("at", 0) + time.Duration(i)*a.duration("every", 0)
			s.arrivals = append(s.arrivals, trace.Arrival{At: at, Prompt: prompt, Output: a.number("output", 1)})
		}
	case "restart":
		s.cfg.Restarts = append(s.cfg.Restarts, Restart{a.number("worker", 0), a.duration("at", 0), a.duration("after", 0)})
	case "plan":
		p := timedPlan{at: a.duration("at", 0), decode: a.number("decode", -1), prefill: a.number("prefill", -1)}
		if d.HasArg("drain") {
			arg, _ := d.Arg("drain")
			p.drain = arg.Vals
		}
		s.plans = append(s.plans, p)
	case "run":
		return s.run(t, a.duration("observe", -1))
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	return ""
}

// arguments reads the arguments of a verb.
type arguments struct {
	t *testing.T
	d *datadriven.TestData
}

func (a arguments) number(key string, n int) int {
	a.d.MaybeScanArgs(a.t, key, &n)
	return n
}

func (a arguments) duration(key string, value time.Duration) time.Duration {
	text := value.String()
	a.d.MaybeScanArgs(a.t, key, &text)
	value, err := time.ParseDuration(text)
	if err != nil {
		a.d.Fatalf(a.t, "%s: %v", key, err)
	}
	return value
}

// next returns the plan for a moment.
func (s *scenario) next(o plan.Observation) plan.Plan {
	decode, prefill := plan.Pool{Model: Model, Role: s.cfg.role(0)}, plan.Pool{Model: Model, Role: fleet.Prefill}
	current := timedPlan{decode: -1, prefill: -1}
	for _, p := range s.plans {
		if p.at <= o.At.Sub(epoch) {
			current = p
		}
	}
	for _, name := range current.drain {
		decode.Workers = append(decode.Workers, plan.Planned{Name: name, Drain: true})
		prefill.Workers = append(prefill.Workers, plan.Planned{Name: name, Drain: true})
	}

	var p plan.Plan
	if current.decode >= 0 {
		decode.Replicas = current.decode
		p.Pools = append(p.Pools, decode)
	}
	if current.prefill >= 0 {
		prefill.Replicas = current.prefill
		p.Pools = append(p.Pools, prefill)
	}
	return p
}

// run plays the requests.
func (s *scenario) run(t *testing.T, observe time.Duration) string {
	var b strings.Builder
	s.cfg.Planning.Next = func(o plan.Observation) plan.Plan {
		if o.At.Sub(epoch) == observe {
			describe(&b, &o)
		}
		return s.next(o)
	}
	slices.SortStableFunc(s.arrivals, func(x, y trace.Arrival) int { return int(x.At - y.At) })
	r := mustRun(t, s.cfg, s.arrivals)

	writeSeries(&b, "engines", r.Replicas)
	writeSeries(&b, "prefill engines", r.PrefillReplicas)
	var requests []string
	for i, w := range r.PerWorker {
		requests = append(requests, fmt.Sprintf("w%04d %d", i, w.Requests))
	}
	fmt.Fprintf(&b, "requests: %s\n", strings.Join(requests, ", "))
	fmt.Fprintf(&b, "%d completed, %d errors, %.0f GPU seconds\n", r.Completed, r.Errors, 3600*r.GPUHours)
	return b.String()
}

func writeSeries(b *strings.Builder, title string, series []Replicas) {
	if len(series) == 0 {
		return
	}
	fmt.Fprintf(b, "%s:\n", title)
	for _, p := range series {
		fmt.Fprintf(b, "  %7.3fs  wanted %d: ready %d, starting %d, draining %d\n", p.At, p.Wanted, p.Ready, p.Starting, p.Draining)
	}
}

// describe writes an observation.
func describe(b *strings.Builder, o *plan.Observation) {
	fmt.Fprintf(b, "observed after %v:\n", o.At.Sub(epoch))
	d := o.Demand[0]
	fmt.Fprintf(b, "  %s over %v: %d requests, prompts %v, answers %v, cached %.0f, waiting %d (%d tokens)\n", d.Model, d.Over,
		d.Requests, d.Prompt, d.Answer, d.CachedTokens, d.Waiting, d.WaitingTokens)
	for _, w := range o.Workers {
		fmt.Fprintf(b, "  %s %s %s since %v", w.Name, w.Role, w.State, w.Since.Sub(epoch))
		if l := w.Load; l != nil {
			fmt.Fprintf(b, ": running %d, waiting %d, queued %d tokens, ITL %v, found %.0f/s", l.Running, l.Waiting, l.QueuedTokens, l.ITL, l.Found)
		}
		b.WriteByte('\n')
	}
}

// TestPlanningLosesNothing plays plans that go up and down at random, until 1,000 engines were drained while they had requests.
// Every request is answered in full, every block is freed, and no booking is left. Equal seeds have equal results.
func TestPlanningLosesNothing(t *testing.T) {
	timing := perfmodel.Linear{PrefillBase: 50 * time.Millisecond, PrefillToken: 200 * time.Microsecond, DecodeBase: 30 * time.Millisecond}
	for name, cfg := range map[string]Config{
		"aggregated":     {Workers: 4},
		"two replicas":   {Workers: 3, Replicas: 2, EventLag: 30 * time.Millisecond},
		"with pulls":     {Workers: 4, Pull: true},
		"queue":          {Workers: 3, Busy: serving.Busy{PrefillTokens: 300}, Queue: &queue.Config{}, MaxWait: time.Hour},
		"separate roles": {Workers: 3, Prefill: 3},
		"remote":         {Workers: 3, Prefill: 3, PrefillAt: "remote", Transfer: Transfer{Base: 50 * time.Millisecond, Nodes: 2}},
	} {
		drains, least := 0, 170
		if testing.Short() {
			least = 40
		}
		for seed := uint64(1); drains < least; seed++ {
			cfg.Seed = seed
			cfg.Engine = engine.Config{Blocks: 400, BlockSize: 16, Timing: timing}
			list := sessions(60, 4, rand.New(rand.NewPCG(seed, 3)))

			first, n := playScaled(t, name, cfg, list)
			drains += n
			if seed > 2 {
				continue
			}
			again, _ := playScaled(t, name, cfg, list)
			if first != again {
				t.Errorf("%s, seed %d:\n%s, then\n%s", name, seed, first, again)
			}
		}
		t.Logf("%s: %d engines were drained", name, drains)
	}
}

// TestPlanningWithRestarts: engines die and come back while plans go up and down. Only requests of engines that died fail.
func TestPlanningWithRestarts(t *testing.T) {
	list := sessions(60, 4, rand.New(rand.NewPCG(1, 5)))
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 6))
		cfg := Config{Workers: 4, Seed: seed, Restarts: often(700*time.Millisecond, 900*time.Millisecond)}
		cfg.Planning = &Planning{Every: 300 * time.Millisecond, StartUp: time.Second, Max: 6, Next: func(o plan.Observation) plan.Plan {
			return randomPlan(rng, &o, false)
		}}
		r := mustRun(t, cfg, list)
		if r.Completed+r.Errors != len(list) || r.Completed < len(list)/2 {
			t.Errorf("seed %d: %d completed and %d failed of %d", seed, r.Completed, r.Errors, len(list))
		}
	}
}

// playScaled plays arrivals with random plans, and returns the result and how many engines were seen with requests while they
// drained.
func playScaled(t *testing.T, name string, cfg Config, list []trace.Arrival) (result string, drains int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(cfg.Seed, 4))
	drained := map[string]bool{}
	cfg.Planning = &Planning{Every: 300 * time.Millisecond, StartUp: time.Duration(rng.IntN(900)) * time.Millisecond, Max: 6}
	cfg.Planning.Next = func(o plan.Observation) plan.Plan {
		for _, w := range o.Workers {
			if w.State == fleet.Draining {
				drained[w.Name] = true
			}
		}
		return randomPlan(rng, &o, cfg.Prefill > 0)
	}

	answered := make([]int, len(list))
	cfg.Ended = func(o Outcome) { answered[o.Number] = o.Output }
	r, err := newRun(cfg.withDefaults(), trace.List(list))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.play(); err != nil {
		t.Fatal(err)
	}

	for i := range list {
		if answered[i] != list[i].Output {
			t.Errorf("%s, seed %d: request %d has %d of %d tokens", name, cfg.Seed, i, answered[i], list[i].Output)
		}
	}
	for _, w := range r.workers {
		if used := w.stats().Active; used > 0 {
			t.Errorf("%s, seed %d: %s still uses %d blocks", name, cfg.Seed, w.name, used)
		}
	}
	for i, p := range r.replicas {
		if n := p.router.Bookings(); n > 0 || len(p.fleet.Snapshot().Workers) != len(r.live) {
			t.Errorf("%s, seed %d: router %d has %d bookings and lists %d of %d workers", name, cfg.Seed, i, n,
				len(p.fleet.Snapshot().Workers), len(r.live))
		}
	}
	data, _ := json.Marshal(r.result())
	return string(data), len(drained)
}

// randomPlan wants a random number of engines of each role, and drains one by name now and then.
func randomPlan(rng *rand.Rand, o *plan.Observation, roles bool) plan.Plan {
	pools := []plan.Pool{{Model: Model, Role: fleet.Aggregated}}
	if roles {
		pools = []plan.Pool{{Model: Model, Role: fleet.Decode}, {Model: Model, Role: fleet.Prefill}}
	}
	for i := range pools {
		pools[i].Replicas = rng.IntN(7)
		if rng.IntN(4) == 0 {
			w := o.Workers[rng.IntN(len(o.Workers))]
			pools[i].Workers = []plan.Planned{{Name: w.Name, Drain: true}}
		}
	}
	return plan.Plan{Pools: pools}
}

// TestPlanningConfig: values out of bounds are refused.
func TestPlanningConfig(t *testing.T) {
	next := func(plan.Observation) plan.Plan { return plan.Plan{} }
	for want, cfg := range map[string]Config{
		"needs a function":  {Planning: &Planning{}},
		"at least 1ms":      {Planning: &Planning{Next: next, Every: time.Microsecond}},
		"negative":          {Planning: &Planning{Next: next, StartUp: -1}},
		"1 to 4096":         {Planning: &Planning{Next: next, Max: 5000}},
		"allows 3":          {Workers: 4, Planning: &Planning{Next: next, Max: 3}},
		"shared cache":      {SharedCache: true, Planning: &Planning{Next: next}},
		`only one is "sim"`: {Planning: &Planning{Next: next, Settings: &plan.Settings{Models: []plan.Model{{Name: "other"}}}}},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestReplicasAreBounded: a series with very many changes is thinned, and keeps its first and last points.
func TestReplicasAreBounded(t *testing.T) {
	var p pool
	for i := range 20_000 {
		p.record(Replicas{At: float64(i), Ready: i})
	}
	n := len(p.series)
	if n > maxReplicas || n < maxReplicas/2 || p.series[0].Ready != 0 || p.series[n-1].Ready != 19_999 {
		t.Errorf("%d points, from %+v to %+v", n, p.series[0], p.series[n-1])
	}
}
