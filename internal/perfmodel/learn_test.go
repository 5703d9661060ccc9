package perfmodel

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// A line is found from noisy observations, whatever the prior was, and has a measure of its error.
func TestLearned(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, truth := range []Line{{Base: 10 * time.Millisecond, Token: 2_000}, {Base: 0, Token: 50_000},
		{Base: 200 * time.Millisecond, Token: 100_000}} {
		l := NewLearned(DefaultSpeed().Prefill, 500, 8_000)
		if l.Line() != DefaultSpeed().Prefill {
			t.Errorf("%s before anything was seen", l.Line())
		}
		for range 2_000 {
			tokens := 1 + rng.IntN(12_000)
			l.Observe(tokens, time.Duration(float64(truth.Prefill(tokens))*(0.7+0.6*rng.Float64())))
		}
		got := l.Line()
		for _, tokens := range []int{500, 4_000, 12_000} {
			if a, b := got.Prefill(tokens).Seconds(), truth.Prefill(tokens).Seconds(); math.Abs(a/b-1) > 0.15 {
				t.Errorf("%s: %d tokens in %.3f s, want %.3f", got, tokens, a, b)
			}
		}
		if got.Observed != 2_000 || got.Error < 0.1 || got.Error > 0.25 {
			t.Errorf("%s of %s", got, truth)
		}
	}
}

// It follows an engine that changes, and is not ruled by one stall or by nonsense.
func TestLearnedFollowsAndForgets(t *testing.T) {
	l := NewLearned(DefaultSpeed().Prefill, 500, 8_000)
	fast, slow := Line{Token: 1_000}, Line{Token: 30_000}
	for i := range 1_000 {
		l.Observe(1_000+i*5, fast.Prefill(1_000+i*5))
	}
	before := l.Line().Prefill(4_000)
	l.Observe(4_000, time.Hour)
	l.Observe(0, time.Second)
	l.Observe(-5, time.Second)
	l.Observe(5, -time.Second)
	if after := l.Line().Prefill(4_000); after > 3*before/2 {
		t.Errorf("%s after one stall, %s before", after, before)
	}
	for i := range 1_000 {
		l.Observe(1_000+i*5, slow.Prefill(1_000+i*5))
	}
	if got, want := l.Line().Prefill(4_000).Seconds(), slow.Prefill(4_000).Seconds(); math.Abs(got/want-1) > 0.1 {
		t.Errorf("%.3f s, want %.3f", got, want)
	}
}

// Observations of one length alone, for ever: the line stays a line and predicts that length.
func TestLearnedOfOneLength(t *testing.T) {
	l := NewLearned(DefaultSpeed().Prefill, 500, 8_000)
	for range 20_000 {
		l.Observe(1_000, 7*time.Millisecond)
	}
	if got := l.Line(); math.Abs(got.Prefill(1_000).Seconds()/0.007-1) > 0.05 || got.Base < 0 || got.Token < 0 || math.IsNaN(got.Token) {
		t.Errorf("%s", got)
	}
}

// Engines that are twenty times as fast as was thought, and prompts far shorter than those the
// belief was of: after a hundred of them that is known.
func TestLearnedOfShortPrompts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	truth := Line{Base: time.Millisecond, Token: 800}
	l := NewLearned(DefaultSpeed().Prefill, 500, 8_000)
	for range 100 {
		tokens := 100 + rng.IntN(500)
		l.Observe(tokens, time.Duration(float64(truth.Prefill(tokens))*(0.9+0.2*rng.Float64())))
	}
	for _, tokens := range []int{100, 300, 600} {
		if got, want := l.Line().Prefill(tokens).Seconds(), truth.Prefill(tokens).Seconds(); math.Abs(got/want-1) > 0.2 {
			t.Errorf("%s: %d tokens in %.6f s, want %.6f", l.Line(), tokens, got, want)
		}
	}
}

// Steps get longer with what is in the cache.
func TestLearnedSteps(t *testing.T) {
	l := NewLearned(DefaultSpeed().Decode, 10_000, 400_000)
	truth := Line{Base: 20 * time.Millisecond, Token: 100}
	for i := range 300 {
		l.Observe(1_000+i*300, truth.Step(1_000+i*300))
	}
	if got, want := l.Line().Step(50_000).Seconds(), 0.025; math.Abs(got/want-1) > 0.02 {
		t.Errorf("%s: %.5f s, want %.5f", l.Line(), got, want)
	}
	if got := l.Line().Step(-5); got != l.Line().Base {
		t.Errorf("a step of an empty cache takes %v", got)
	}
}

