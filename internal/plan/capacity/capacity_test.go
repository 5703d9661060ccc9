package capacity_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// measured is an engine of the committed profile: Llama-3.1-8B in FP8 on one H200.
func measured(t testing.TB) *capacity.Engine {
	t.Helper()
	p, err := perfmodel.LoadProfile(os.DirFS("../../../test/lab/profile"))
	if err != nil {
		t.Fatal(err)
	}
	return &capacity.Engine{Timing: p, KVTokens: p.KVTokens(), MaxSeqs: 512}
}

// Dynamo's classic planner needs (1,1), (2,2) and (3,3) prefill and decode engines at these rates, and its current regression (3,5) at
// the last one. The surface of the same measurements needs as many as the classic one, at the median. The simulation confirms it: see
// TestPlannedFleetMeetsTargets in internal/sim.
func TestNeedOnPublishedProfile(t *testing.T) {
	e := measured(t)
	s := capacity.Shape{Prompt: 3000, Answer: 300}
	median := capacity.Targets{TTFT: 500 * time.Millisecond, ITL: 10 * time.Millisecond, Quantile: 0.5}
	for _, c := range []struct{ from, to, want int }{{5, 15, 1}, {18, 30, 2}, {36, 45, 3}} {
		for rate := c.from; rate <= c.to; rate++ {
			prefill := e.Need(fleet.Prefill, float64(rate), s, median, 64)
			decode := e.Need(fleet.Decode, float64(rate), s, median, 64)
			if prefill.Replicas != c.want || decode.Replicas != c.want || !prefill.Met || !decode.Met {
				t.Errorf("at %d requests/s: %+v and %+v, want %d of both", rate, prefill, decode, c.want)
			}
		}
	}
}

// Latencies fall with more engines and rise with the rate and the quantile, for all roles and shapes. That is what the search for the
// smallest number needs.
func TestLatenciesAreMonotone(t *testing.T) {
	e := measured(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		s := capacity.Shape{
			Prompt: 50 + 8000*rng.Float64(), Answer: 1 + 800*rng.Float64(), PromptSpread: 2 * rng.Float64(), AnswerSpread: 2 * rng.Float64(),
			Cached: rng.Float64(),
		}
		rate := 40 * rng.Float64()
		for _, role := range []fleet.Role{fleet.Aggregated, fleet.Prefill, fleet.Decode} {
			last := e.Latency(role, 1, rate, s, 0.9)
			for n := 2; n < 40; n++ {
				now := e.Latency(role, n, rate, s, 0.9)
				if worse(now, last) {
					t.Fatalf("%v %+v at %.1f requests/s: %d engines have %+v, one less %+v", role, s, rate, n, now, last)
				}
				last = now
			}
			if more := e.Latency(role, 39, rate*1.2, s, 0.9); worse(last, more) {
				t.Fatalf("%v %+v: more requests have %+v, fewer %+v", role, s, more, last)
			}
			if q := e.Latency(role, 39, rate, s, 0.99); worse(last, q) {
				t.Fatalf("%v %+v: quantile 0.99 has %+v, 0.9 %+v", role, s, q, last)
			}
		}
	}
}

// worse reports whether a latency of a is clearly longer than b's. The slope of the steps is measured over an interval, so
// differences of a percent are its error.
func worse(a, b capacity.Latency) bool {
	longer := func(x, y time.Duration) bool { return float64(x) > 1.02*float64(y)+1e5 }
	return longer(a.TTFT, b.TTFT) || longer(a.ITL, b.ITL) || longer(a.E2E, b.E2E)
}

// More than the engines serve has latencies without an end, and a number of engines that does not exist cannot meet targets.
func TestOverload(t *testing.T) {
	e := measured(t)
	s := capacity.Shape{Prompt: 3000, Answer: 300}
	for _, role := range []fleet.Role{fleet.Aggregated, fleet.Prefill, fleet.Decode} {
		if l := e.Latency(role, 1, 100, s, 0.9); l.Load < 1 || max(l.TTFT, l.ITL) != capacity.Never {
			t.Errorf("%v: %+v", role, l)
		}
		if n := e.Need(role, 100, s, capacity.Targets{}, 2); n.Replicas != 2 || n.Met {
			t.Errorf("%v: 2 engines do not serve 100 requests/s: %+v", role, n)
		}
	}
}

