package plan

import (
	"math"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// Of two engines one is too slow, with a quarter of the requests: a quarter of the streams that end count as missed, and not all or none.
// An engine's time between tokens is its mean over as long as an answer takes, so that one slow interval among many is not a missed target.
func TestSlowShare(t *testing.T) {
	const ms = time.Millisecond
	model := &Model{Name: "m", Targets: capacity.Targets{ITL: 100 * ms}}
	memory := &poolMemory{}
	state := shape{answers: moments{weight: 1, sum: 600, squares: 360000}} // 600 tokens take a minute at the target
	share := func(gaps ...time.Duration) float64 {
		p := &pool{model: model, configured: &Configured{Role: fleet.Decode}, memory: memory}
		for i, gap := range gaps {
			running := 30
			if i > 0 {
				running = 10
			}
			p.workers = append(p.workers, &Worker{
				Name: string(rune('a' + i)), State: fleet.Ready, Load: &Load{Running: running, ITL: gap},
			})
		}
		p.learnStarts(time.Unix(1000, 0))
		p.learnGaps(&state, 5*time.Second)
		return p.slowShare()
	}

	for range 30 {
		share(50*ms, 150*ms)
	}
	for _, c := range []struct {
		name string
		gaps []time.Duration
		want float64
	}{
		{"one engine is too slow", []time.Duration{50 * ms, 150 * ms}, 0.25},
		{"the other one stands still for one interval", []time.Duration{400 * ms, 150 * ms}, 0.25},
		{"unknown times count as before", []time.Duration{0, 0}, 0.25},
	} {
		if got := share(c.gaps...); math.Abs(got-c.want) > 0.02 {
			t.Errorf("%s: %.2f, want %.2f", c.name, got, c.want)
		}
	}
	for range 60 {
		share(100*ms, 100*ms)
	}
	if got := share(100*ms, 100*ms); math.Abs(got-0.5) > 0.05 {
		t.Errorf("with the target as the mean %.2f, want half of the requests", got)
	}
}

// While the rate is above the planned one, most requests may miss their targets: a target for 99 % of the requests plans for a higher one.
func TestHeadroomOfStrictTargets(t *testing.T) {
	for quantile, want := range map[float64]float64{0: 0.6, 0.5: 0.6, 0.9: 0.6, 0.95: 0.8, 0.99: 0.96} {
		p := &pool{model: &Model{Targets: capacity.Targets{Quantile: quantile}}, memory: &poolMemory{}}
		if got := p.headroom(); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v: headroom %v, want %v", quantile, got, want)
		}
	}
}

// The misses of the first start-up time do not make a pool careful: the plan asks for workers at once, and none can be ready.
func TestFirstMissesDoNotCount(t *testing.T) {
	p := &pool{
		model: &Model{Targets: capacity.Targets{TTFT: time.Second}}, memory: &poolMemory{},
		configured: &Configured{Role: fleet.Prefill, StartUp: time.Minute},
	}
	begin := time.Unix(1000, 0)
	for after := time.Duration(0); after < 2*time.Minute; after += 5 * time.Second {
		p.observeMisses(&Observation{At: begin.Add(after)}, &Demand{Over: 5 * time.Second, Streams: 100, Late: 50}, &shape{})
		if careful := p.strain() > 0; careful != (after >= time.Minute) {
			t.Errorf("after %v: careful %v", after, careful)
		}
	}
}
