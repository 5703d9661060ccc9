package plan

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/forecast"
)

// Of two engines one is too slow, with a quarter of the requests: a quarter of the streams that end count as missed, and not all or none.
// An engine's time between tokens is its mean over as long as an answer takes, so that one slow interval among many is not a missed target.
func TestSlowShare(t *testing.T) {
	const ms = time.Millisecond
	model := &Model{Name: "m", Targets: capacity.Targets{ITL: 100 * ms}}
	memory := &poolMemory{}
	state := memoryOf600()
	share := func(gaps ...time.Duration) float64 {
		p := &pool{model: model, configured: &Configured{Role: fleet.Decode}, memory: memory, engine: engineOf(10 * ms)}
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
		p.learnGaps(&state.shape, 5*time.Second)
		return p.slowShare(state, &Demand{Over: 5 * time.Second})
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

// memoryOf600 has answers of 600 tokens, which take a minute at 100 ms each.
func memoryOf600() *memory {
	return &memory{shape: shape{answers: moments{weight: 1, sum: 600, squares: 360000}}}
}

// engineOf returns an engine whose steps take as long, and whose prompts take 20 times as long.
func engineOf(step time.Duration) capacity.Engine {
	return capacity.Engine{Timing: perfmodel.Fixed{PrefillTime: 20 * step, DecodeTime: step}}
}

// The share of slow streams is the share that routers have measured. The estimate stands for streams whose tokens they have not counted.
func TestSlow(t *testing.T) {
	const ms = time.Millisecond
	p := &pool{
		model: &Model{Targets: capacity.Targets{ITL: 100 * ms}}, configured: &Configured{Role: fleet.Decode}, engine: engineOf(10 * ms),
		memory:  &poolMemory{seen: []seenWorker{{name: "a", gap: time.Second}}},
		workers: []*Worker{{Name: "a", State: fleet.Ready, Load: &Load{Running: 1}}},
	}
	for _, c := range []struct {
		timed, slow int
		want        float64
	}{{0, 0, 1}, {10, 1, 0.1}, {5, 1, 0.6}} {
		d := &Demand{Over: 5 * time.Second, Streams: 10, Timed: c.timed, Slow: c.slow}
		if got := p.slow(memoryOf600(), d); math.Abs(got-c.want) > 0.01 {
			t.Errorf("%d of %d streams are slow: %.2f, want %.2f", c.slow, c.timed, got, c.want)
		}
	}
}

// On an engine that also computes prompts, one prompt more or less is much of the time of a short answer: many of the requests miss a target
// that their mean keeps, and more where arrivals come in bursts.
func TestSlowShareOfShortAnswers(t *testing.T) {
	const ms = time.Millisecond
	share := func(answer float64, bursts arrivals) float64 {
		p := &pool{
			model: &Model{Name: "m", Targets: capacity.Targets{ITL: 25 * ms}}, engine: engineOf(10 * ms),
			configured: &Configured{}, memory: &poolMemory{},
			workers: []*Worker{{Name: "a", State: fleet.Ready, Load: &Load{Running: 4, ITL: 18 * ms}}},
		}
		p.learnStarts(time.Unix(1000, 0))
		m := &memory{arrivals: bursts, shape: shape{
			prompts: moments{weight: 1, sum: 500, squares: 250000}, answers: moments{weight: 1, sum: answer, squares: answer * answer},
		}}
		p.learnGaps(&m.shape, 5*time.Second)
		return p.slowShare(m, &Demand{Requests: 10, Over: 5 * time.Second})
	}

	long, short := share(1000, arrivals{}), share(20, arrivals{})
	bursts := share(20, arrivals{squares: 1000, sum: 100})
	if long > 0.15 || short < 0.3 || bursts < short+0.05 {
		t.Errorf("of long answers %.2f, of short ones %.2f, with bursts %.2f", long, short, bursts)
	}
}

// Numbers of requests that differ as much as independent ones have a dispersion of 1.
func TestDispersion(t *testing.T) {
	for want, numbers := range map[float64][]int{1: {12, 8, 12, 8, 11, 9, 13, 7}, 10: {20, 0, 20, 0, 20, 0, 20, 0}} {
		a := arrivals{last: 10}
		for range 20 {
			for _, n := range numbers {
				a = a.after(n, 5*time.Second)
			}
		}
		if got := a.dispersion(); got < 0.8*want || got > 2*want+0.1 {
			t.Errorf("%v: %.2f, want about %v", numbers, got, want)
		}
	}
}

// Misses while there are fewer workers than the rate needs make the pool careful. Others do not: they are of bursts.
func TestStrain(t *testing.T) {
	for present, want := range map[int]float64{1: 0, 2: mostStrain} {
		p := &pool{
			model: &Model{Targets: capacity.Targets{TTFT: time.Second}}, memory: &poolMemory{}, configured: &Configured{},
			workers: []*Worker{{State: fleet.Ready}}, present: present,
		}
		for after := time.Duration(0); after < 5*time.Minute; after += 5 * time.Second {
			p.observeMisses(&Observation{At: time.Unix(1000, 0).Add(after)}, &Demand{Over: 5 * time.Second, Streams: 100, Late: 50}, &memory{})
		}
		if got := p.strain(); got != want {
			t.Errorf("with 1 of %d workers: a strain of %v, want %v", present, got, want)
		}
	}
}

// A pool learns the dispersion with which the capacity model expects as many misses as there are, and needs more workers for it. It learns
// none from misses of targets that even an idle engine misses: more workers would not help.
func TestBursts(t *testing.T) {
	const rate, streams = 50.0, 250
	shape := capacity.Shape{Prompt: 1000, Answer: 100}
	m := &memory{rate: forecast.Warm(newForecaster(&Model{}, "constant"), []float64{rate, rate, rate})}
	m.shape = shape10k(shape)
	learned := func(itl time.Duration, dispersion float64) (*pool, float64) {
		p := &pool{
			model:      &Model{Targets: capacity.Targets{ITL: itl}},
			configured: &Configured{Role: fleet.Decode, Max: 100}, engine: slowerWhenFull(), memory: &poolMemory{ready: 8},
		}
		came := shape
		came.Bursts = dispersion
		share := p.engine.Missing(fleet.Decode, p.memory.ready, rate, came, p.targets())
		for range 100 {
			p.observeBursts(share*streams, &Demand{Over: 5 * time.Second, Streams: streams}, m)
		}
		return p, dispersionOf([]*pool{p})
	}

	needs := map[float64]int{}
	for _, want := range []float64{1, 3, 20} {
		p, got := learned(15*time.Millisecond, want)
		if got < 0.8*want || got > 1.3*want {
			t.Errorf("a dispersion of %.1f, want %v", got, want)
		}
		shape.Bursts = got
		needs[want] = p.needOfRate(rate, &demand{shape: shape}).Replicas
	}
	if needs[20] <= needs[1] {
		t.Errorf("by dispersion: %v workers", needs)
	}
	if _, got := learned(2*time.Millisecond, 3); got != 1 {
		t.Errorf("targets out of reach: a dispersion of %v, want 1", got)
	}
}

// The bursts that the misses of one pool show come to all pools of the model.
func TestBurstsOfAllPools(t *testing.T) {
	model := &Model{Targets: capacity.Targets{TTFT: time.Second, ITL: 15 * time.Millisecond}}
	m := &memory{rate: newForecaster(model, "constant"), pools: []poolMemory{
		{role: fleet.Prefill, bursts: bursts{missed: 1000}}, {role: fleet.Decode},
	}}
	var pools []*pool
	for i := range m.pools {
		pools = append(pools, &pool{
			model: model, memory: &m.pools[i], configured: &Configured{Role: m.pools[i].role, Max: 100}, engine: slowerWhenFull(),
		})
	}
	for range 10 {
		m.observeDemand(&Observation{At: time.Unix(1000, 0)}, &Demand{Over: time.Second, Requests: 50})
	}
	m.planSLA(&Observation{At: time.Unix(1000, 0)}, nil, pools)
	for _, p := range pools {
		if !strings.Contains(p.reason, "in bursts of 64.0 times the usual variance") {
			t.Errorf("%v: %s", p.configured.Role, p.reason)
		}
	}
}

// shape10k returns the lengths of many requests of a shape, all alike.
func shape10k(s capacity.Shape) shape {
	of := func(mean float64) moments { return moments{1e4, 1e4 * mean, 1e4 * mean * mean} }
	return shape{prompts: of(s.Prompt), answers: of(s.Answer)}
}

// slowerWhenFull returns an engine whose steps take longer with more requests.
func slowerWhenFull() capacity.Engine { return capacity.Engine{Timing: crowded{}} }

// crowded has steps of 5 ms, and 1 ms more for each request.
type crowded struct{ perfmodel.Fixed }

func (crowded) Decode(d perfmodel.Decode) time.Duration {
	return time.Duration(5+d.Requests) * time.Millisecond
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

// The misses of the first start-up time do not make a pool careful: the plan asks for workers at once, and none can be ready. Requests that
// came in that time end after it.
func TestFirstMissesDoNotCount(t *testing.T) {
	p := &pool{
		model: &Model{Targets: capacity.Targets{TTFT: time.Second}}, memory: &poolMemory{},
		configured: &Configured{Role: fleet.Prefill, StartUp: time.Minute}, present: 1,
	}
	begin := time.Unix(1000, 0)
	for after := time.Duration(0); after < 3*time.Minute; after += 5 * time.Second {
		p.observeMisses(&Observation{At: begin.Add(after)}, &Demand{Over: 5 * time.Second, Streams: 100, Late: 50}, &memory{})
		if careful := p.strain() > 0; careful != (after >= time.Minute+enoughFor) {
			t.Errorf("after %v: careful %v", after, careful)
		}
	}
}

// contextTiming has steps that take a microsecond for each token of the contexts.
type contextTiming struct{ perfmodel.Fixed }

func (contextTiming) Decode(d perfmodel.Decode) time.Duration {
	return time.Duration(d.Context) * time.Microsecond
}

// The contexts of an engine whose cache is of unknown size follow from its requests.
func TestStepOfAnUnknownCache(t *testing.T) {
	p := &pool{}
	w := &Worker{Load: &Load{Running: 2, KVUsage: 0.5}}
	for size, want := range map[int]time.Duration{0: 2100 * time.Microsecond, 8000: 4000 * time.Microsecond} {
		p.engine.KVTokens = size
		if got := p.step(contextTiming{}, capacity.Shape{Prompt: 1000, Answer: 100}, w); got != want {
			t.Errorf("a cache of %d tokens: %v, want %v", size, got, want)
		}
	}
}

// Where prompts come one by one, their passes explain a longer time between tokens, and not slower steps.
func TestStepsBesideLonePrompts(t *testing.T) {
	const ms = time.Millisecond
	c := &Configured{Engine: capacity.Engine{Timing: perfmodel.Fixed{PrefillTime: 100 * ms, DecodeTime: 10 * ms}}}
	p := &pool{
		configured: c, engine: c.Engine, memory: &poolMemory{decode: perfmodel.NewFactor(1)},
		workers: []*Worker{{State: fleet.Ready, Load: &Load{Running: 4, ITL: 12500 * time.Microsecond}}},
	}
	for range 100 {
		p.learnSteps(capacity.Shape{Prompt: 100, Answer: 100}, 2)
	}
	if got := p.memory.decode.Value(); math.Abs(got-1) > 0.05 {
		t.Errorf("steps take %.2f times as long, want 1: prompts take a fifth of the time", got)
	}
}
