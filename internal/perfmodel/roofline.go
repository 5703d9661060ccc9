package perfmodel

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Weights is the size of a model, as far as the duration of passes depends on it.
type Weights struct {
	// Parameters is the number of all weights, and Active the number that one token uses: fewer in a mixture of experts.
	Parameters, Active float64
	// Bytes is the size of a weight, and KVBytes the size of the KV cache of a token.
	Bytes, KVBytes float64
	// Layers is the number of layers, and Hidden the width of the state between them. Attention is the width of all query heads
	// of a layer.
	Layers, Hidden, Attention int
	// Heads and KVHeads are the heads of queries and of keys. Context is the longest prompt and answer in tokens. 0 is unknown.
	Heads, KVHeads, Context int
}

// Roofline is the timing of an engine without a profile: each pass lasts as long as its slowest resource, which is arithmetic or
// the bandwidth of memory, and a fixed time. See Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
//
//	resource     work of a pass
//	arithmetic   2 operations for each active weight and new token, and attention: 4 · width · context for each token and layer
//	memory       the weights once, and the KV cache of all contexts
//	link         two all-reduces of the new tokens' states for each layer, with tensor parallelism
//
// The shares of the data sheet's figures that engines reach are chosen to meet the profile of a Llama-3.1-8B in FP8 on an H200: its
// prompts, its decode steps and their slope. Other models and GPUs deviate by some tens of percent: see [RooflineDoubt].
type Roofline struct {
	Model Weights
	GPU   GPU
	// GPUs is the number of GPUs over which tensor parallelism divides the model; 0 means 1.
	GPUs int
}

const (
	// arithmeticShare and memoryShare are the shares of the data sheet's figures that a pass reaches.
	arithmeticShare = 0.5
	memoryShare     = 0.8
	linkShare       = 0.6
	// prefillBase and stepBase are the fixed times of a pass: the scheduler and launches of kernels. A prompt's includes its way through
	// the engine's server. stepRequest is the time of a step for each of its requests: scheduling and sampling.
	prefillBase = 14 * time.Millisecond
	stepBase    = 2 * time.Millisecond
	stepRequest = 20 * time.Microsecond
	// reduceBase is the fixed time of an all-reduce.
	reduceBase = 10 * time.Microsecond
	// usable is the share of a GPU's memory that an engine uses, as vLLM's gpu-memory-utilization, and spare the memory that it needs
	// besides weights and KV cache.
	usable = 0.9
	spare  = 3e9
)

// RooflineDoubt is the standard deviation of the logarithm of the ratio between an engine's times and a roofline's times, as assumed
// before the first observation.
const RooflineDoubt = 0.35

// ProfileDoubt is the same for a profile of this engine.
const ProfileDoubt = 0.1

// Prefill returns the time of the prompts of a pass.
func (r Roofline) Prefill(w Prefill) time.Duration {
	fresh := float64(w.Input - w.Prefix)
	if w.Requests <= 0 || fresh <= 0 {
		return 0
	}

	// The new tokens of a prompt see on average the prefix and half of each other.
	context := (float64(w.Prefix) + fresh/2) / float64(w.Requests)
	operations := fresh * (2*r.Model.Active + 4*float64(r.Model.Attention)*float64(r.Model.Layers)*context)
	bytes := r.Model.Parameters*r.Model.Bytes + float64(w.Prefix)*r.Model.KVBytes
	return profiled(float64(prefillBase)/1e6 + r.pass(operations, bytes, fresh))
}

// Decode returns the time of a decode step.
func (r Roofline) Decode(w Decode) time.Duration {
	if w.Requests <= 0 {
		return 0
	}
	n := float64(w.Requests)
	operations := n*2*r.Model.Active + 4*float64(r.Model.Attention)*float64(r.Model.Layers)*float64(w.Context)
	bytes := r.weightsRead(n)*r.Model.Bytes + float64(w.Context)*r.Model.KVBytes
	return profiled((float64(stepBase)+n*float64(stepRequest))/1e6 + r.pass(operations, bytes, n))
}

// weightsRead returns the number of weights that a step of n requests reads. In a mixture of experts, each token chooses some experts, and
// the step reads all that are chosen by any: all but the share that no token chooses.
func (r Roofline) weightsRead(n float64) float64 {
	share := r.Model.Active / r.Model.Parameters
	return r.Model.Parameters * (1 - math.Pow(1-min(share, 1), n))
}

// pass returns the milliseconds that operations, bytes of memory and the states of new tokens take.
func (r Roofline) pass(operations, bytes, tokens float64) float64 {
	n := float64(max(1, r.GPUs))
	flops := r.GPU.FLOPS16
	if r.Model.Bytes <= 1 {
		flops = r.GPU.FLOPS8
	}
	seconds := max(operations/(n*flops*arithmeticShare), bytes/(n*r.GPU.Bandwidth*memoryShare))
	if n > 1 {
		moved := 2 * (n - 1) / n * tokens * float64(r.Model.Hidden) * 2
		seconds += 2 * float64(r.Model.Layers) * (reduceBase.Seconds() + moved/(r.GPU.Link*linkShare))
	}
	return 1e3 * seconds
}

// KVTokens returns the number of tokens that the KV cache holds beside the weights; 0 if the weights do not fit. GPUs that are more than
// the model has heads of keys hold the same heads twice.
func (r Roofline) KVTokens() int {
	n := float64(max(1, r.GPUs))
	left := n*(r.GPU.Memory*usable-spare) - r.Model.Parameters*r.Model.Bytes
	copies := 1.0
	if r.Model.KVHeads > 0 {
		copies = max(1, n/float64(r.Model.KVHeads))
	}
	return int(max(0, left) / max(1, r.Model.KVBytes*copies))
}

// Validate reports everything that is wrong with the model's size.
func (w Weights) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    float64
		most float64
	}{
		{"parameters", w.Parameters, 1e14}, {"active parameters", w.Active, w.Parameters}, {"bytes of a weight", w.Bytes, 8},
		{"bytes of a token's KV cache", w.KVBytes, 1e9}, {"layers", float64(w.Layers), 1e4}, {"hidden width", float64(w.Hidden), 1e6},
		{"attention width", float64(w.Attention), 1e6},
	} {
		if !(f.v > 0 && f.v <= f.most) {
			errs = append(errs, fmt.Errorf("%s: %v must be positive and at most %v", f.name, f.v, f.most))
		}
	}
	return errors.Join(errs...)
}
