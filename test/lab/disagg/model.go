package disagg

import (
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
)

// The parameters of engines and transfers, with their sources. They were committed before the first comparison, and are
// not changed to make a result better.

// Llama-3.1-8B in FP8 on an H200, as the profile. Sizes come from the model's configuration on Hugging Face.
const (
	layers       = 32
	hidden       = 4096
	kvHeads      = 8
	headSize     = 128
	weightBytes  = 8.03e9                              // 8.03 billion parameters of 8 bits
	tokenBytes   = 2 * layers * kvHeads * headSize * 2 // 131,072: keys and values of 16 bits
	profileCache = 945029                              // tokens, the max_kv_tokens of the profile
)

// What tensor parallelism costs. The profile has TP 1 alone, so other sizes are a model: see parallel.
const (
	// memoryBandwidth is an H200's, by NVIDIA's data sheet, in bytes/s.
	memoryBandwidth = 4.8e12
	// allReduceLatency is the time of vLLM's custom all-reduce of half a megabyte on two H100 (vllm-project/vllm#24111).
	allReduceLatency = 7 * time.Microsecond
	// allReduceBandwidth is the target of an H100 node by NCCL's maintainer (NVIDIA/nccl#1442), in bytes/s.
	allReduceBandwidth = 370e9
	allReduces         = 2 * layers // of a pass: after attention and after the feed-forward network
	activationBytes    = 2 * hidden // of a token in one all-reduce, with 16 bits
)

// Transfers of KV caches between GPUs.
const (
	// transferBase is the time in which vLLM's NixlConnector launched one transfer (vllm-project/vllm#23780).
	transferBase = 3 * time.Millisecond
	// nodeBandwidth is the throughput of UCX, which NIXL uses, between two H20 by NVLink 4, in messages of 1 MB
	// (openucx/ucx#10936), in bytes/s. A plain copy reaches 380e9 (NVIDIA/nccl#1264).
	nodeBandwidth = 80e9
	// networkBandwidth is the throughput of nixlbench with UCX over one port of 400 Gb/s, 85 % of its line rate
	// (ai-dynamo/nixl#1647). Each GPU has one port, as in NVIDIA's HGX nodes.
	networkBandwidth = 42.6e9
)

// gpusOfNode is the number of GPUs of an HGX node.
const gpusOfNode = 8

// maxNumSeqs is vLLM's default of max_num_seqs for a server on a GPU with 70 GB or more, and maxTokens its default of
// max_num_batched_tokens there.
const (
	maxNumSeqs = 1024
	maxTokens  = 8192
)

// blockTokens is the size of a block. vLLM's default is 16; larger ones make the simulation faster.
const blockTokens = 64

// physics has assumptions of a simulation beyond the parameters, to show how far a result depends on them.
type physics struct {
	prefill, decode, transfer float64 // factors of the speed of engines and transfers
	overlap                   bool    // a pass lasts as long as the longer one of its parts, not as both
	noLaunch                  bool    // a prompt takes no time that does not depend on its tokens
}

// measured is without any change.
var measured = physics{prefill: 1, decode: 1, transfer: 1}

// parallel is the timing of an engine with tensor parallelism, after a profile of one GPU. This is a model, not a
// measurement. Reading the weights and all work that grows with tokens is divided by the number of GPUs. The rest of the
// time of the shortest pass is launches and scheduling, which remains. All-reduces are added.
type parallel struct {
	one  *perfmodel.Profile
	gpus int
	physics
}

// readWeights is the time in which one GPU reads all weights once.
func readWeights() time.Duration {
	seconds := weightBytes / memoryBandwidth
	return time.Duration(seconds * float64(time.Second))
}

// Prefill is the time of the prompts' part of a pass.
func (p parallel) Prefill(w perfmodel.Prefill) time.Duration {
	took := p.one.Prefill(w)
	if took == 0 {
		return 0
	}

	// The line through the two shortest prompts ends at the time of a pass without tokens.
	short := p.one.Prefill(perfmodel.Prefill{Requests: 1, Input: 100})
	longer := p.one.Prefill(perfmodel.Prefill{Requests: 1, Input: 1117})
	empty := short - (longer-short)*100/(1117-100)
	fixed := empty - readWeights()
	if p.noLaunch {
		took = max(0, took-fixed)
		fixed = 0
	}
	return p.divide(took, fixed, w.Input-w.Prefix, p.prefill)
}

// Decode is the time of the decode steps of a pass.
func (p parallel) Decode(w perfmodel.Decode) time.Duration {
	took := p.one.Decode(w)
	if took == 0 {
		return 0
	}
	empty := p.one.Decode(perfmodel.Decode{Requests: 1, Context: 378}) // the smallest batch of the profile
	return p.divide(took, empty-readWeights(), w.Requests, p.decode)
}

// divide spreads a time over the GPUs, except its fixed part, and adds the all-reduces of so many tokens.
func (p parallel) divide(took, fixed time.Duration, tokens int, speed float64) time.Duration {
	if p.gpus > 1 {
		n := float64(p.gpus)
		sent := 2 * (n - 1) / n * float64(tokens*activationBytes) / allReduceBandwidth
		took = fixed + time.Duration(float64(took-fixed)/n) + allReduces*(allReduceLatency+time.Duration(sent*float64(time.Second)))
	}
	return time.Duration(float64(took) / speed)
}

// cacheTokens is the KV capacity of an engine. Each further GPU adds its memory, of which the weights take a share once.
func cacheTokens(gpus int) int {
	one := float64(profileCache)*tokenBytes + weightBytes
	return int((one*float64(gpus) - weightBytes) / tokenBytes)
}
