package perfmodel

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// prefills returns a learner of prefills alone, and prompt adds one prompt to a learner.
func prefills(l Line) *Learned { return NewLearned(Pass{Prefill: l}) }

func prompt(l *Learned, tokens int, took time.Duration) {
	l.Observe(Work{Prefills: 1, Tokens: float64(tokens)}, took)
}

// TestLearned finds a model from noisy observations, whatever the prior was, with a measure of its error.
func TestLearned(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, truth := range []Line{{Base: 10 * time.Millisecond, Token: 2_000}, {Base: time.Microsecond, Token: 50_000},
		{Base: 200 * time.Millisecond, Token: 100_000}} {
		l := prefills(DefaultSpeed().Prefill)
		if l.Pass().Prefill != DefaultSpeed().Prefill {
			t.Errorf("%s before anything was seen", l.Pass().Prefill)
		}
		for range 2_000 {
			tokens := 1 + rng.IntN(12_000)
			prompt(l, tokens, time.Duration(float64(truth.Prefill(tokens))*(0.7+0.6*rng.Float64())))
		}
		got := l.Pass().Prefill
		for _, tokens := range []int{1000, 4_000, 12_000} {
			if a, b := got.Prefill(tokens).Seconds(), truth.Prefill(tokens).Seconds(); math.Abs(a/b-1) > 0.15 {
				t.Errorf("%s: %d tokens in %.3f s, want %.3f", got, tokens, a, b)
			}
		}
		if got.Observed != 2_000 || got.Error < 0.1 || got.Error > 0.25 {
			t.Errorf("%s of %s", got, truth)
		}
	}
}

// TestLearnedFromLoad observes an engine only in passes that decode and compute prompts at once. All four terms are found, so that the
// engine's work beside a prompt does not count as the prompt's time.
func TestLearnedFromLoad(t *testing.T) {
	truth := Pass{Prefill: Line{Base: 10 * time.Millisecond, Token: 8_000}, Decode: Line{Base: 12 * time.Millisecond, Token: 90}}
	for _, sigma := range []float64{0, 0.3} {
		rng := rand.New(rand.NewPCG(1, 1))
		l := NewLearned(Pass{Prefill: DefaultSpeed().Prefill, Decode: DefaultSpeed().Decode})
		for range 2_000 {
			w := Work{Steps: 1, Context: 200_000 * rng.Float64(), Prefills: rng.Float64(), Tokens: 3_000 * rng.Float64()}
			l.Observe(w, time.Duration(float64(truth.Time(w))*math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)))
		}
		for name, w := range map[string]Work{
			"an idle step": {Steps: 1}, "a step of long contexts": {Steps: 1, Context: 200_000}, "a prompt": {Prefills: 1, Tokens: 1_000},
		} {
			if got, want := l.Pass().Time(w).Seconds(), truth.Time(w).Seconds(); math.Abs(got/want-1) > 0.05+0.5*sigma {
				t.Errorf("σ %v: %s takes %.5f s, want %.5f", sigma, name, got, want)
			}
		}
	}
}

// TestLearnedFollowsAndForgets follows an engine that changes, and is not ruled by one stall or by nonsense.
func TestLearnedFollowsAndForgets(t *testing.T) {
	l := prefills(DefaultSpeed().Prefill)
	fast, slow := Line{Base: time.Millisecond, Token: 1_000}, Line{Base: time.Millisecond, Token: 30_000}
	for i := range 1_000 {
		prompt(l, 1_000+i*5, fast.Prefill(1_000+i*5))
	}
	before := l.Pass().Prefill.Prefill(4_000)
	prompt(l, 4_000, time.Hour)
	prompt(l, -5, time.Second)
	prompt(l, 5, -time.Second)
	l.Observe(Work{}, time.Second)
	l.Observe(Work{Tokens: math.Inf(1)}, time.Second)
	l.Observe(Work{Tokens: math.NaN()}, time.Second)
	if after := l.Pass().Prefill.Prefill(4_000); after > 3*before/2 {
		t.Errorf("%s after one stall, %s before", after, before)
	}
	for i := range 1_000 {
		prompt(l, 1_000+i*5, slow.Prefill(1_000+i*5))
	}
	if got, want := l.Pass().Prefill.Prefill(4_000).Seconds(), slow.Prefill(4_000).Seconds(); math.Abs(got/want-1) > 0.1 {
		t.Errorf("%.3f s, want %.3f", got, want)
	}
}

