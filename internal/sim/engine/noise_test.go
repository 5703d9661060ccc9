package engine

import (
	"math"
	"testing"
	"time"
)

// pass is a pass without noise in these tests: half of it is prefill.
const pass = 40 * time.Millisecond

// play returns the durations of n passes of which each begins one prompt.
func play(cfg Noise, n int) []time.Duration {
	noise := newNoise(cfg)
	now := cfg.Began
	var out []time.Duration
	for range n {
		took := noise.pass(pass/2, pass/2, 1, now)
		now = now.Add(took)
		out = append(out, took)
	}
	return out
}

// moments are the mean of durations relative to a pass, and the standard deviation of their logarithms.
func moments(list []time.Duration) (mean, deviation float64) {
	var sum, logs, squares float64
	for _, d := range list {
		v := float64(d) / float64(pass)
		sum += v
		logs += math.Log(v)
		squares += math.Log(v) * math.Log(v)
	}
	n := float64(len(list))
	return sum / n, math.Sqrt(squares/n - logs*logs/n/n)
}

func TestNoNoise(t *testing.T) {
	for _, took := range play(Noise{Seed: 3}, 100) {
		if took != pass {
			t.Fatal(took)
		}
	}
}

// TestNoiseIsLogNormal compares mean and spread of many passes with those that were asked for.
func TestNoiseIsLogNormal(t *testing.T) {
	for _, sigma := range []float64{0.1, 0.3, 0.6} {
		mean, deviation := moments(play(Noise{Sigma: sigma, Seed: 1}, 100_000))
		if math.Abs(mean-1) > 0.01 || math.Abs(deviation/sigma-1) > 0.02 {
			t.Errorf("σ %v: mean %.4f, deviation of logarithms %.4f", sigma, mean, deviation)
		}
	}
}

// TestStalls counts stalls, and their lengths.
func TestStalls(t *testing.T) {
	cfg := Noise{StallEvery: MeasuredStallEvery, StallFrom: MeasuredStallFrom, StallTo: MeasuredStallTo}
	const passes = 1_000_000
	stalls, longer := 0, time.Duration(0)
	for _, took := range play(cfg, passes) {
		if took > pass {
			stalls++
			longer += took - pass
		}
	}
	// A stall is no work, so it brings the next one nearer by nothing.
	want := float64(passes*pass) / float64(MeasuredStallEvery)
	if math.Abs(float64(stalls)/want-1) > 0.05 {
		t.Errorf("%d stalls, want %.0f", stalls, want)
	}
	if mean := longer / time.Duration(stalls); mean < 190*time.Millisecond || mean > 210*time.Millisecond {
		t.Errorf("a stall lasts %s on average", mean)
	}
}

// TestOtherNoise plays the kinds without chance.
func TestOtherNoise(t *testing.T) {
	began := time.Unix(1000, 0)
	busy := false
	for _, c := range []struct {
		name string
		cfg  Noise
		want []time.Duration // in passes of 40 ms
	}{
		{"first prompts", Noise{ColdPrompts: 2, ColdTime: time.Second}, []time.Duration{pass + time.Second, pass + time.Second, pass, pass}},
		{"a slow spell", Noise{SlowFactor: 2, SlowFrom: 40 * time.Millisecond, SlowSpan: 100 * time.Millisecond}, []time.Duration{pass, 2 * pass, 2 * pass, pass}},
		{
			"a neighbour in every second pass", Noise{Beside: func() bool { busy = !busy; return !busy }, BesidePrefill: 1.5, BesideDecode: 2},
			[]time.Duration{pass, 7 * pass / 4, pass, 7 * pass / 4},
		},
	} {
		c.cfg.Began = began
		for i, took := range play(c.cfg, len(c.want)) {
			if took != c.want[i] {
				t.Errorf("%s: pass %d takes %s, want %s", c.name, i, took, c.want[i])
			}
		}
	}
}

// TestNoiseIsDeterministic plays equal and different seeds.
func TestNoiseIsDeterministic(t *testing.T) {
	cfg := Noise{Sigma: 0.3, StallEvery: time.Second, StallTo: time.Second}
	a, b := play(cfg, 1000), play(cfg, 1000)
	cfg.Seed = 1
	other := play(cfg, 1000)
	differ := 0
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("pass %d takes %s and %s", i, a[i], b[i])
		}
		if a[i] != other[i] {
			differ++
		}
	}
	if differ < 990 {
		t.Errorf("with another seed %d of 1000 passes differ", differ)
	}
}

func TestNoiseIsValidated(t *testing.T) {
	for _, cfg := range []Noise{
		{Sigma: -1}, {Sigma: math.NaN()}, {StallEvery: -1}, {StallFrom: 2, StallTo: 1}, {ColdPrompts: -1}, {SlowFactor: math.Inf(1)}, {SlowSpan: -1},
	} {
		if _, err := New(Config{Noise: cfg}); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}
