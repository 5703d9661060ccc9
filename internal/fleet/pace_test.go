package fleet_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// prefill is the estimated time of one prefill in these tests.
const prefill = 100 * time.Millisecond

// lognormal is a factor with the mean 1.
func lognormal(rng *rand.Rand, sigma float64) float64 {
	return math.Exp(sigma*rng.NormFloat64() - sigma*sigma/2)
}

// TestPaceIgnoresFirstPrefills ends prefills of a new engine. The first ones are marked, and later ones are not.
func TestPaceIgnoresFirstPrefills(t *testing.T) {
	var l fleet.Load
	now, early := time.Unix(1000, 0), 0
	for range 20 {
		if l.PrefillObserved(now, now.Add(1500*time.Millisecond)).Early {
			early++
		}
		now = now.Add(2 * time.Second)
	}
	if got := l.PaceStats(now); early != 8 || got.Ignored != 8 || got.Pace != 1 {
		t.Errorf("%d are early: %+v", early, got)
	}
}

// TestPaceFindsSlowRanks observes a rank that is half as fast, under noise: it is recognised within some tens of
// prefills. Periods of several passes, in which noise evens out, need fewer observations.
func TestPaceFindsSlowRanks(t *testing.T) {
	for _, c := range []struct {
		sigma  float64
		passes float64
		within int
	}{{0, 1, 4}, {0.1, 1, 6}, {0.3, 1, 15}, {0.6, 1, 40}, {0, 2, 3}, {0, 100, 2}, {0.15, 4, 3}, {0.3, 4, 6}} {
		for seed := range uint64(20) {
			rng, now, found := rand.New(rand.NewPCG(seed, 1)), time.Unix(1000, 0), 0
			var l fleet.Load
			for found = 1; found < 100; found++ {
				now = now.Add(time.Second)
				l.ObservePace(c.passes, time.Duration(2*lognormal(rng, c.sigma)*float64(prefill)), prefill, now)
				if l.View(now, 0).Pace > 1.3 {
					break
				}
			}
			if found > c.within {
				t.Errorf("σ %v, %g passes, seed %d: recognised after %d observations, want %d: %+v", c.sigma, c.passes, seed, found, c.within, l.PaceStats(now))
			}
		}
	}
}

// TestPaceOfEqualRanksIsOne observes a rank that is like the others, under noise: in nearly all of the time its
// pace is 1.
func TestPaceOfEqualRanksIsOne(t *testing.T) {
	for _, sigma := range []float64{0.1, 0.3, 0.6} {
		other, all := 0, 0
		for seed := range uint64(50) {
			rng, now := rand.New(rand.NewPCG(seed, 2)), time.Unix(1000, 0)
			var l fleet.Load
			for range 200 {
				now = now.Add(time.Second)
				l.ObservePace(1, time.Duration(lognormal(rng, sigma)*float64(prefill)), prefill, now)
				all++
				if l.View(now, 0).Pace != 1 {
					other++
				}
			}
		}
		if share := float64(other) / float64(all); share > 0.02 {
			t.Errorf("σ %v: the pace is not 1 in %.3f of the time", sigma, share)
		}
	}
}

// TestPaceDecays avoids a rank after prefills that were eight times too slow, few or many. With time its pace
// must fall to 1, at most as long after as four times the time constant.
func TestPaceDecays(t *testing.T) {
	for _, n := range []int{3, 10, 500} {
		var l fleet.Load
		now := time.Unix(1000, 0)
		for range n {
			now = now.Add(200 * time.Millisecond)
			l.ObservePace(1, 8*prefill, prefill, now)
		}
		before := l.View(now, 0).Pace
		if before < 2 {
			t.Errorf("%d slow prefills: pace %v", n, before)
		}
		for s := 1; s <= 240; s++ {
			after := l.View(now.Add(time.Duration(s)*time.Second), 0).Pace
			if after > before || after < 1 {
				t.Fatalf("%d slow prefills, after %d s: pace %v, %v before", n, s, after, before)
			}
			before = after
		}
		if got := l.PaceStats(now.Add(4 * time.Minute)); got.Pace != 1 {
			t.Errorf("%d slow prefills, after 4 min: %+v", n, got)
		}
	}
}

// TestPaceForgets makes a slow rank fast again: its pace is 1 after some tens of prefills.
func TestPaceForgets(t *testing.T) {
	var l fleet.Load
	now := time.Unix(1000, 0)
	for i := range 150 {
		took := prefill
		if i < 50 {
			took = 3 * prefill
		}
		now = now.Add(time.Second)
		l.ObservePace(1, took, prefill, now)
	}
	if p := l.View(now, 0).Pace; p != 1 {
		t.Errorf("pace %v: %+v", p, l.PaceStats(now))
	}
}

// TestPaceBoundsStalls stalls a rank in one of thirty prefills. It must not seem slow for more than a small part
// of the time.
func TestPaceBoundsStalls(t *testing.T) {
	var l fleet.Load
	now, slow := time.Unix(1000, 0), 0
	for i := range 600 {
		took := prefill
		if i%30 == 29 {
			took += 1500 * time.Millisecond
		}
		now = now.Add(time.Second)
		l.ObservePace(1, took, prefill, now)
		if l.View(now, 0).Pace != 1 {
			slow++
		}
	}
	if slow > 30 {
		t.Errorf("slow after %d of 600 prefills", slow)
	}
}
