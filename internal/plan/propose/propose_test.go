package propose_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/propose"
)

// llama is Llama-3.1-8B with weights of 8 bits on H200s, for several sizes of engines.
func llama(t testing.TB, sizes ...int) (out []propose.Engine) {
	t.Helper()
	data, err := os.ReadFile("../../perfmodel/testdata/models/llama-3.1-8b.json")
	if err != nil {
		t.Fatal(err)
	}
	w, err := perfmodel.ReadWeights(data)
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := perfmodel.FindGPU("H200")
	if err != nil {
		t.Fatal(err)
	}
	w.Bytes = 1
	for _, n := range sizes {
		r := perfmodel.Roofline{Model: w, GPU: gpu, GPUs: n}
		out = append(out, propose.Engine{
			Engine: capacity.Engine{Timing: r, KVTokens: r.KVTokens(), MaxSeqs: 512}, GPUs: n, Watts: 700 * float64(n), Doubt: 0.35,
		})
	}
	return out
}

func question(t testing.TB, sizes ...int) propose.Question {
	return propose.Question{
		Shape:   capacity.Shape{Prompt: 3000, Answer: 300, PromptSpread: 0.1, AnswerSpread: 0.1},
		Targets: capacity.Targets{TTFT: 500 * time.Millisecond, ITL: 10 * time.Millisecond},
		GPUs:    8, Engines: llama(t, sizes...), TransferBase: 3 * time.Millisecond, TransferToken: 1600 * time.Nanosecond,
	}
}

// The best fleet serves the most, and a fleet with that rate as the question's has no more GPUs.
func TestProposals(t *testing.T) {
	q := question(t, 1, 2, 4, 8)
	list := propose.Propose(q)
	best := list[0]
	if len(list) < 8 || !best.Met || best.GPUs > 8 || best.Rate <= 0 || best.SlowRate >= best.Rate {
		t.Fatalf("%d proposals, the best %+v", len(list), best)
	}
	for _, p := range list[1:] {
		if p.Met && p.Rate > best.Rate/0.97*1.001 {
			t.Errorf("%s serves %v, and the best, %s, %v", &p, p.Rate, &best, best.Rate)
		}
	}
	if l := best.Latency; l.TTFT > q.Targets.TTFT || l.ITL > q.Targets.ITL {
		t.Errorf("latency %+v", l)
	}

	q.Rate = best.Rate / 2
	fewer := propose.Propose(q)[0]
	if !fewer.Met || fewer.GPUs > 5 || fewer.Rate < q.Rate {
		t.Errorf("half of the rate needs %+v", fewer)
	}
	q.Rate = best.Rate * 2
	none := propose.Propose(q)
	if none[0].Met || !strings.Contains(propose.Why(q, none), "No fleet of 8 GPUs serves") {
		t.Errorf("twice the rate is served by %+v: %s", none[0], propose.Why(q, none))
	}
	q.Rate, q.Targets.ITL = 0, time.Millisecond
	none = propose.Propose(q)
	if none[0].Met || !strings.Contains(propose.Why(q, none), "No fleet of 8 GPUs meets the targets") {
		t.Errorf("an ITL of 1 ms is met by %+v: %s", none[0], propose.Why(q, none))
	}
	q.GPUs = 0
	if got := propose.Propose(q); len(got) != 0 {
		t.Errorf("without GPUs: %v", got)
	}
}

// The division of separate roles is the best of all divisions.
func TestSplitIsTheBest(t *testing.T) {
	q := question(t, 1)
	for _, prompt := range []float64{500, 3000, 8000} {
		q.Shape.Prompt = prompt
		var found *propose.Proposal
		for _, p := range propose.Propose(q) {
			if len(p.Pools) == 2 {
				found = &p
			}
		}
		best := 0.0
		for n := 1; n < q.GPUs; n++ {
			fixed := q
			fixed.Engines = q.Engines
			best = max(best, propose.RateOf(fixed, n, q.GPUs-n))
		}
		if found == nil || found.Rate < 0.999*best {
			t.Errorf("prompts of %v tokens: %+v, and the best division serves %v", prompt, found, best)
		}
	}
}

