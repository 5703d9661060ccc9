// Package capacity computes how much load engines serve within latency targets.
//
// It turns the duration of passes (perfmodel.Timing) into the latencies of requests that arrive at a rate: time to first token, time
// between tokens, time of whole requests, each at a quantile. All functions are pure.
package capacity

import (
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
)

// Engine is the performance of one worker.
type Engine struct {
	// Timing is the duration of its passes.
	Timing perfmodel.Timing
	// KVTokens is the capacity of its KV cache in tokens; 0 is unknown, and counts as without a bound.
	KVTokens int
	// MaxSeqs is the number of requests that run at once, and MaxBatchedTokens the tokens of one pass; 0 means 256 and 8192.
	MaxSeqs, MaxBatchedTokens int
	// StepTokens is the number of tokens of an answer that a decode step makes in the mean, by speculative decoding;
	// 0 means 1.
	StepTokens float64
}

// Shape describes the requests of a model.
type Shape struct {
	// Prompt and Answer are mean numbers of tokens.
	Prompt, Answer float64
	// PromptSpread and AnswerSpread are standard deviations divided by the means.
	PromptSpread, AnswerSpread float64
	// Cached is the share of the prompt tokens that is found in caches, 0 to 1.
	Cached float64
	// Bursts is the variance of the number of requests that arrive in a time, by the variance of independent arrivals; less than 1 means 1.
	Bursts float64
}

// Targets are bounds of latencies. 0 is no bound.
type Targets struct {
	// TTFT is the time to the first token, ITL the mean time between the tokens of a request, and E2E the time of a whole request.
	TTFT, ITL, E2E time.Duration
	// Quantile is the share of requests that are to be within the bounds, such as 0.9; 0 means 0.9.
	Quantile float64
}
