package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/reactive"
)

// TestPlanWhateverIsObserved plans for random observations with each algorithm, and with reactive ones that are not valid.
func TestPlanWhateverIsObserved(t *testing.T) {
	algorithms := slices.DeleteFunc(plan.Algorithms(), func(a string) bool { return a == plan.AlgorithmConfigured })
	newWorld(t).CheckRandom(t, algorithms, func(rng *rand.Rand, m *plan.Model) {
		m.IdleAfter = time.Duration(rng.IntN(2)*rng.IntN(60)) * time.Second
		switch rng.IntN(4) {
		case 0:
			r := reactive.Defaults([]string{reactive.Waiting, reactive.Running, "unknown"}[rng.IntN(3)])
			m.Reactive = &r
		case 1:
			m.Reactive = &reactive.Config{} // not valid
		}
	})
}

// remembered is what the rule of TestRule remembers.
type remembered struct{ plans int }

// TestRule plans with a rule of the test's own: it remembers plans, sees the pool, and is bounded.
func TestRule(t *testing.T) {
	rule := func(before any, _ *plan.Observation, _ *plan.Demand, pools []plan.Situation) ([]plan.Want, any) {
		m, _ := before.(remembered)
		m.plans++
		return []plan.Want{{Replicas: pools[0].Replicas + len(pools[0].Workers), Reason: fmt.Sprint("plan ", m.plans)}}, m
	}
	settings := &plan.Settings{Models: []plan.Model{{Name: "m", Rule: rule, Pools: []plan.Configured{{Replicas: 2, Max: 5}}}}}
	worker := plan.Worker{Name: "w", Model: "m", State: fleet.Ready}
	state := plan.State{}
	for _, want := range []string{"3: plan 1", "4: plan 2", "5: plan 3", "5: 5, the most that the configuration allows: plan 4"} {
		var p plan.Plan
		p, state = plan.Next(state, plan.Observation{Settings: settings, Workers: []plan.Worker{worker}})
		if got := fmt.Sprintf("%d: %s", p.Pools[0].Replicas, p.Pools[0].Reason); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}

	settings.Models[0].Algorithm = "another"
	if p, _ := plan.Next(state, plan.Observation{Settings: settings}); p.Pools[0].Reason != "plan 1" {
		t.Errorf("after another name: %s", p.Pools[0].Reason)
	}
}

// A forecast that begins with earlier rates sees that they rise. One that begins with the present rate alone does not.
func TestWarmStart(t *testing.T) {
	o := newWorld(t)
	m := plan.Model{Name: "m", Algorithm: plan.AlgorithmSLA, Tuning: plan.Tuning{Headroom: 0.5}, Pools: []plan.Configured{
		{Min: 1, StartUp: 2 * time.Minute, Engine: capacity.Engine{Timing: o.Profile, KVTokens: o.Profile.KVTokens()}},
	}}
	settings := &plan.Settings{Models: []plan.Model{m}}
	rates := make([]float64, 100)
	for i := range rates {
		rates[i] = 2 * float64(i)
	}
	warm := plan.State{}.Warm(&m, rates)

	n := 1000
	seen := plan.Observation{At: o.At, Settings: settings, Demand: []plan.Demand{{
		Model: "m", Over: 5 * time.Second, Requests: n, Prompt: plan.Lengths{Count: n, Sum: float64(n) * 2000, Squares: float64(n) * 4e6},
		Answer: plan.Lengths{Count: n, Sum: float64(n) * 200, Squares: float64(n) * 4e4},
	}}}
	cold, _ := plan.Next(plan.State{}, seen)
	known, _ := plan.Next(warm, seen)
	if cold.Pools[0].Replicas >= known.Pools[0].Replicas {
		t.Errorf("cold\n%vwarm\n%v", cold, known)
	}
}

// BenchmarkNext makes a plan for separate roles, as a planner does every five seconds.
func BenchmarkNext(b *testing.B) {
	o := newWorld(b)
	m := plan.Model{Name: "m", Algorithm: plan.AlgorithmSLA, Targets: capacity.Targets{TTFT: 500 * time.Millisecond, ITL: 10 * time.Millisecond}}
	for _, r := range []fleet.Role{fleet.Prefill, fleet.Decode} {
		e := capacity.Engine{Timing: o.Profile, KVTokens: o.Profile.KVTokens()}
		m.Pools = append(m.Pools, plan.Configured{Role: r, Min: 1, Engine: e, Doubt: 0.1})
	}
	settings := &plan.Settings{Models: []plan.Model{m}}
	n := 200
	var workers []plan.Worker
	for i := range 16 {
		workers = append(workers, plan.Worker{Name: fmt.Sprint("w", i), Model: "m", Role: m.Pools[i%2].Role, State: fleet.Ready,
			Load: &plan.Load{Running: 20, KVUsage: 0.1, ITL: 9 * time.Millisecond}})
	}
	seen := plan.Observation{At: o.At, Settings: settings, Workers: workers, Demand: []plan.Demand{{
		Model: "m", Over: 5 * time.Second, Requests: n, Prompt: plan.Lengths{Count: n, Sum: float64(n) * 3000, Squares: float64(n) * 9e6},
		Answer: plan.Lengths{Count: n, Sum: float64(n) * 300, Squares: float64(n) * 9e4},
	}}}
	state := plan.State{}
	b.ReportAllocs()
	for b.Loop() {
		seen.At = seen.At.Add(5 * time.Second)
		_, state = plan.Next(state, seen)
	}
}
