package plan

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// The dispersion of requests that come one by one is 1, and of requests that come eight at a time 8. A rate that jumps, rises or is low is
// no burst.
func TestDispersion(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	// groups returns the number of groups that come in a step.
	groups := func(mean float64) (n float64) {
		for at := rng.ExpFloat64(); at < mean; at += rng.ExpFloat64() {
			n++
		}
		return n
	}
	for _, c := range []struct {
		name      string
		requests  func(step int) float64
		low, high float64
	}{
		{"one by one", func(int) float64 { return groups(50) }, 1, 1.25},
		{"evenly", func(int) float64 { return 50 }, 1, 1},
		{"eight at a time", func(int) float64 { return 8 * groups(6) }, 6, 9.5},
		{"eight at a time, seldom", func(int) float64 { return 8 * groups(0.3) }, 6, 9.5},
		{"seldom", func(int) float64 { return groups(0.2) }, 1, 1.25},
		{"a jump just now", func(step int) float64 {
			if step < 200 {
				return groups(5)
			}
			return groups(150)
		}, 1, 1.3},
		{"a rise", func(step int) float64 { return groups(5 + float64(step)) }, 1, 1.3},
	} {
		var b bursts
		for step := range 202 {
			b = b.after(c.requests(step), 5*time.Second)
		}
		if d := b.dispersion(); d < c.low || d > c.high {
			t.Errorf("%s: dispersion %.2f, want %v to %v", c.name, d, c.low, c.high)
		}
	}

	var b bursts
	for range 50 {
		b = b.after(10, 5*time.Second).interrupted().after(1000, 5*time.Second).interrupted()
	}
	if d := b.dispersion(); d != 1 {
		t.Errorf("steps between which something is unknown are compared: dispersion %.2f", d)
	}
	for range 1000 {
		b = b.after(0, 5*time.Second).after(1e9, 5*time.Second)
	}
	if d := b.dispersion(); d != mostDispersion || math.IsNaN(d) {
		t.Errorf("dispersion %v, want at most %v", d, mostDispersion)
	}
}

// Requests that come sixteen at a time need more workers than as many that come one by one.
func TestBurstsNeedMoreWorkers(t *testing.T) {
	settings := &Settings{Models: []Model{{
		Name: "m", Algorithm: AlgorithmSLA, Targets: capacity.Targets{TTFT: 500 * time.Millisecond, ITL: 30 * time.Millisecond},
		Pools: []Configured{{Replicas: 2, Min: 1, Engine: capacity.Engine{Timing: perfmodel.Polynomial{}, KVTokens: 1 << 20}}},
	}}}
	// mean returns the mean number of workers of plans in which groups of so many requests come.
	mean := func(group int) (mean float64) {
		rng := rand.New(rand.NewPCG(1, 1))
		var s State
		at := time.Unix(1000, 0)
		const steps, warm, perStep = 300, 100, 100
		for step := range steps {
			n := 0
			for clock := rng.ExpFloat64(); clock < perStep/float64(group); clock += rng.ExpFloat64() {
				n += group
			}
			lengths := func(tokens float64) Lengths {
				return Lengths{Count: n, Sum: tokens * float64(n), Squares: tokens * tokens * float64(n)}
			}
			at = at.Add(DefaultEvery)
			var p Plan
			p, s = Next(s, Observation{At: at, Settings: settings, Demand: []Demand{{
				Model: "m", Over: DefaultEvery, Requests: n, Prompt: lengths(2000), Answer: lengths(200),
			}}})
			if step >= warm {
				mean += float64(p.Pools[0].Replicas) / (steps - warm)
			}
		}
		return mean
	}
	if one, many := mean(1), mean(16); many < one+1 {
		t.Errorf("%.2f workers for requests that come one by one, and %.2f for bursts", one, many)
	}
}