// TestLearnedOfShortPrompts learns from engines that are twenty times as fast as the prior, with prompts far
// shorter than the prior's prompts.
func TestLearnedOfShortPrompts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	truth := Line{Base: time.Millisecond, Token: 800}
	l := prefills(DefaultSpeed().Prefill)
	for range 100 {
		tokens := 100 + rng.IntN(500)
		prompt(l, tokens, time.Duration(float64(truth.Prefill(tokens))*(0.9+0.2*rng.Float64())))
	}
	for _, tokens := range []int{100, 300, 600} {
		if got, want := l.Pass().Prefill.Prefill(tokens).Seconds(), truth.Prefill(tokens).Seconds(); math.Abs(got/want-1) > 0.2 {
			t.Errorf("%s: %d tokens in %.6f s, want %.6f", l.Pass().Prefill, tokens, got, want)
		}
	}
}

// TestLearnedSteps learns that steps get longer with the tokens in the cache.
func TestLearnedSteps(t *testing.T) {
	l := NewLearned(Pass{Decode: DefaultSpeed().Decode})
	truth := Line{Base: 20 * time.Millisecond, Token: 100}
	for i := range 600 {
		context := 1_000 + i%300*300
		l.Observe(Work{Steps: 1, Context: float64(context)}, truth.Step(context))
	}
	if got, want := l.Pass().Decode.Step(50_000).Seconds(), 0.025; math.Abs(got/want-1) > 0.02 {
		t.Errorf("%s: %.5f s, want %.5f", l.Pass().Decode, got, want)
	}
	if got := l.Pass().Decode.Step(-5); got != l.Pass().Decode.Base {
		t.Errorf("a step of an empty cache takes %v", got)
	}
}

// TestLearnedBoundsOneObservation adds one observation that cannot be true: a model of a hundred true ones must
// stay near it, whatever the length of the prompt.
func TestLearnedBoundsOneObservation(t *testing.T) {
	truth := Line{Base: 10 * time.Millisecond, Token: 16_000}
	for _, tokens := range []int{1, 500, 8_000, 100_000, 4 << 20} {
		for _, took := range []time.Duration{0, 30 * time.Millisecond, 24 * time.Hour} {
			l := prefills(truth)
			for i := range 100 {
				prompt(l, 500+i*70, truth.Prefill(500+i*70))
			}
			prompt(l, tokens, took)
			if got, want := l.Pass().Prefill.Prefill(8_000), truth.Prefill(8_000); got > 2*want || got < want/2 {
				t.Errorf("%d tokens in %s: 8,000 tokens take %s, want about %s", tokens, took, got, want)
			}
		}
	}
}

// TestLearnedKeepsASlope plays short prompts under noise, with stalls, for many seeds. A prompt of 2,040 tokens must always cost more than
// one of 56, because a cache saves the tokens between them.
func TestLearnedKeepsASlope(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := prefills(DefaultSpeed().Prefill)
		for i := range 400 {
			tokens := 56 + rng.IntN(200)
			if rng.IntN(20) == 0 {
				tokens = 2_040
			}
			took := float64(DefaultSpeed().Prefill.Prefill(tokens)) * math.Exp(0.6*rng.NormFloat64()-0.18)
			if rng.IntN(25) == 0 {
				took += 1.5e9
			}
			prompt(l, tokens, time.Duration(took))
			if short, long := l.Pass().Prefill.Prefill(56), l.Pass().Prefill.Prefill(2_040); float64(long) < 1.2*float64(short) {
				t.Fatalf("seed %d, after %d: %s: %s for 56 tokens and %s for 2,040", seed, i, l.Pass().Prefill, short, long)
			}
		}
	}
}

