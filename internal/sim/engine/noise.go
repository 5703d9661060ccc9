package engine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Noise makes passes last longer or shorter than Timing gives. The zero Noise changes nothing. The constants
// below are sizes that were measured on real engines.
type Noise struct {
	// Seed determines the noise, so that equal inputs have equal outputs.
	Seed uint64
	// Sigma is the standard deviation of the logarithm of a factor that each pass has. The factor is
	// log-normal with the mean 1, and independent of other passes. Default 0: none.
	Sigma float64
	// StallEvery is the mean time of work between two stalls; default 0: none. A stall lasts for a time that
	// is uniform between StallFrom and StallTo.
	StallEvery, StallFrom, StallTo time.Duration
	// ColdPrompts is the number of first prompts of an engine that make their pass ColdTime longer,
	// because kernels are compiled for them. Default 0.
	ColdPrompts int
	ColdTime    time.Duration
	// Beside reports whether another engine on the same hardware is computing. Then the prefill part of a pass
	// takes BesidePrefill times as long, and the decode part BesideDecode times. Nil: no such engine.
	Beside                      func() bool
	BesidePrefill, BesideDecode float64
	// SlowFactor is by how much all passes are longer from SlowFrom on for SlowSpan, counted from Began.
	// Default 0: never.
	SlowFactor         float64
	SlowFrom, SlowSpan time.Duration
	Began              time.Time
}

// The measured sizes of noise.
const (
	// MeasuredStallFrom and MeasuredStallTo are the lengths of stalls that operators of SGLang saw (pull request
	// sgl-project/sglang#9241: 100 to 300 ms, by Python's garbage collector). vLLM's pull request 33575 has 50
	// to 200 ms. Issue vllm-project/vllm#48229 has 0.7 to 2 s, once in a batch of work.
	MeasuredStallFrom = 100 * time.Millisecond
	MeasuredStallTo   = 300 * time.Millisecond
	// MeasuredStallEvery is ten times the 1.5 s of sgl-project/sglang#9241, because engines have frozen most of
	// their heap since (vllm-project/vllm#24008 and 44363).
	MeasuredStallEvery = 15 * time.Second
	// MeasuredColdTime is the additional time that the first prompts of a vLLM took in our own test of starved
	// workers: each of three. Twelve Triton kernels that were compiled for a first request took 14 s in all,
	// 1.2 s each (syv-ai/qwen38-27b-rtx3090, issue 155).
	MeasuredColdTime = 1500 * time.Millisecond
	// MeasuredBesidePrefill and MeasuredBesideDecode are from two engines that share an A100 through MPS (Pebble,
	// "NVIDIA MPS vs dedicated GPU allocation for LLM inference", Qwen3-4B): the time to the first token grew by
	// 1.4 %, and the time for each further one by 19.5 %.
	MeasuredBesidePrefill = 1.014
	MeasuredBesideDecode  = 1.195
)

// Validate reports everything that is wrong with the noise.
func (n Noise) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(!(n.Sigma >= 0 && n.Sigma <= 3), "noise is %v: it must be 0 to 3", n.Sigma)
	refuse(n.StallEvery < 0 || n.StallFrom < 0 || n.StallTo < n.StallFrom, "stalls are negative")
	refuse(n.ColdPrompts < 0 || n.ColdTime < 0, "cold prompts are negative")
	refuse(!(n.SlowFactor >= 0 && n.SlowFactor < 1e6), "the factor of a slow time is %v: it must be positive", n.SlowFactor)
	refuse(n.SlowFrom < 0 || n.SlowSpan < 0, "a slow time is negative")
	return errors.Join(errs...)
}

// noise is the state of an engine's noise.
type noise struct {
	cfg  Noise
	rng  *rand.Rand
	cold int           // prompts so far, until there were ColdPrompts
	left time.Duration // work until the next stall
}

func newNoise(cfg Noise) *noise {
	n := &noise{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6e6f697365))}
	n.left = n.untilStall()
	return n
}

// untilStall draws the work between two stalls. Stalls are a Poisson process over the time of passes.
func (n *noise) untilStall() time.Duration {
	return time.Duration(n.rng.ExpFloat64() * float64(n.cfg.StallEvery))
}

// pass returns how long a pass lasts whose parts would take prefill and decode, and in which some prompts
// begin.
func (n *noise) pass(prefill, decode time.Duration, prompts int, now time.Time) time.Duration {
	c := &n.cfg
	if c.Beside != nil && c.Beside() {
		prefill = time.Duration(float64(prefill) * c.BesidePrefill)
		decode = time.Duration(float64(decode) * c.BesideDecode)
	}

	factor := 1.0
	if c.Sigma > 0 {
		factor = math.Exp(c.Sigma*n.rng.NormFloat64() - c.Sigma*c.Sigma/2)
	}
	if c.SlowFactor > 0 {
		at := now.Sub(c.Began)
		if at >= c.SlowFrom && at < c.SlowFrom+c.SlowSpan {
			factor *= c.SlowFactor
		}
	}
	took := time.Duration(factor * float64(prefill+decode))

	if c.StallEvery > 0 {
		for n.left -= took; n.left <= 0; n.left += n.untilStall() {
			took += c.StallFrom + time.Duration(n.rng.Float64()*float64(c.StallTo-c.StallFrom))
		}
	}
	for ; prompts > 0 && n.cold < c.ColdPrompts; prompts-- {
		n.cold++
		took += c.ColdTime
	}
	return took
}
