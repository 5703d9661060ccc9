package plantest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// CheckRandom plans for random observations: whatever is observed and whatever is missing, there is a plan within its bounds and
// budgets, with a reason. Equal states and observations have equal plans, and making one changes neither. Algorithms are names, and
// change sets further settings of a model at random; it may be nil.
func (o *World) CheckRandom(t *testing.T, algorithms []string, change func(*rand.Rand, *plan.Model)) {
	t.Helper()
	seeds := uint64(150)
	if testing.Short() {
		seeds = 30
	}

	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 0))
		settings := randomSettings(rng, algorithms, capacity.Engine{Timing: o.Profile, KVTokens: o.Profile.KVTokens()}, change)
		state, at := plan.State{}, o.At
		for range 120 {
			at = at.Add(5 * time.Second)
			seen := randomObservation(rng, settings, at)
			before := fmt.Sprintf("%+v", seen)
			p, next := plan.Next(state, seen)
			again, _ := plan.Next(state, seen)
			if fmt.Sprintf("%+v", p) != fmt.Sprintf("%+v", again) {
				t.Fatalf("seed %d: the same state and observation have two plans\n%v%v", seed, p, again)
			}
			if fmt.Sprintf("%+v", seen) != before {
				t.Fatalf("seed %d: the observation was changed", seed)
			}
			check(t, seed, settings, seen.Workers, p)
			state = next
		}
	}
}

// randomSettings returns up to three models.
func randomSettings(rng *rand.Rand, algorithms []string, e capacity.Engine, change func(*rand.Rand, *plan.Model)) *plan.Settings {
	s := &plan.Settings{}
	if rng.IntN(2) == 0 {
		s.Budget = plan.Budget{MaxGPUs: 1 + rng.IntN(40), MaxWatts: float64(rng.IntN(2) * 20000)}
	}
	for i := range 1 + rng.IntN(3) {
		m := plan.Model{Name: fmt.Sprint("m", i), Algorithm: algorithms[rng.IntN(len(algorithms))], Targets: capacity.Targets{
			TTFT: time.Duration(rng.IntN(2000)) * time.Millisecond, ITL: time.Duration(rng.IntN(40)) * time.Millisecond,
		}}
		if change != nil {
			change(rng, &m)
		}

		m.Tuning.Mode = []string{plan.ModeBoth, plan.ModeThroughput, plan.ModeLoad}[rng.IntN(3)]
		roles := [][]fleet.Role{{fleet.Aggregated}, {fleet.Prefill, fleet.Decode}}[rng.IntN(2)]
		for _, r := range roles {
			c := plan.Configured{
				Role: r, Replicas: rng.IntN(4), Min: rng.IntN(2), Max: 1 + rng.IntN(30), GPUs: rng.IntN(5), Watts: 700, Doubt: 0.3,
				Engine: e, StartUp: time.Duration(rng.IntN(120)) * time.Second,
			}
			if rng.IntN(6) == 0 {
				c.Engine.Timing = nil
			}
			m.Pools = append(m.Pools, c)
		}
		s.Models = append(s.Models, m)
	}
	return s
}

// randomObservation returns demand and workers of some models.
func randomObservation(rng *rand.Rand, s *plan.Settings, at time.Time) plan.Observation {
	o := plan.Observation{At: at, Settings: s, Between: rng.IntN(8) == 0}
	for i := range s.Models {
		m := &s.Models[i]
		if rng.IntN(3) > 0 {
			n := rng.IntN(400)
			o.Demand = append(o.Demand, plan.Demand{
				Model: m.Name, Over: 5 * time.Second, Requests: n, Waiting: rng.IntN(50), WaitingTokens: rng.IntN(100_000),
				Prompt: plan.Lengths{Count: n, Sum: float64(n) * 1500, Squares: float64(n) * 4e6},
				Answer: plan.Lengths{Count: n / 2, Sum: float64(n/2) * 200, Squares: float64(n/2) * 6e4}, CachedTokens: float64(n) * 400,
			})
		}

		for _, c := range m.Pools {
			for k := range rng.IntN(8) {
				w := plan.Worker{
					Name: fmt.Sprint(m.Name, c.Role, k), Model: m.Name, Role: c.Role, State: fleet.State(rng.IntN(fleet.States)),
				}
				if zone := rng.IntN(4); zone > 0 {
					w.Place = fleet.PlaceOf(fleet.Taints(fleet.InZone.Taint(fmt.Sprint(zone)) + ","))
				}
				if rng.IntN(3) > 0 {
					w.Load = &plan.Load{
						Running: rng.IntN(200), Waiting: rng.IntN(20), QueuedTokens: rng.IntN(50_000), KVUsage: rng.Float64(),
						ITL: time.Duration(rng.IntN(50)) * time.Millisecond, StepTokens: float64(rng.IntN(4)), Found: 1e4 * rng.Float64(),
					}
				}
				o.Workers = append(o.Workers, w)
			}
		}
	}
	return o
}

// check compares a plan with the bounds of its settings, and its drains with the workers.
func check(t *testing.T, seed uint64, s *plan.Settings, workers []plan.Worker, p plan.Plan) {
	t.Helper()
	watts := 0.0
	gpus, pools := 0, 0
	for i := range s.Models {
		for _, c := range s.Models[i].Pools {
			pools++
			pool := find(p, s.Models[i].Name, c.Role)
			if pool == nil || pool.Reason == "" || strings.Contains(pool.Reason, "\n") {
				t.Fatalf("seed %d: no plan or no reason for %s %v:\n%v", seed, s.Models[i].Name, c.Role, p)
			}
			gpus += pool.Replicas * max(1, c.GPUs)
			watts += float64(pool.Replicas) * c.Watts
			if pool.Replicas < 0 || pool.Replicas > c.Max {
				t.Fatalf("seed %d: %d replicas, at most %d are allowed", seed, pool.Replicas, c.Max)
			}

			drained, there := 0, 0
			for _, w := range workers {
				if w.Model == pool.Model && w.Role == pool.Role && w.State != fleet.Down {
					there++
				}
			}
			for _, w := range pool.Workers {
				if w.Drain {
					drained++
				}
			}
			excess := max(0, there-pool.Replicas)
			if drained > excess || drained < excess-1 { // one may stay until others are settled
				t.Fatalf("seed %d: %d of %d workers are drained for %d replicas", seed, drained, there, pool.Replicas)
			}
		}
	}

	if len(p.Pools) != pools {
		t.Fatalf("seed %d: %d pools, want %d", seed, len(p.Pools), pools)
	}
	most := float64(s.Budget.MaxGPUs)
	if most == 0 {
		most = math.Inf(1)
	}
	if float64(gpus) > most || s.Budget.MaxWatts > 0 && watts > s.Budget.MaxWatts {
		t.Fatalf("seed %d: %d GPUs and %v W exceed %+v", seed, gpus, watts, s.Budget)
	}
}

// find returns a pool of a plan; nil for none.
func find(p plan.Plan, model string, r fleet.Role) *plan.Pool {
	for i := range p.Pools {
		if p.Pools[i].Model == model && p.Pools[i].Role == r {
			return &p.Pools[i]
		}
	}
	return nil
}
