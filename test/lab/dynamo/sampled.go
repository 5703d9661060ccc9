package dynamo

import (
	"cmp"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// profileOf returns the known speeds of the engines as a profile: prefill from one pool, decode from the other. It returns
// nil if a pool's speed is unknown.
func profileOf(roles fleetPools) *Profile {
	first, second := roles.prefill, roles.decode
	if first == nil {
		first = second
	}
	if second == nil {
		second = first
	}
	if first == nil || first.Configured.Engine.Timing == nil || second.Configured.Engine.Timing == nil {
		return nil
	}

	out := &Profile{Prefill: prefillPoints(first.Configured)}
	out.Decode, out.MaxKVTokens = decodePoints(second.Configured)
	return out
}

// The grid at which engines without a profile are sampled, as Dynamo does with its estimates: prompts and contexts in tokens, and shares
// of the KV cache.
var (
	sampledPrompts  = []int{128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384}
	sampledContexts = []int{256, 512, 1024, 2048, 3072, 4096, 8192, 16384}
	sampledUsages   = []float64{0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}
)

// prefillPoints returns the measured prompts of a pool's engine, or prompts computed from its timing.
func prefillPoints(c *plan.Configured) (out []PrefillPoint) {
	gpus := float64(max(1, c.GPUs))
	if p, ok := c.Engine.Timing.(*perfmodel.Profile); ok {
		for _, m := range p.Measured().Prefill {
			rate := cmp.Or(m.Rate, 1e3*m.Tokens/m.Milliseconds/gpus)
			out = append(out, PrefillPoint{ISL: m.Tokens, TTFT: m.Milliseconds, Throughput: rate})
		}
		return out
	}
	for _, tokens := range sampledPrompts {
		took := passTime(promptTime(&c.Engine, tokens))
		out = append(out, PrefillPoint{ISL: float64(tokens), TTFT: took, Throughput: 1e3 * float64(tokens) / took / gpus})
	}
	return out
}

// promptTime returns the time of a prompt, which takes several passes if it is long.
func promptTime(e *capacity.Engine, tokens int) (sum time.Duration) {
	limit := cmp.Or(e.MaxBatchedTokens, DefaultLimits().MaxBatchedTokens)
	for done := 0; done < tokens; {
		next := min(done+limit, tokens)
		sum += e.Timing.Prefill(perfmodel.Prefill{Requests: 1, Input: next, Prefix: done})
		done = next
	}
	return sum
}

// decodePoints returns the measured steps of a pool's engine, or steps computed from its timing, and the tokens of its KV
// cache.
func decodePoints(c *plan.Configured) (out []DecodePoint, capacity float64) {
	gpus := float64(max(1, c.GPUs))
	point := func(usage, context, ms, rate float64) {
		requests := max(1, usage*capacity/context)
		rate = cmp.Or(rate, 1e3*requests/ms/gpus)
		out = append(out, DecodePoint{KVUsage: usage, Context: context, ITL: ms, Throughput: rate})
	}

	if p, ok := c.Engine.Timing.(*perfmodel.Profile); ok {
		capacity = p.Measured().KVTokens
		for _, m := range p.Measured().Decode {
			point(m.Usage, m.Context, m.Milliseconds, m.Rate)
		}
		return out, capacity
	}
	tokens := cmp.Or(c.Engine.KVTokens, DefaultLimits().MaxKVTokens)
	capacity = float64(tokens)
	for _, context := range sampledContexts {
		for _, usage := range sampledUsages {
			n := int(usage * capacity / float64(context))
			if n < 1 {
				continue
			}
			took := c.Engine.Timing.Decode(perfmodel.Decode{Requests: n, Context: n * context, Capacity: tokens})
			point(usage, float64(context), passTime(took), 0)
		}
	}
	return out, capacity
}

// passTime returns the time of a pass in milliseconds, at least a microsecond.
func passTime(d time.Duration) float64 { return max(1e-3, 1e3*d.Seconds()) }