// TestLearnedBoundsOneObservation adds one observation that cannot be true: a line of a hundred true ones must
// stay within its bound of it, whatever its length.
func TestLearnedBoundsOneObservation(t *testing.T) {
	truth := Line{Base: 10 * time.Millisecond, Token: 16_000}
	for _, tokens := range []int{1, 500, 8_000, 100_000, 4 << 20} {
		for _, took := range []time.Duration{0, 30 * time.Millisecond, 24 * time.Hour} {
			l := NewLearned(truth, 500, 8_000)
			for i := range 100 {
				l.Observe(500+i*70, truth.Prefill(500+i*70))
			}
			l.Observe(tokens, took)
			if got, want := l.Line().Prefill(8_000), truth.Prefill(8_000); got > 6*want || got < want/6 {
				t.Errorf("%d tokens in %s: 8,000 tokens take %s, want about %s", tokens, took, got, want)
			}
			if token := l.Line().Token; token < truth.Token/6 || token > 6*truth.Token {
				t.Errorf("%d tokens in %s: %s", tokens, took, l.Line())
			}
		}
	}
}

// TestLearnedKeepsASlope plays short prompts under noise, with stalls, for many seeds. A prompt of 2,040 tokens
// must always cost more than one of 56, because the cached tokens between them are what a cache saves.
func TestLearnedKeepsASlope(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := NewLearned(DefaultSpeed().Prefill, 500, 8_000)
		for i := range 400 {
			tokens := 56 + rng.IntN(200)
			if rng.IntN(20) == 0 {
				tokens = 2_040
			}
			took := float64(DefaultSpeed().Prefill.Prefill(tokens)) * math.Exp(0.6*rng.NormFloat64()-0.18)
			if rng.IntN(25) == 0 {
				took += 1.5e9
			}
			l.Observe(tokens, time.Duration(took))
			if short, long := l.Line().Prefill(56), l.Line().Prefill(2_040); float64(long) < 1.2*float64(short) {
				t.Fatalf("seed %d, after %d: %s: %s for 56 tokens and %s for 2,040", seed, i, l.Line(), short, long)
			}
		}
	}
}

// TestLearnedOfSharedPasses gives short prompts the time of their pass and long ones none, as where both end
// in one pass. The best line falls; the learned one must not.
func TestLearnedOfSharedPasses(t *testing.T) {
	l := NewLearned(DefaultSpeed().Prefill, 500, 8_000)
	for range 500 {
		l.Observe(200, 60*time.Millisecond)
		l.Observe(2_000, 0)
	}
	if got := l.Line(); got.Base < 0 || got.Token < 1_000 {
		t.Errorf("%s", got)
	}
}

// TestLearnedOfOneLengthHasThePriorsShape observes one length alone, which leaves the slope open. The line must
// be the prior's, scaled to what was observed.
func TestLearnedOfOneLengthHasThePriorsShape(t *testing.T) {
	prior := DefaultSpeed().Prefill
	l := NewLearned(prior, 500, 8_000)
	for range 2_000 {
		l.Observe(1_000, 7*time.Millisecond)
	}
	scale := 0.007 / prior.Prefill(1_000).Seconds()
	for _, tokens := range []int{100, 1_000, 4_000} {
		if got, want := l.Line().Prefill(tokens).Seconds(), scale*prior.Prefill(tokens).Seconds(); math.Abs(got/want-1) > 0.1 {
			t.Errorf("%s: %d tokens in %.5f s, want %.5f", l.Line(), tokens, got, want)
		}
	}
}

// TestLearnedBoundsOutliers stalls an engine in one prompt of a hundred. The line must stay near that of the
// others.
func TestLearnedBoundsOutliers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	truth := Line{Base: 10 * time.Millisecond, Token: 16_000}
	l := NewLearned(truth, 500, 8_000)
	for range 3_000 {
		tokens := 100 + rng.IntN(3_000)
		took := float64(truth.Prefill(tokens)) * math.Exp(0.1*rng.NormFloat64())
		if rng.IntN(100) == 0 {
			took += 1.5e9
		}
		l.Observe(tokens, time.Duration(took))
	}
	for _, tokens := range []int{100, 3_000} {
		if got, want := l.Line().Prefill(tokens).Seconds(), truth.Prefill(tokens).Seconds(); math.Abs(got/want-1) > 0.1 {
			t.Errorf("%s: %d tokens in %.4f s, want %.4f", l.Line(), tokens, got, want)
		}
	}
}