// A target that even an idle engine misses is reported, and the engines are as many as keep waits short: asking for more would be of no
// use.
func TestUnreachableTarget(t *testing.T) {
	e := measured(t)
	s := capacity.Shape{Prompt: 3000, Answer: 300}
	n := e.Need(fleet.Prefill, 30, s, capacity.Targets{TTFT: 20 * time.Millisecond}, 64)
	alone := e.Latency(fleet.Prefill, 1, 1e-6, s, 0.9).TTFT
	if n.Met || float64(n.Latency.TTFT) > 1.25*float64(alone) || n.Replicas > 5 {
		t.Errorf("%+v, and %v alone", n, alone)
	}
	if less := e.Latency(fleet.Prefill, n.Replicas-1, 30, s, 0.9); float64(less.TTFT) <= 1.25*float64(alone) {
		t.Errorf("one engine less suffices: %+v", less)
	}
}

// What raises an engine's capacity lowers the need: caches, speculative decoding, short prompts that share passes.
func TestWhatLowersTheNeed(t *testing.T) {
	e := measured(t)
	targets := capacity.Targets{TTFT: 500 * time.Millisecond, ITL: 15 * time.Millisecond}
	need := func(e *capacity.Engine, role fleet.Role, s capacity.Shape, rate float64) int {
		n := e.Need(role, rate, s, targets, 1000)
		if !n.Met {
			t.Errorf("%v at %v: %+v", role, rate, n)
		}
		return n.Replicas
	}
	s := capacity.Shape{Prompt: 3000, Answer: 300}
	cached := s
	cached.Cached = 0.5
	if a, b := need(e, fleet.Prefill, s, 100), need(e, fleet.Prefill, cached, 100); b > a*2/3 {
		t.Errorf("%d prefill engines without caches, %d with half of the prompts cached", a, b)
	}

	speculative := *e
	speculative.StepTokens = 2
	if a, b := need(e, fleet.Decode, s, 200), need(&speculative, fleet.Decode, s, 200); b > a*2/3 {
		t.Errorf("%d decode engines with a token in each step, %d with two", a, b)
	}

	short := capacity.Shape{Prompt: 100, Answer: 10}
	if n := need(e, fleet.Prefill, short, 400); n > 4 {
		t.Errorf("%d engines for 400 short prompts/s: one alone takes 19.5 ms, and many share a pass", n)
	}
}

func ExampleEngine_Need() {
	e := capacity.Engine{Timing: perfmodel.Polynomial{}, KVTokens: 1 << 20}
	s := capacity.Shape{Prompt: 2000, Answer: 200}
	n := e.Need(fleet.Aggregated, 20, s, capacity.Targets{TTFT: time.Second, ITL: 50 * time.Millisecond}, 64)
	fmt.Println(n.Replicas, n.Met, n.Latency.ITL < 50*time.Millisecond)
	// Output: 2 true true
}

// The prompts that come during an answer vary by chance, and short answers are late more often than long ones: so the quantile of the
// time between tokens is longer than with a steady share of prompts, and more so for short answers.
func TestChanceOfPromptsDuringAnAnswer(t *testing.T) {
	e := measured(t)
	above := func(answer float64) float64 {
		// As much work for answers in both cases.
		rate := 1500 / answer
		s := capacity.Shape{Prompt: 10 * answer, Answer: answer}
		return e.Aggregated(1, rate, s, 0.95).ITL.Seconds() / e.Aggregated(1, rate, s, 0.5).ITL.Seconds()
	}
	short, long := above(40), above(400)
	if short < 1.3 || short <= long {
		t.Errorf("the 0.95 quantile is %.2f times the median for answers of 40 tokens, and %.2f for 400: want 1.3 at least, and more for the "+
			"short ones", short, long)
	}
}

