package planner

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// standstill is a part of a cluster that stands still for a time, under a steady load of one router that reports every second, and
// six engines.
type standstill struct {
	name string
	// leader means that the planner makes no plan and takes no report, and takes all of them afterwards. The bus delivers no report, and
	// keeps or loses them. The router decides about no request, and about all that have waited in the second afterwards.
	leader, busKeeps, busLoses, router bool
}

var standstills = []standstill{
	{name: "leader", leader: true},
	{name: "bus that keeps messages", busKeeps: true},
	{name: "bus that loses messages", busLoses: true},
	{name: "router", router: true},
}

// The seconds of a run, and the second in which a part begins to stand still, which is not the second of a plan.
const (
	standstillRun   = 420
	standstillBegin = 183
)

// TestPlansThroughStandstills: while a part stands still for 2 to 20 s, and afterwards, no plan asks for more than one worker above the most
// that the same load needs without it.
func TestPlansThroughStandstills(t *testing.T) {
	for seed := range uint64(3) {
		need := 0
		for _, n := range plansThrough(t, standstill{}, 0, seed) {
			need = max(need, n)
		}
		if need < 2 || need > 8 {
			t.Fatalf("seed %d: the load needs %d workers", seed, need)
		}
		for _, s := range standstills {
			for _, length := range []int{2, 5, 10, 20} {
				for at, n := range plansThrough(t, s, length, seed) {
					if n > need+1 {
						t.Errorf("seed %d, %s for %d s: the plan at second %d asks for %d workers, and %d are needed", seed, s.name, length, at, n, need)
					}
				}
			}
		}
	}
}

// plansThrough returns the planned workers by second, from the second minute on.
func plansThrough(t *testing.T, s standstill, length int, seed uint64) map[int]int {
	t.Helper()
	plans := map[int]int{}
	synctest.Test(t, func(t *testing.T) {
		const workers, rate, prompt, answer, gap = 6, 60, 2000, 200, 20 * time.Millisecond
		f := fleet.New(fleet.Hooks{})
		for i := range workers {
			w := fleet.Worker{Name: fmt.Sprint("w", i), Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}
			if _, err := f.Put(w); err != nil {
				t.Fatal(err)
			}
		}
		p := New(Config{
			Fleet: f, Bus: &press{back: make(chan struct{})}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
			Settings: &plan.Settings{Models: []plan.Model{{
				Name: "m", Algorithm: plan.AlgorithmSLA, Targets: capacity.Targets{TTFT: time.Second, ITL: 50 * time.Millisecond},
				Pools: []plan.Configured{{
					Replicas: workers, Min: 1, GPUs: 1, StartUp: 30 * time.Second,
					Engine: capacity.Engine{Timing: perfmodel.Polynomial{}, KVTokens: 1 << 20},
				}},
			}}},
		})

		rng := rand.New(rand.NewPCG(seed, 1))
		var held []func()
		var requests, ended, waiting uint64
		var gaps [workers]uint64
		for at := 1; at < standstillRun; at++ {
			time.Sleep(time.Second)
			stands := at >= standstillBegin && at < standstillBegin+length
			waiting += uint64(rate/2 + rng.IntN(rate+1))
			decided := waiting
			if s.router && stands {
				decided = 0
			}
			waiting -= decided
			requests += decided
			ended += decided

			var reports []func()
			if !s.router || !stands {
				d := &bus.Demand{Replica: "r", Up: time.Duration(at) * time.Second, Models: []bus.ModelDemand{{
					Model: "m", Requests: requests, PromptTokens: prompt * requests, PromptSquares: prompt * prompt * float64(requests),
					Ended: ended, ResponseBytes: 4 * answer * ended, ResponseSquares: 16 * answer * answer * float64(ended), Streams: ended,
				}}}
				reports = append(reports, func() { p.applyDemand(d) })
			}
			for i := range workers {
				gaps[i] += decided * (answer - 1) / workers
				l := bus.Load{
					Worker: fmt.Sprint("w", i), Running: int(decided) * 4 / workers, KVUsage: 0.1, Gaps: gaps[i],
					GapTime: time.Duration(gaps[i]) * gap,
				}
				reports = append(reports, func() { p.applyLoad(l) })
			}

			switch {
			case stands && (s.leader || s.busKeeps):
				held = append(held, reports...)
			case stands && s.busLoses:
			default:
				for _, report := range append(held, reports...) {
					report()
				}
				held = nil
			}
			// A ticker keeps one tick for a planner that stands still.
			late := s.leader && length > 0 && at == standstillBegin+length
			if at%int(plan.DefaultEvery.Seconds()) != 0 && !late || s.leader && stands {
				continue
			}
			p.once(context.Background(), false)
			if at > 120 {
				plans[at] = p.Current().Pools[0].Replicas
			}
		}
	})
	return plans
}
