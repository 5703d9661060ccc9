package sim

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// cold returns prompts that have nothing in common, a while apart, of about 200 tokens.
func cold(n int, apart time.Duration, rng *rand.Rand) []trace.Arrival {
	return coldOf(200, n, apart, rng)
}

// coldOf is cold for prompts of another length.
func coldOf(tokens, n int, apart time.Duration, rng *rand.Rand) []trace.Arrival {
	var list []trace.Arrival
	for i := range n {
		prompt := trace.Segments{{ID: rng.Uint64(), Length: tokens*3/4 + rng.IntN(tokens/2)}}
		list = append(list, trace.Arrival{At: time.Duration(i) * apart, Prompt: prompt, Output: 8})
	}
	return list
}

// TestSlowStartStarvesNone plays the first prompts of two engines one after another. One of the engines freezes for
// 1.5 s in each of its first three, as engines do that compile kernels. Then 60 cold prompts arrive one by one. Both engines are
// idle each time, so both must get a fair share, with and without noise.
func TestSlowStartStarvesNone(t *testing.T) {
	for _, sigma := range []float64{0, 0.1, 0.3, 0.6} {
		for seed := range uint64(10) {
			rng := rand.New(rand.NewPCG(seed, 9))
			const first, then = 10, 60
			list := coldOf(1_500, first, 3*time.Second, rng)
			for _, a := range cold(then, 400*time.Millisecond, rng) {
				a.At += first * 3 * time.Second
				list = append(list, a)
			}
			counts := [2]int{}
			mustRun(t, Config{
				Workers: 2, Seed: seed, Engine: engine.Config{BlockSize: 16}, Noise: Noise{Sigma: sigma, SlowStarts: map[int]int{1: 3}},
				Ended: func(o Outcome) {
					if o.Number >= first {
						counts[o.Worker]++
					}
				},
			}, list)
			if counts[0] < 20 || counts[1] < 20 {
				t.Errorf("σ %v, seed %d: the engines got %d of %d prompts", sigma, seed, counts, then)
			}
		}
	}
}

// TestLatePrefillsKeepOthersAway freezes one of two engines for 4.5 s with its first prompts. All prompts begin alike, and
// that beginning is promised on the engine of the first one. Once the engine is late, the others must go to the other one.
func TestLatePrefillsKeepOthersAway(t *testing.T) {
	frozen := 0
	for seed := range uint64(10) {
		list := make([]trace.Arrival, 60)
		for i := range list {
			list[i].At = time.Duration(i) * 50 * time.Millisecond
			list[i].Output = 8
			list[i].Prompt = trace.Segments{{ID: 1, Length: 1_600}, {ID: uint64(i + 2), Length: 200}}
		}
		var worker [2]int
		first := 0
		mustRun(t, Config{
			Workers: 2, Seed: seed, Engine: engine.Config{BlockSize: 16}, Noise: Noise{SlowStarts: map[int]int{1: 3}},
			Ended: func(o Outcome) {
				worker[o.Worker]++
				if o.Number == 0 {
					first = o.Worker
				}
			},
		}, list)
		frozen += first
		if worker[1] > 12 {
			t.Errorf("seed %d: %d of 60 prompts went to the engine that stood still", seed, worker[1])
		}
	}
	if frozen == 0 {
		t.Error("the first prompt never went to the engine that stood still")
	}
}

// TestSlowSpellEnds makes one of two engines three times as slow for a minute. It must get few prompts towards the
// end of that time, and a fair share from some minutes after it.
func TestSlowSpellEnds(t *testing.T) {
	for seed := range uint64(5) {
		list := cold(900, time.Second, rand.New(rand.NewPCG(seed, 9)))
		during, after := 0, 0
		mustRun(t, Config{
			Workers: 2, Seed: seed, Engine: engine.Config{BlockSize: 16},
			Noise: Noise{Sigma: 0.1, SlowSpells: []SlowSpell{{Worker: 1, Factor: 3, At: 2 * time.Minute, Span: 2 * time.Minute}}},
			Ended: func(o Outcome) {
				switch {
				case o.Worker != 1:
				case o.At > 3*time.Minute && o.At < 4*time.Minute:
					during++
				case o.At > 10*time.Minute:
					after++
				}
			},
		}, list)
		if during > 15 || after < 100 {
			t.Errorf("seed %d: the slow engine got %d of 60 prompts while it was slow, and %d of 300 later", seed, during, after)
		}
	}
}

// TestNoiseIsPlayed runs one configuration twice with all noise, and once without.
func TestNoiseIsPlayed(t *testing.T) {
	list := cold(300, 30*time.Millisecond, rand.New(rand.NewPCG(1, 9)))
	noise := Noise{
		Sigma: 0.3, Stalls: true, Neighbours: true, SlowStarts: map[int]int{0: 3},
		SlowSpells: []SlowSpell{{Worker: 2, Factor: 1.5, At: time.Second, Span: time.Second}},
	}
	play := func(n Noise, seed uint64) string {
		return mustRun(t, Config{Seed: seed, Engine: engine.Config{BlockSize: 16}, Noise: n}, list).String()
	}
	if a, b := play(noise, 1), play(noise, 1); a != b {
		t.Errorf("two equal runs differ:\n%s\n%s", a, b)
	}
	if play(noise, 1) == play(Noise{}, 1) || play(noise, 1) == play(noise, 2) {
		t.Error("noise and seeds have no effect")
	}
}

func TestNoiseOfUnknownWorkers(t *testing.T) {
	_, err := Run(Config{Workers: 2, Noise: Noise{
		Sigma: -1, SlowStarts: map[int]int{5: 3, 1: -2}, SlowSpells: []SlowSpell{{Worker: 7, Factor: 2}, {Worker: 1}, {Worker: 1, Factor: -1}},
	}}, trace.List(nil))
	for _, want := range []string{"noise is -1", "noise of worker 5", "noise of worker 7", "worker 1 is slow twice", "-2 slow prompts", "factor of a slow time is -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestSharedCacheIsABound plays conversations over separate caches and over one for all engines. With it every
// prompt is found as far as any engine has computed it, so nothing can be reused more, or answered much sooner.
func TestSharedCacheIsABound(t *testing.T) {
	for seed := range uint64(3) {
		list := sessions(40, 8, rand.New(rand.NewPCG(seed, 3)))
		cfg := Config{Workers: 4, Seed: seed, Engine: engine.Config{BlockSize: 16, Blocks: 2048}}
		own := mustRun(t, cfg, list)
		cfg.SharedCache = true
		shared := mustRun(t, cfg, list)
		if shared.PrefixReuse < own.PrefixReuse || shared.TTFT.Mean > own.TTFT.Mean || shared.Completed != len(list) {
			t.Errorf("seed %d: shared reuse %.4f, TTFT %.1f ms, %d completed; separate %.4f, %.1f ms", seed,
				shared.PrefixReuse, shared.TTFT.Mean, shared.Completed, own.PrefixReuse, own.TTFT.Mean)
		}
		if d := shared.Predicted - shared.PrefixReuse; d < -0.02 || d > 0.02 {
			t.Errorf("seed %d: predicted %.4f of %.4f", seed, shared.Predicted, shared.PrefixReuse)
		}
	}
}