// The longest prompts are few and have most of the work: the time of a prompt grows faster than its length. The rate that an engine
// computes follows from all of them, and not from the typical ones.
func TestLongPromptsHaveMostOfTheWork(t *testing.T) {
	gpu, err := perfmodel.FindGPU("A100-80GB")
	if err != nil {
		t.Fatal(err)
	}
	w := perfmodel.Weights{
		Parameters: 30.5e9, Active: 3.3e9, Bytes: 1, KVBytes: 98304, Layers: 48, Hidden: 2048, Attention: 4096,
	}
	r := perfmodel.Roofline{Model: w, GPU: gpu}
	e := &capacity.Engine{Timing: r, KVTokens: r.KVTokens()}
	s := capacity.Shape{Prompt: 15_000, Answer: 150, PromptSpread: 1.7, AnswerSpread: 1, Cached: 0.5}

	rng := rand.New(rand.NewPCG(1, 5))
	deviation := math.Sqrt(math.Log(1 + s.PromptSpread*s.PromptSpread))
	const n = 20_000
	sum := 0.0
	for range n {
		one := capacity.Shape{Cached: s.Cached, Answer: s.Answer}
		one.Prompt = min(s.Prompt*math.Exp(deviation*rng.NormFloat64()-deviation*deviation/2), float64(e.KVTokens))
		sum += 1 / e.PrefillRate(one)
	}
	if got, want := 1/e.PrefillRate(s), sum/n; math.Abs(got/want-1) > 0.1 {
		t.Errorf("%.3f s for a prompt, want %.3f", got, want)
	}
}

// Prompts that come one by one have a pass each. If a pass takes as long with one as with many, they take more of the time than in the
// full passes of the highest rate.
func TestLonePromptsTakeMoreTime(t *testing.T) {
	const step = 10 * time.Millisecond
	e := capacity.Engine{Timing: perfmodel.Fixed{PrefillTime: 10 * step, DecodeTime: step}}
	got := e.Aggregated(1, 2, capacity.Shape{Prompt: 100, Answer: 100}, 0.5).ITL
	if want := step * 10 / 8; got < want*95/100 || got > want*105/100 {
		t.Errorf("a time between tokens of %v, want %v, because prompts take a fifth of the time", got, want)
	}
}

// As many requests miss a target as have a longer latency, and more where arrivals come in bursts.
func TestMissing(t *testing.T) {
	e := measured(t)
	s := capacity.Shape{Prompt: 3000, Answer: 300, PromptSpread: 1, AnswerSpread: 1}
	for _, role := range []fleet.Role{fleet.Aggregated, fleet.Prefill, fleet.Decode} {
		l := e.Latency(role, 4, 30, s, 0.9)
		targets := capacity.Targets{TTFT: l.TTFT, ITL: l.ITL}
		independent := e.Missing(role, 4, 30, s, targets)
		if independent < 0.04 || independent > 0.11 { // prompts have one of eight lengths
			t.Errorf("%v: %.3f miss the latencies of the quantile 0.9", role, independent)
		}
		bursts := s
		bursts.Bursts = 8
		if got := e.Missing(role, 4, 30, bursts, targets); got < independent+0.01 {
			t.Errorf("%v: %.3f miss them in bursts, and %.3f without", role, got, independent)
		}
	}
}

// Where bursts fill the KV caches of decode workers, requests wait there, and more workers are needed.
func TestDecodeNeedsRoomForBursts(t *testing.T) {
	e := measured(t)
	e.KVTokens = 20_000 // for 19 requests
	s := capacity.Shape{Prompt: 1000, Answer: 100}
	targets := capacity.Targets{ITL: time.Second}
	alone := e.Need(fleet.Decode, 10, s, targets, 64)
	s.Bursts = 64
	bursts := e.Need(fleet.Decode, 10, s, targets, 64)
	if alone.Replicas != 1 || bursts.Replicas < 2 {
		t.Errorf("%d workers, and %d for bursts", alone.Replicas, bursts.Replicas)
	}
	if l := e.Latency(fleet.Decode, 1, 10, s, 0.9); l.ITL != capacity.Never {
		t.Errorf("a full cache: %+v", l)
	}
}
