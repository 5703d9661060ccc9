package fleet

import "cmp"

// Source is where a figure of an engine was read.
type Source uint8

// The sources. The zero Source is of a figure that is unknown.
const (
	NoSource Source = iota
	FromMetrics
	FromModels  // the list of models
	FromOptions // a page of the engine's options: of SGLang and llama.cpp
	FromEvents  // the first event of full attention
)

var sourceNames = [...]string{"", "metrics", "models", "options", "events"}

// String returns the word for the source; empty for NoSource.
func (s Source) String() string { return sourceNames[min(int(s), len(sourceNames)-1)] }

// Figure is a number that an engine reports of itself. A Value of 0 is unknown.
type Figure struct {
	Value  int
	Source Source
}

// Set replaces the figure by a value that was read; 0 is none.
func (f *Figure) Set(value int, from Source) {
	if value > 0 {
		*f = Figure{value, from}
	}
}

// Figures are the numbers that a worker's engine reports of itself to a process that asks it. They are no settings: a configured number
// counts in place of the reported one, and the difference is reported. The block size of an engine's events counts before all others,
// because the events have that size in any case.
type Figures struct {
	// BlockSize is in tokens. Of an engine with decode context parallelism, its events have the size of all parts together, and its metrics
	// the size of one part.
	BlockSize Figure
	// Capacity is the KV cache of one rank in tokens.
	Capacity Figure
	// ContextLength is the most tokens of a prompt and its answer.
	ContextLength Figure
	// Requests is the number of requests that run at once, and BatchTokens the number of prompt tokens of a pass.
	Requests, BatchTokens Figure
}

// DefaultBlockSize is the number of tokens of a block while no engine has reported another: vLLM's default.
const DefaultBlockSize = 16

// MaxSlots bounds the requests that a rank runs at once.
const MaxSlots = 1 << 20

// Slots returns the number of requests that a rank of the worker's engine runs at once: as configured, or as the engine reports it. It is 0
// while neither is known.
func (w *Worker) Slots() int { return cmp.Or(w.MaxRequests, w.Figures.Requests.Value) }

// TokensPerBlock returns the block size of the worker's engine in tokens: of its events, as configured, or as the engine reports it
// otherwise. It is 0 while none of them is known.
func (w *Worker) TokensPerBlock() int {
	if w.Figures.BlockSize.Source == FromEvents {
		return w.Figures.BlockSize.Value
	}
	return cmp.Or(w.BlockSize, w.Figures.BlockSize.Value)
}
