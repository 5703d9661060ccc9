package perfmodel

import (
	"math"
	"os"
	"testing"
	"time"
)

// llama8 is Llama-3.1-8B in FP8 with a KV cache of 16 bits.
var llama8 = Weights{Parameters: 8.03e9, Active: 8.03e9, Bytes: 1, KVBytes: 131072, Layers: 32, Hidden: 4096, Attention: 4096}

// The roofline is near the measured profile of the same model and GPU, which its constants were chosen for. The farthest are steps of
// hundreds of short requests, which last longer than their bytes and operations.
func TestRooflineNearProfile(t *testing.T) {
	p, err := LoadProfile(os.DirFS("../../test/lab/profile"))
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := FindGPU("h200")
	if err != nil {
		t.Fatal(err)
	}
	r := Roofline{Model: llama8, GPU: gpu}

	near := func(what string, got, want time.Duration, bound float64) {
		t.Helper()
		if off := math.Abs(float64(got)/float64(want) - 1); off > bound {
			t.Errorf("%s: %v, measured %v: %.0f %% off", what, got, want, 100*off)
		}
	}
	for _, tokens := range []int{100, 1117, 3151, 6202, 10270, 16372} {
		w := Prefill{Requests: 1, Input: tokens}
		near("prefill", r.Prefill(w), p.Prefill(w), 0.2)
	}
	for _, n := range []int{1, 10, 49, 100, 150, 200, 288} {
		w := Decode{Requests: n, Context: n * 2997}
		near("decode at 2,997 tokens", r.Decode(w), p.Decode(w), 0.1)
	}
	for _, n := range []int{1, 10, 100, 500, 1000} {
		w := Decode{Requests: n, Context: n * 350}
		near("decode at 350 tokens", r.Decode(w), p.Decode(w), 0.35)
	}
	if got := r.KVTokens(); math.Abs(float64(got)/float64(p.KVTokens())-1) > 0.1 {
		t.Errorf("the KV cache has %d tokens, measured %d", got, p.KVTokens())
	}
}

// Tensor parallelism divides work and adds communication: two GPUs are faster than one, and not twice as fast.
func TestRooflineParallel(t *testing.T) {
	gpu, _ := FindGPU("H100")
	one, two := Roofline{Model: llama8, GPU: gpu}, Roofline{Model: llama8, GPU: gpu, GPUs: 2}
	prefill, decode := Prefill{Requests: 1, Input: 4000}, Decode{Requests: 64, Context: 64 * 4000}
	for _, c := range [][2]time.Duration{{one.Prefill(prefill), two.Prefill(prefill)}, {one.Decode(decode), two.Decode(decode)}} {
		if c[1] >= c[0] || 2*c[1] <= c[0] {
			t.Errorf("one GPU takes %v, two %v", c[0], c[1])
		}
	}
	if one.KVTokens() >= two.KVTokens() {
		t.Error("two GPUs must hold more tokens")
	}
}

// A mixture of experts reads the experts that its tokens choose: few for one token, and nearly all for many.
func TestRooflineExperts(t *testing.T) {
	gpu, _ := FindGPU("H200")
	r := Roofline{Model: Weights{Parameters: 30e9, Active: 3e9, Bytes: 1, KVBytes: 98304, Layers: 48, Hidden: 2048, Attention: 4096}, GPU: gpu}
	if got := r.weightsRead(1); math.Abs(got/3e9-1) > 1e-9 {
		t.Errorf("one token reads %v weights", got)
	}
	if got := r.weightsRead(100); got < 29e9 || got > 30e9 {
		t.Errorf("100 tokens read %v weights", got)
	}
}

func TestWrongWeights(t *testing.T) {
	if err := llama8.Validate(); err != nil {
		t.Error(err)
	}
	wrong := llama8
	wrong.Active = 9e9
	wrong.Layers = 0
	if err := wrong.Validate(); err == nil {
		t.Error("more active parameters than there are, and no layers, must be refused")
	}
	if _, err := FindGPU("H300"); err == nil {
		t.Error("an unknown GPU must be refused")
	}
}

// A factor begins as 1 and follows observations, the sooner the greater its doubt; each makes it surer.
func TestFactor(t *testing.T) {
	sure, unsure := NewFactor(ProfileDoubt), NewFactor(RooflineDoubt)
	for i := range 40 {
		before := unsure
		sure = sure.Observe(150*time.Millisecond, 100*time.Millisecond)
		unsure = unsure.Observe(150*time.Millisecond, 100*time.Millisecond)
		if i == 0 && !(sure.Value() < unsure.Value() && unsure.Value() < 1.5 && sure.Value() > 1) {
			t.Errorf("after one observation: %v and %v", sure, unsure)
		}
		if unsure.Variance >= before.Variance && i < 20 {
			t.Errorf("observation %d raised the doubt from %v to %v", i, before, unsure)
		}
	}
	if math.Abs(sure.Value()-1.5) > 0.06 || math.Abs(unsure.Value()-1.5) > 0.02 {
		t.Errorf("after 40 observations: %v and %v", sure, unsure)
	}
}

// One absurd observation changes a factor by little, and a thousand leave it in its bounds.
func TestFactorOutliers(t *testing.T) {
	f := NewFactor(ProfileDoubt)
	for range 20 {
		f = f.Observe(100, 100)
	}
	if one := f.Observe(time.Hour, 1); one.Value() > 1.1 {
		t.Errorf("one absurd observation: %v", one)
	}
	if same := f.Observe(0, 100).Observe(100, 0); same != f {
		t.Error("an observation without a time must be ignored")
	}
	for range 1000 {
		f = f.Observe(time.Hour, 1)
	}
	if !(f.Value() > 7.9 && f.Value() <= factorMost+1e-9) {
		t.Errorf("after 1,000: %v", f)
	}
}

func TestCorrected(t *testing.T) {
	c := Corrected{Timing: Fixed{PrefillTime: 10, DecodeTime: 20}, DecodeBy: 1.5}
	if c.Prefill(Prefill{Requests: 1, Input: 1}) != 10 || c.Decode(Decode{Requests: 1}) != 30 {
		t.Error("only decode steps take longer")
	}
}

// Measured times that fall with more work are noise: the curve is the nearest one that does not fall.
func TestMonotoneCurve(t *testing.T) {
	c, err := newCurve("test", []point{{1, 10}, {2, 30}, {3, 20}, {4, 25}, {5, 60}, {6, 50}})
	if err != nil {
		t.Fatal(err)
	}
	want := curve{{1, 10}, {2, 25}, {3, 25}, {4, 25}, {5, 55}, {6, 55}}
	for i := range want {
		if math.Abs(c[i].y-want[i].y) > 1e-9 {
			t.Errorf("point %d is %v, want %v", i, c[i], want[i])
		}
	}
}
