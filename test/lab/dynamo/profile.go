package dynamo

import (
	"errors"
	"fmt"
	"math"
)

// Profile has the measurements that Dynamo's profiler made of one GPU.
type Profile struct {
	Prefill []PrefillPoint
	Decode  []DecodePoint
	// MaxKVTokens is the capacity of the KV cache.
	MaxKVTokens float64
}

// PrefillPoint is the time of a prompt: tokens, milliseconds to the first token, tokens per second of a GPU.
type PrefillPoint struct{ ISL, TTFT, Throughput float64 }

// DecodePoint is the time of decode steps: the share of the cache in use, the mean context in tokens, milliseconds between tokens, and
// tokens per second of a GPU.
type DecodePoint struct{ KVUsage, Context, ITL, Throughput float64 }

// mostPoints bounds a profile.
const mostPoints = 1024

// Validate returns an error for a profile that is not valid.
func (p *Profile) Validate() error {
	switch {
	case len(p.Prefill) < 2 || len(p.Decode) < 3:
		return fmt.Errorf("the profile has %d prefill and %d decode points: it must have 2 and 3 at least", len(p.Prefill), len(p.Decode))
	case len(p.Prefill) > mostPoints || len(p.Decode) > mostPoints:
		return fmt.Errorf("the profile has %d prefill and %d decode points: it may have %d of each", len(p.Prefill), len(p.Decode),
			mostPoints)
	case !(p.MaxKVTokens >= 1 && p.MaxKVTokens < 1e12):
		return errors.New("the profile must have the tokens of the KV cache")
	}
	for i, a := range p.Prefill {
		if !(a.ISL > 0 && a.ISL < 1e12 && a.TTFT > 0 && a.TTFT < 1e12 && a.Throughput > 0 && a.Throughput < 1e12) {
			return fmt.Errorf("prefill point %d is %v: its values must be positive", i, a)
		}
	}
	for i, a := range p.Decode {
		if !(a.KVUsage >= 0 && a.KVUsage < 1e12 && a.Context > 0 && a.Context < 1e12 && a.ITL > 0 && a.ITL < 1e12 &&
			a.Throughput > 0 && a.Throughput < 1e12) {
			return fmt.Errorf("decode point %d is %v: its values must be positive", i, a)
		}
	}
	return nil
}

// Samples returns a profile as the passes that Dynamo learns from before there are any others.
func (p *Profile) Samples() (prefill, decode []Sample) {
	for _, a := range p.Prefill {
		prefill = append(prefill, Sample{PromptTokens: a.ISL, Milliseconds: a.TTFT})
	}
	for _, a := range p.Decode {
		kv := math.RoundToEven(a.KVUsage * p.MaxKVTokens)
		requests := max(1, math.RoundToEven(kv/a.Context))
		decode = append(decode, Sample{Requests: requests, ContextTokens: kv, Milliseconds: a.ITL})
	}
	return prefill, decode
}
