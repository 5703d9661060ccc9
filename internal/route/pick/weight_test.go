package pick

import (
	"fmt"
	"math"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

// weighted returns idle candidates with these weights.
func weighted(weights ...uint32) []Candidate {
	cs := candidates(make([]float64, len(weights))...)
	for i, w := range weights {
		cs[i].Rank.Worker = &fleet.Worker{Name: fmt.Sprint("w", i), Weight: w}
	}
	return cs
}

// shares returns how often each candidate is chosen. Loads grow with the choices where booked is true.
func shares(t *testing.T, name string, cs []Candidate, n int, booked bool) []float64 {
	p, rng, out := policy(t, name, 0), newSeed(t), make([]float64, len(cs))
	for range n {
		i := p.Choose(cs, &Request{}, rng)
		out[i] += 1 / float64(n)
		if booked {
			cs[i].Facts.Booked.Requests++
		}
	}
	return out
}

// TestPoliciesFollowWeights: the shares of the policies that draw, and of those that compare loads, are those of the weights.
func TestPoliciesFollowWeights(t *testing.T) {
	for _, tt := range []struct {
		policy string
		booked bool
		off    float64
	}{{Random, false, 0.01}, {RoundRobin, false, 0.0001}, {LeastLoaded, true, 0.0001}, {PowerOfTwo, true, 0.02}} {
		weights := []uint32{300, 100, 50, 150}
		for i, got := range shares(t, tt.policy, weighted(weights...), 60_000, tt.booked) {
			if want := float64(weights[i]) / 600; math.Abs(got-want) > tt.off {
				t.Errorf("%s: candidate %d of weight %d has share %.4f, want %.4f", tt.policy, i, weights[i], got, want)
			}
		}
	}
}

// TestPowerOfTwoDrawsByWeight: without load, the heavier of two that are drawn is taken, and a light one is hardly ever drawn.
func TestPowerOfTwoDrawsByWeight(t *testing.T) {
	got := shares(t, PowerOfTwo, weighted(1000, 1000, 1), 10_000, false)
	if got[2] > 0 || math.Abs(got[0]-got[1]) > 0.05 {
		t.Errorf("shares %v", got)
	}
}

// TestEqualWeightsChangeNothing: whatever the weight, equal ones have the choices of candidates without weights.
func TestEqualWeightsChangeNothing(t *testing.T) {
	for _, name := range Names() {
		a, b := policy(t, name, 0), policy(t, name, 0)
		plain, even := candidates(2, 1, 1, 3, 1), weighted(70, 70, 70, 70, 70)
		one, two := newRand(7), newRand(7)
		for i := range 1000 {
			for j := range even {
				plain[j].Rank.Worker = &fleet.Worker{Name: even[j].Rank.Worker.Name}
				even[j].Total = plain[j].Total
			}
			asked := &Request{Session: fmt.Sprint(i % 9)}
			x, y := a.Choose(plain, asked, one), b.Choose(even, asked, two)
			if x != y {
				t.Fatalf("%s, choice %d: %d without weights, %d with equal ones", name, i, x, y)
			}
			plain[x].Facts.Booked.Requests++
			even[y].Facts.Booked.Requests++
		}
	}
}

// TestRoundRobinIsSmooth: the turns of a heavy candidate are not in a row.
func TestRoundRobinIsSmooth(t *testing.T) {
	p, cs, got := policy(t, RoundRobin, 0), weighted(5, 1, 1), ""
	for range 14 {
		got += fmt.Sprint(p.Choose(cs, &Request{}, nil))
	}
	if got != "00102000010200" {
		t.Errorf("turns %s", got)
	}
	// Fewer candidates share the turns of those that are missing, by their weights.
	seen := [2]int{}
	for range 600 {
		seen[p.Choose(cs[:2], &Request{}, nil)]++
	}
	if seen[0] < 498 || seen[0] > 502 {
		t.Errorf("turns %v of two candidates", seen)
	}
}

// TestWeightsAllocateNothing: policies run in every decision.
func TestWeightsAllocateNothing(t *testing.T) {
	rng := newRand(1)
	for _, name := range []string{RoundRobin, Random, PowerOfTwo, LeastLoaded} {
		p, cs, asked := policy(t, name, 0), weighted(3, 1, 2), &Request{}
		p.Choose(cs, asked, rng)
		if n := testing.AllocsPerRun(100, func() { p.Choose(cs, asked, rng) }); n != 0 {
			t.Errorf("%s allocates %g times", name, n)
		}
	}
}

// BenchmarkWeighted: what do the weights of a thousand ranks cost a policy?
func BenchmarkWeighted(b *testing.B) {
	weights := make([]uint32, 1000)
	for i := range weights {
		weights[i] = uint32(1 + i%3)
	}
	cs, rng, asked := weighted(weights...), newRand(1), &Request{}
	for _, name := range []string{RoundRobin, Random, PowerOfTwo, LeastLoaded} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			p := policy(b, name, 0)
			for b.Loop() {
				p.Choose(cs, asked, rng)
			}
		})
	}
}
