package sim

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// The fleet that the capacity model asks for meets the targets in the simulation, and one with an engine less of either role does not:
// prompts of 3,000 tokens, answers of 300, 45 requests/s, ITL 10 ms.
func TestPlannedFleetMeetsTargets(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	p, err := perfmodel.LoadProfile(os.DirFS("../../test/lab/profile"))
	if err != nil {
		t.Fatal(err)
	}
	e := capacity.Engine{Timing: p, KVTokens: p.KVTokens(), MaxSeqs: 512}
	s := capacity.Shape{Prompt: 3000, Answer: 300}
	targets := capacity.Targets{TTFT: 500 * time.Millisecond, ITL: 10 * time.Millisecond, Quantile: 0.5}
	prefill, decode := e.Need(fleet.Prefill, 45, s, targets, 64).Replicas, e.Need(fleet.Decode, 45, s, targets, 64).Replicas

	run := func(prefill, decode int) *Result {
		arrivals, err := trace.Generated{Rate: 45, Requests: 6000, Input: 3000, Output: 300, Seed: 1}.Source()
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(Config{
			Workers: decode, Prefill: prefill, PrefillAt: "remote", Warmup: 30 * time.Second,
			Engine: engine.Config{Timing: p, BlockSize: 64, Blocks: p.KVTokens() / 64, MaxNumSeqs: 512},
		}, arrivals)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	meets := func(r *Result) bool { return r.TTFT.P50 <= 500 && r.ITL.P50 <= 10 }
	if r := run(prefill, decode); !meets(r) {
		t.Errorf("%d prefill and %d decode engines miss the targets:\n%v", prefill, decode, r)
	}
	if r := run(prefill-1, decode); meets(r) {
		t.Errorf("one prefill engine less suffices:\n%v", r)
	}
	if r := run(prefill, decode-1); meets(r) {
		t.Errorf("one decode engine less suffices:\n%v", r)
	}
}

// Requests come eight at a time. The fleet that the capacity model asks for with their dispersion, which is 8, keeps nine requests of ten
// within the targets in the simulation, and the fleet for requests that come one by one does not.
func TestPlannedFleetServesBursts(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	p, err := perfmodel.LoadProfile(os.DirFS("../../test/lab/profile"))
	if err != nil {
		t.Fatal(err)
	}
	e := capacity.Engine{Timing: p, KVTokens: p.KVTokens(), MaxSeqs: 512}
	const burst, rate, prompt, answer = 8, 30.0, 2000, 200
	sla := SLA{TTFT: 300 * time.Millisecond, ITL: 15 * time.Millisecond}
	misses := func(dispersion float64) (share float64, engines int) {
		s := capacity.Shape{Prompt: prompt, Answer: answer, Dispersion: dispersion}
		targets := capacity.Targets{TTFT: sla.TTFT, ITL: sla.ITL, Quantile: 0.9}
		n := e.Need(fleet.Aggregated, rate, s, targets, 64)
		if !n.Met {
			t.Errorf("dispersion %v: %+v", dispersion, n)
		}

		rng := rand.New(rand.NewPCG(1, 1))
		var arrivals []trace.Arrival
		for at := time.Duration(0); len(arrivals) < 2400; at += time.Duration(rng.ExpFloat64() * burst / rate * float64(time.Second)) {
			for range burst {
				one := trace.Segments{{ID: uint64(len(arrivals)) + 1, Length: prompt}}
				arrivals = append(arrivals, trace.Arrival{At: at, Prompt: one, Output: answer})
			}
		}
		r, err := Run(Config{
			Workers: n.Replicas, SLA: sla,
			Engine: engine.Config{Timing: p, BlockSize: 64, Blocks: p.KVTokens() / 64, MaxNumSeqs: 512},
		}, trace.List(arrivals))
		if err != nil {
			t.Fatal(err)
		}
		return float64(*r.SLAMisses) / float64(len(arrivals)), n.Replicas
	}

	if share, n := misses(burst); share > 0.1 {
		t.Errorf("%d engines for bursts: %.1f %% of the requests miss the targets", n, 100*share)
	}
	if share, n := misses(1); share <= 0.1 {
		t.Errorf("%d engines for single requests suffice: %.1f %% of the requests miss the targets", n, 100*share)
	}
}
