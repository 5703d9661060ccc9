package sim

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

// react plans 6 engines for every 5 requests that run or wait, from 8 to 20.
func react(o plan.Observation) plan.Plan {
	requests := o.Demand[0].Waiting
	for _, w := range o.Workers {
		if w.Load != nil {
			requests += w.Load.Running + w.Load.Waiting
		}
	}
	return plan.Plan{Pools: []plan.Pool{{Model: Model, Role: fleet.Aggregated, Replicas: min(max(8, requests*6/5), 20)}}}
}

// playDay plays the hour of Azure's conversations so many times, with a daily curve and a planner that reacts to load.
func playDay(t testing.TB, times int) *Result {
	arrivals, _ := trace.Tile(trace.Tiling{Times: times, Swing: 0.6, Seed: 1}, trace.Azure(public(t, tracefiles.Azure), false))
	r, err := Run(Config{
		Workers: 8, Engine: engine.Config{BlockSize: 64}, Planning: &Planning{StartUp: time.Minute, Next: react, Max: 20}, Seed: 1,
	}, arrivals)
	if err != nil || r.Completed != r.Requests || r.Errors > 0 {
		t.Fatal(r, err)
	}
	return r
}

// BenchmarkDay measures how long a day takes: about 465,000 requests with 98 million tokens of answers, 8 to 20 engines that are
// planned every 5 s. The bar is 30 s on one core. With -short it is an hour.
//
//	GOMAXPROCS=1 go test ./internal/sim -run '^$' -bench Day -benchtime 1x
func BenchmarkDay(b *testing.B) {
	times := 24
	if testing.Short() {
		times = 1
	}
	for b.Loop() {
		r := playDay(b, times)
		b.ReportMetric(float64(r.Requests), "requests")
		b.ReportMetric(r.GPUHours, "GPU-hours")
	}
}

// TestDayRepeatsItself: an hour of the day above has the same bytes twice.
func TestDayRepeatsItself(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	first, err := json.Marshal(playDay(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	again, _ := json.Marshal(playDay(t, 1))
	if string(first) != string(again) {
		t.Errorf("%s, then\n%s", first, again)
	}
}