// A fleet with a small KV cache is proposed only where it serves clearly more.
func TestSmallKV(t *testing.T) {
	q := question(t, 1)
	small := q.Engines[0]
	small.SmallKV = true
	q.Engines = append(q.Engines, small)
	if best := propose.Propose(q)[0]; best.Pools[0].Engine.SmallKV {
		t.Errorf("an equal engine with a small KV cache is proposed: %s", &best)
	}
	q.Engines[1].KVTokens *= 2
	q.Engines[0].KVTokens = 20_000
	q.Engines[1].KVTokens = 40_000
	if best := propose.Propose(q)[0]; !best.Pools[0].Engine.SmallKV {
		t.Errorf("a small KV cache for twice as many requests is not proposed: %s", &best)
	}
}

// Whatever is asked, proposals are within the GPUs, in order, and can be printed.
func TestProposeWhateverIsAsked(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 0))
		q := question(t, []int{1, 2, 4, 8}[:1+rng.IntN(4)]...)
		q.GPUs = rng.IntN(70)
		q.Shape = capacity.Shape{Prompt: 1 + 9000*rng.Float64(), Answer: 1 + 900*rng.Float64(), PromptSpread: rng.Float64(), Cached: rng.Float64()}
		q.Targets = capacity.Targets{
			TTFT: time.Duration(rng.IntN(2000)) * time.Millisecond, ITL: time.Duration(rng.IntN(30)) * time.Millisecond,
			E2E: time.Duration(rng.IntN(2)) * 5 * time.Second, Quantile: 0.5 + rng.Float64()/2.1,
		}
		q.Rate = float64(rng.IntN(2)) * 100 * rng.Float64()
		list := propose.Propose(q)
		for i, p := range list {
			if p.GPUs > q.GPUs || p.GPUs <= 0 || p.Rate < 0 || p.SlowRate > p.Rate*1.01+1e-3 || p.Met && p.Rate < q.Rate {
				t.Fatalf("seed %d: %+v", seed, p)
			}
			if i > 0 && p.Met && !list[i-1].Met {
				t.Fatalf("seed %d: %s meets the targets and is after one that does not", seed, &p)
			}
		}
		if len(list) > 0 {
			var b bytes.Buffer
			propose.Write(&b, list, 5)
			if why := propose.Why(q, list); why == "" || b.Len() == 0 {
				t.Fatalf("seed %d: nothing is printed", seed)
			}
		}
	}
}

// The configuration has the fleet, its options and the targets.
func TestConfig(t *testing.T) {
	q := question(t, 2)
	p := propose.Proposal{Pools: []propose.Pool{{Role: fleet.Prefill, Replicas: 1, Engine: q.Engines[0]}, {Role: fleet.Decode, Replicas: 3, Engine: q.Engines[0]}}}
	p.Pools[1].Engine.SmallKV = true
	d := propose.Deployment{Model: "m", Path: "/m", Engine: "vllm", GPU: "H200", Context: 131072, StartUp: time.Minute, Quantization: "fp8"}
	got := string(d.Config(q, &p))
	for _, want := range []string{
		"role: prefill\n    count: 1\n    min: 1\n    max: 3\n", "role: decode\n    count: 3\n", "tensor-parallel-size: 2\n",
		"kv-cache-dtype: fp8\n", "kv-transfer-config: {kv_connector: NixlConnector", "quantization: fp8\n", "itl: 10ms\n", "connector: local\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "max-model-len") {
		t.Errorf("the context is bounded where the cache holds all of it:\n%s", got)
	}
	p.Pools[0].Engine.KVTokens = 100_000
	if got := string(d.Config(q, &p)); !strings.Contains(got, "max-model-len: 89088\n") {
		t.Errorf("the context is not bounded by the cache:\n%s", got)
	}
}
