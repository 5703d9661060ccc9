package sim

import (
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
