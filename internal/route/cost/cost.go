package cost

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// Function judges candidates. *[Delay] and *[Weights] are the two there are.
type Function interface {
	// Score judges one candidate for a request.
	Score(r *Request, f *Facts) Score
	// Validate reports everything that is wrong with its weights.
	Validate() error
	// String is its name.
	String() string
}

// The names of the functions.
const (
	NameDelay  = "delay"
	NameDynamo = "dynamo"
)

// Request is what every candidate is judged for.
type Request struct {
	// BlockSize is in tokens; less than 1 counts as 1.
	BlockSize int
	// PromptTokens is the length of the prompt.
	PromptTokens int
	// Computed says that the prompt comes computed, from a prefill worker: it takes room, and no time.
	Computed bool
	// MinPrefillTokens is the smallest booked prefill of all candidates; only the decay of
	// [Weights.OverlapDecay] needs it.
	MinPrefillTokens int64
	// Line is how long prompts take on workers of the pool; only [Delay] needs it.
	Line perfmodel.Line
}

// Blocks is the number of blocks the prompt occupies, the incomplete last one included.
func (r *Request) Blocks() int {
	bs := max(1, r.BlockSize)
	return (r.PromptTokens + bs - 1) / bs
}

// Facts is what is known of one candidate rank.
type Facts struct {
	// Overlap is the blocks of the prompt that the rank holds: the device's from the root,
	// each slower tier's past the faster ones.
	Overlap [fleet.Tiers]int
	// Booked is the load that this router has placed there.
	Booked fleet.Amount
	// Foreign is the requests there that no router has booked, as [fleet.Load.Foreign] counts them.
	Foreign int64
	// Wait is how long the prefills booked there will still take, and Pace how much longer than
	// by the Request's Line they take there, where 0 counts as 1; only [Delay] needs them.
	Wait time.Duration
	Pace float64
	// Capacity is the rank's cache in blocks; 0 is unknown.
	Capacity int
}

// Cached is the number of prompt tokens that the rank need not compute. An engine computes
// at least the last token of a prompt, so it is less than the prompt's length.
func (f *Facts) Cached(r *Request) int {
	blocks := 0
	for _, n := range f.Overlap {
		blocks += n
	}
	return max(0, min(blocks*max(1, r.BlockSize), r.PromptTokens-1))
}

// Score is the cost of a candidate and the named terms it is the sum of. Lower is better. Terms
// are in milliseconds by [Delay], and in blocks by [Weights].
type Score struct {
	Total    float64
	Wait     float64 // by Delay: for the prefills that are booked here
	Prefill  float64 // what is to be computed of this prompt, as the function weighs it; by Weights with what is booked
	Decode   float64 // what running requests occupy; by Weights with this one
	Requests float64 // by Weights: booked requests
	Foreign  float64 // requests the engine reports beyond those we booked
	// Own is, by Delay, what the prompt takes to compute here, of which Prefill is a multiple.
	Own float64
	// Credit is, by Weights, the overlap's worth and Ahead what is booked before this request, both
	// in blocks and not scaled. They are parts of Prefill.
	Credit, Ahead float64
	// Uncached is the prompt tokens that this rank would have to compute.
	Uncached int
	// Preference is what the terms' sum was multiplied by for the taints of the worker; 0 where the
	// request prefers none.
	Preference float64 `json:",omitempty"`
}

// Score judges one candidate, as Dynamo's default selector does.
//
//	prefill  = PrefillScale · max(0, (booked prefill + prompt)/blockSize − credit)
//	credit   = Overlap · decay · device + Tier · (host, disk, external)
//	decay    = 1/(1 + OverlapDecay · (booked prefill − least booked prefill) / prompt)
//	decode   = Decode · (booked blocks + blocks of this prompt)
//	requests = Requests · booked requests
//
// Of a prompt that comes computed there is no prefill, as Dynamo's decode routers have it.
//
// Dynamo counts blocks that several running requests share once, and lets those of an answer
// whose length is known shrink; here every request's count, as its booking has them.
func (w *Weights) Score(r *Request, f *Facts) (s Score) {
	bs := float64(max(1, r.BlockSize))
	blocks := float64(r.Blocks())
	decay := 1.0
	if w.OverlapDecay > 0 && blocks > 0 {
		ahead := float64(f.Booked.PrefillTokens-r.MinPrefillTokens) / bs
		decay = 1 / (1 + w.OverlapDecay*max(0, ahead)/blocks)
	}
	for t, n := range f.Overlap {
		credit := w.Tier[t] * float64(n)
		if fleet.Tier(t) == fleet.Device {
			credit *= decay
		}
		s.Credit += w.Overlap * credit
	}
	s.Ahead = float64(max(0, f.Booked.PrefillTokens)) / bs
	s.Prefill = w.PrefillScale * max(0, s.Ahead+float64(r.PromptTokens)/bs-s.Credit)
	s.Uncached = r.PromptTokens - f.Cached(r)
	if r.Computed {
		s.Credit, s.Ahead, s.Prefill, s.Uncached = 0, 0, 0, 0
	}
	s.Decode = w.Decode * (float64(max(0, f.Booked.DecodeBlocks)) + blocks)
	s.Requests = w.Requests * float64(max(0, f.Booked.Requests))
	s.Total = s.Prefill + s.Decode + s.Requests
	return s
}
