package sim

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// TestRunningAheadChangesNothing plays arrivals twice, with a row of quiet passes at once and with each pass by itself. The
// results, and what planners see, are the same to the byte.
func TestRunningAheadChangesNothing(t *testing.T) {
	for name, cfg := range map[string]Config{
		"plain":        {},
		"late":         {EventLag: 50 * time.Millisecond, SignalLag: 10 * time.Millisecond, Replicas: 2},
		"first tokens": {FirstTokens: true, Engine: engine.Config{MaxNumSeqs: 3}},
		"noise":        {Noise: Noise{Sigma: 0.3, Stalls: true}, ReportEvery: 100 * time.Millisecond},
		"small memory": {Workers: 2, Engine: engine.Config{Blocks: 90}},
		"no reports":   {ReportEvery: -1},
	} {
		for seed := range uint64(4) {
			cfg.Seed = seed
			cfg.Engine.BlockSize = 16 << (seed % 3)
			list := sessions(30, 4, rand.New(rand.NewPCG(seed, 9)))
			ahead, passes := playPasses(t, cfg, list, true)
			alone, more := playPasses(t, cfg, list, false)
			if ahead != alone {
				t.Errorf("%s, seed %d:\n%s, and pass by pass\n%s", name, seed, ahead, alone)
			}
			if passes >= more {
				t.Errorf("%s, seed %d: %d events, and %d pass by pass", name, seed, passes, more)
			}
		}
	}
}

// playPasses returns the result and all observations as JSON, and how many events there were.
func playPasses(t *testing.T, cfg Config, list []trace.Arrival, ahead bool) (result string, events uint64) {
	t.Helper()
	var seen []plan.Observation
	cfg.Planning = &Planning{Every: 700 * time.Millisecond, StartUp: time.Second, Next: func(o plan.Observation) plan.Plan {
		seen = append(seen, o)
		return plan.Plan{Pools: []plan.Pool{{Model: Model, Role: fleet.Aggregated, Replicas: 1 + len(seen)%5}}}
	}}
	r, err := newRun(cfg.withDefaults(), trace.List(list))
	if err != nil {
		t.Fatal(err)
	}
	r.runsAhead = ahead
	if err := r.play(); err != nil {
		t.Fatal(err)
	}

	data, err := json.Marshal([]any{r.result(), seen})
	if err != nil {
		t.Fatal(err)
	}
	return string(data), r.agenda.made
}