// TestLearnedOfOneLengthHasThePriorsShape observes one length alone, which leaves the slope open. The line must be the
// prior's, scaled to the observations.
func TestLearnedOfOneLengthHasThePriorsShape(t *testing.T) {
	prior := DefaultSpeed().Prefill
	l := prefills(prior)
	for range 2_000 {
		prompt(l, 1_000, 7*time.Millisecond)
	}
	scale := 0.007 / prior.Prefill(1_000).Seconds()
	for _, tokens := range []int{100, 1_000, 4_000} {
		if got, want := l.Pass().Prefill.Prefill(tokens).Seconds(), scale*prior.Prefill(tokens).Seconds(); math.Abs(got/want-1) > 0.1 {
			t.Errorf("%s: %d tokens in %.5f s, want %.5f", l.Pass().Prefill, tokens, got, want)
		}
	}
}

// TestLearnedBoundsOutliers stalls an engine in one prompt of a hundred. The line must stay
// near the times of the others.
func TestLearnedBoundsOutliers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	truth := Line{Base: 10 * time.Millisecond, Token: 16_000}
	l := prefills(truth)
	for range 3_000 {
		tokens := 100 + rng.IntN(3_000)
		took := float64(truth.Prefill(tokens)) * math.Exp(0.1*rng.NormFloat64())
		if rng.IntN(100) == 0 {
			took += 1.5e9
		}
		prompt(l, tokens, time.Duration(took))
	}
	for _, tokens := range []int{100, 3_000} {
		if got, want := l.Pass().Prefill.Prefill(tokens).Seconds(), truth.Prefill(tokens).Seconds(); math.Abs(got/want-1) > 0.15 {
			t.Errorf("%s: %d tokens in %.4f s, want %.4f", l.Pass().Prefill, tokens, got, want)
		}
	}
}

// BenchmarkLearned: what does one observation cost?
//
//	go test -run - -bench Learned ./internal/perfmodel
func BenchmarkLearned(b *testing.B) {
	l := NewLearned(Pass{Prefill: DefaultSpeed().Prefill, Decode: DefaultSpeed().Decode})
	b.ReportAllocs()
	for b.Loop() {
		l.Observe(Work{Steps: 1, Context: 5_000, Prefills: 1, Tokens: 700}, 40*time.Millisecond)
	}
}

// TestEnginesOfTwoPaces: of two kinds of engines the slow ones decode more, and the fast ones compute more prompts, as they do at a router.
// With their paces, the model has the division of the time into its terms, at the mean speed. Without, it has long steps.
func TestEnginesOfTwoPaces(t *testing.T) {
	speed := DefaultSpeed()
	truth := Pass{Prefill: speed.Prefill, Decode: speed.Decode}
	for _, known := range []bool{true, false} {
		l, rng := NewLearned(truth), rand.New(rand.NewPCG(1, 2))
		for range 1000 {
			for _, e := range []struct{ pace, steps, tokens float64 }{{math.Sqrt2, 6, 4000}, {1 / math.Sqrt2, 3, 8000}} {
				n := 1 + rng.Float64()
				w := Work{Steps: e.steps * n, Context: 100_000 * e.steps * n, Prefills: 3, Tokens: e.tokens * n}
				took := time.Duration(e.pace * float64(truth.Time(w)))
				if known {
					l.ObserveAt(e.pace, w, took)
				} else {
					l.Observe(w, took)
				}
			}
		}
		p := l.Pass()
		step := float64(p.Decode.Step(100_000)) / float64(truth.Decode.Step(100_000))
		token := p.Prefill.Token / truth.Prefill.Token
		if right := math.Abs(step-1) < 0.05 && math.Abs(token-1) < 0.05; right != known {
			t.Errorf("paces are known: %v; steps take %.2f times as long as in the mean, and tokens %.2f", known, step, token)
		}
	}
}
