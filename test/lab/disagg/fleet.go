package disagg

import (
	"fmt"
	"slices"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
)

// fleet is the engines of one run. Without prefill workers, all engines do both.
type fleet struct {
	prefill, decode     int // workers
	prefillTP, decodeTP int // GPUs of each
	tokens              int // max_num_batched_tokens of engines that decode; those that only prefill have vLLM's default
}

func (f fleet) gpus() int { return f.prefill*f.prefillTP + f.decode*f.decodeTP }

func (f fleet) String() string {
	if f.prefill == 0 {
		return fmt.Sprintf("%d × TP %d, %d tokens", f.decode, f.decodeTP, f.tokens)
	}
	return fmt.Sprintf("%d × TP %d prefill, %d × TP %d decode", f.prefill, f.prefillTP, f.decode, f.decodeTP)
}

// mode is a row of the tables: a way to use the GPUs.
type mode struct {
	name   string
	fleets func(gpus int) []fleet
	at     string // where prompts are computed
}

// The modes. The first one is the baseline of the others.
var modes = []mode{
	{"aggregated", aggregated, ""},
	{"disaggregated", disaggregated, "remote"},
	{"conditional", disaggregated, "auto"},
}

// sizes are the sizes of tensor parallelism that are tried.
var sizes = []int{1, 2, 4}

// aggregated returns the candidates of fleets whose engines do both.
func aggregated(gpus int) (list []fleet) {
	for _, tp := range append(sizes, gpusOfNode) {
		for _, tokens := range []int{8192, 16384, 4096, 2048, 1024} {
			list = append(list, fleet{decode: gpus / tp, decodeTP: tp, tokens: tokens})
		}
	}
	return list
}

// disaggregated returns the candidates of fleets with separate roles: every split of the GPUs.
func disaggregated(gpus int) (list []fleet) {
	for _, p := range sizes {
		for _, d := range sizes {
			for n := 1; n*p < gpus; n++ {
				if left := gpus - n*p; left%d == 0 {
					list = append(list, fleet{prefill: n, prefillTP: p, decode: left / d, decodeTP: d, tokens: maxTokens})
				}
			}
		}
	}

	// Even splits come first, because they are nearer to the best one, and a search ends sooner after a good candidate.
	uneven := func(f fleet) int { return max(f.prefill*f.prefillTP, f.decode*f.decodeTP) }
	slices.SortStableFunc(list, func(a, b fleet) int { return uneven(a) - uneven(b) })
	return list
}

// near returns fleets with k times as many GPUs that resemble a fleet: the same sizes of engines, and about the same split.
func (f fleet) near(k int) (list []fleet) {
	gpus := k * f.gpus()
	if f.prefill == 0 {
		f.decode *= k
		return []fleet{f}
	}
	for n := k*f.prefill - k + 1; n < k*f.prefill+k; n++ {
		left := gpus - n*f.prefillTP
		if n > 0 && left > 0 && left%f.decodeTP == 0 {
			list = append(list, fleet{n, left / f.decodeTP, f.prefillTP, f.decodeTP, f.tokens})
		}
	}
	return list
}

// config returns the simulation of a fleet.
func (f fleet) config(one *perfmodel.Profile, s physics) sim.Config {
	of := func(gpus, tokens int) engine.Config {
		return engine.Config{
			Blocks: cacheTokens(gpus) / blockTokens, BlockSize: blockTokens, MaxNumSeqs: maxNumSeqs, MaxNumBatchedTokens: tokens,
			Timing: parallel{one, gpus, s}, Overlap: s.overlap,
		}
	}
	cfg := sim.Config{
		Workers: f.decode, GPUs: f.decodeTP, Engine: of(f.decodeTP, f.tokens),
		Transfer: sim.Transfer{
			Base: transferBase, TokenBytes: tokenBytes, NodeBandwidth: nodeBandwidth * s.transfer,
			NetworkBandwidth: networkBandwidth * s.transfer, Nodes: (f.gpus() + gpusOfNode - 1) / gpusOfNode,
		},
	}
	if f.prefill > 0 {
		prefill := of(f.prefillTP, maxTokens)
		cfg.Prefill = f.prefill
		cfg.PrefillGPUs = f.prefillTP
		cfg.PrefillEngine = &prefill
	}
	return cfg
}
