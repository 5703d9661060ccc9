package cost

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// Function judges candidates. *[Delay] and *[Weights] implement it. Implementations are immutable.
type Function interface {
	// Score judges one candidate for a request. It overwrites s.
	Score(r *Request, f *Facts, s *Score)
	// Validate reports everything that is wrong with its weights.
	Validate() error
	// String returns its name.
	String() string
}

// The names of the functions.
const (
	NameDelay  = "delay"
	NameDynamo = "dynamo"
)

// Request is the request for which every candidate is judged.
type Request struct {
	// BlockSize is in tokens; less than 1 counts as 1.
	BlockSize int
	// PromptTokens is the length of the prompt.
	PromptTokens int
	// Computed means that the prompt comes computed from a prefill worker. It then occupies blocks, and needs the time of
	// its transfer alone.
	Computed bool
	// MinPrefillTokens is the smallest booked prefill of all candidates; only the decay of
	// [Weights.OverlapDecay] needs it.
	MinPrefillTokens int64
	// MostHeld is the most tokens of the prompt that one candidate holds on its device; only [Delay] needs it.
	MostHeld int
	// Mean is the number of requests on a candidate in the mean; only [Delay] needs it.
	Mean float64
	// Line and Decode are the learned times of prefills and of decode steps on the candidate's class of workers; only [Delay] needs
	// them.
	Line, Decode perfmodel.Line
	// Answer is the expected length of the answer in tokens, and Reuse how often a computed token is expected to be found in a cache,
	// at most 1; only [Delay] needs them.
	Answer, Reuse float64
	// Passes is the number of passes that a prompt adds in the mean, at most 1: a k-th part if k prompts share each pass. Only [Delay]
	// needs it.
	Passes float64
	// Transfers has the learned times of transfers of KV caches to the candidate's class of workers, over the tokens that the
	// receiver does not have, by the level of the place that both workers share; only [Delay] needs them.
	Transfers [fleet.Levels]perfmodel.Line
	// Onward is the number of tokens that go on to the decode worker when the candidate, a prefill worker, has computed the prompt; 0 if
	// it is not known, or if they take the same time from everywhere. Only [Delay] needs it.
	Onward int
	// Loads has the learned times of loads from caches outside engines to the candidate's class of workers, by tier; only [Delay] needs
	// them.
	Loads [fleet.Tiers]fleet.TierLoad
}

// Blocks is the number of blocks the prompt occupies, the incomplete last one included.
func (r *Request) Blocks() int {
	bs := max(1, r.BlockSize)
	return (r.PromptTokens + bs - 1) / bs
}

// context is the mean number of tokens that the request will have in the cache.
func (r *Request) context() float64 { return float64(r.PromptTokens) + r.Answer/2 }

// Facts are the measurements of one candidate rank.
type Facts struct {
	// Each is the number of the request's blocks in a block of the rank's engine; 0 counts as 1. All blocks below are the request's, but
	// for Booked.
	Each int
	// Overlap is the blocks of the prompt that the rank holds: the device's from the root,
	// each slower tier's past the faster ones.
	Overlap [fleet.Tiers]int
	// Evicting is the number of blocks of the prompt that the rank's device holds besides, and that the prompts that wait there will evict
	// before this one is computed.
	Evicting int
	// Pullable is the number of further blocks of the prompt that the rank could fetch from another worker's
	// cache; only [Delay] uses it.
	Pullable int
	// Source is the number of that worker among the sources of the decision, and FromSource the level of the place that it shares with the
	// rank. Toward is the level of the place that the rank, of a prefill worker, shares with the decode worker.
	Source             int16
	FromSource, Toward fleet.Level
	// Partners are the prefill workers by the place that they share with the rank, of a decode worker; nil if it has the same as all. Only
	// [Delay] uses them.
	Partners *Partners
	// OnNode and OnPeers count the blocks after Overlap that the rank can load from host memory: first OnNode from its own node, if other
	// engines have reported them, and then OnPeers from other nodes. Only [Delay] uses them.
	OnNode, OnPeers int
	// Outside counts the blocks after Overlap that the rank can load from caches outside engines, by tier, each after the faster ones. Only
	// [Delay] uses them.
	Outside [fleet.Tiers]int
	// View is the load of the rank by this router's bookings, the other routers' publications and the engine's reports. Unseen is the load
	// that other routers are expected to have placed there besides, without that this one knows it yet. Wait includes its prefills. Only
	// [Delay] uses Unseen, Wait, Age, Pace and Gathering.
	fleet.View
	Unseen fleet.Amount
	// Capacity is the rank's cache in blocks; 0 is unknown. Held is the number of blocks that it holds, used or not.
	Capacity, Held int
	// Store has the times that cached tokens take to load from slower tiers and from other nodes. It is nil if nothing is
	// known. Only [Delay] uses it.
	Store *fleet.Store
}

// Partners are the prefill workers that could compute a prompt for a decode worker, by the level of the place that they share with it: by
// how much the cheapest of them costs more than the cheapest of all; infinite if there is none.
type Partners [fleet.Levels]float64

// HeldBlocks returns the number of blocks of a prompt's beginning that a rank holds on any tier.
func HeldBlocks(overlap *[fleet.Tiers]int) (blocks int) {
	for t := range overlap { // a loop by value would copy the array
		blocks += overlap[t]
	}
	return blocks
}

// HeldBlocks returns the number of blocks of the prompt that the rank holds on any tier.
func (f *Facts) HeldBlocks() int { return HeldBlocks(&f.Overlap) }

// Cached is the number of prompt tokens that the rank need not compute, in whole blocks.
func (f *Facts) Cached(r *Request) int {
	return min(f.HeldBlocks()*max(1, r.BlockSize), f.reusable(r))
}

// OnDevice is the number of prompt tokens that the rank holds on its device and need not compute, in whole blocks.
func (f *Facts) OnDevice(r *Request) int {
	return min(f.Overlap[fleet.Device]*max(1, r.BlockSize), f.reusable(r))
}

// reusable returns the most tokens of the prompt that the rank's cache can have, in whole blocks of its engine. An engine computes at least
// the last token of a prompt, and with it the block of that token: vLLM computes the last block of a prompt again that it has cached as a
// whole.
func (f *Facts) reusable(r *Request) int {
	size := max(1, r.BlockSize) * max(1, f.Each)
	return max(0, r.PromptTokens-1) / size * size
}

// bookedBlocks returns the number of the request's blocks that the booked requests occupy.
func (f *Facts) bookedBlocks() float64 {
	return float64(max(0, f.Booked.DecodeBlocks+f.Unseen.DecodeBlocks) * int64(max(1, f.Each)))
}

// requests returns the number of requests that are booked.
func (f *Facts) requests() int64 { return max(0, f.Booked.Requests+f.Unseen.Requests) }

// Requests returns the number of requests on the rank, with requests that no router has booked.
func (f *Facts) Requests() int64 { return f.requests() + max(0, f.Untracked) }

// pending returns the tokens of booked prompts that are not computed.
func (f *Facts) pending() int64 { return max(0, f.Booked.PrefillTokens+f.Unseen.PrefillTokens) }

func (f *Facts) pace() float64 {
	if f.Pace <= 0 {
		return 1
	}
	return f.Pace
}

func (f *Facts) footprint() float64 {
	if f.Footprint <= 0 {
		return 1
	}
	return f.Footprint
}

// Score is the cost of a candidate and the named terms it is the sum of. Lower is better. Terms
// are in milliseconds by [Delay], and in blocks by [Weights].
type Score struct {
	Total   float64
	Wait    float64 // Delay: the prefills that are booked there
	Slot    float64 `json:",omitempty"` // Delay: until enough requests have ended
	Prefill float64 // this prompt's prefill, weighed; by Weights together with the booked prefill
	Others  float64 // Delay: of the requests there, by this prompt's prefill
	Evict   float64 // Delay: of later requests, by the tokens that this prompt evicts, and by those that are then held twice
	// Room is, by Delay, the delay of requests that wait for room in the cache, by blocks of the prompt that another rank holds.
	Room     float64 `json:",omitempty"`
	Decode   float64 // Delay: by longer steps; by Weights the blocks of running requests and of this one
	Requests float64 // Weights: booked requests
	// Own is, by Delay, the time of this prompt's prefill on the rank, before FirstToken.
	Own float64
	// Credit and Ahead are parts of Prefill by Weights, in blocks and not scaled: the overlap's worth, and
	// the prefill that is booked before this request.
	Credit, Ahead float64
	// Transfer is, by Delay, the time in which the prompt's KV cache comes from the worker that computes it, or goes to the worker that
	// decodes. Partner is the cost by which the prefill worker that is near enough exceeds the cheapest one.
	Transfer float64 `json:",omitempty"`
	Partner  float64 `json:",omitempty"`
	// Loaded is, by Delay, the tokens of OnNode, OnPeers and Outside that are worth loading, and Pulled the prompt tokens that the rank
	// should fetch from another worker's cache. They are small because thousands of decisions are kept.
	Loaded, Pulled int32 `json:",omitempty"`
	// Uncached is the prompt tokens that this rank would have to compute.
	Uncached int
	// Tie orders candidates of equal Total: lower is better. Delay sets it to Uncached, so caches break ties. Weights does
	// not, because Dynamo breaks ties at random.
	Tie int `json:"-"`
	// Preference is the factor on the terms' sum for the worker's taints; 0 if the request prefers
	// none.
	Preference float64 `json:",omitempty"`
}

// Score judges one candidate, as Dynamo's default selector does.
//
//	prefill  = PrefillLoadScale · max(0, (booked prefill + prompt)/blockSize − credit)
//	credit   = Overlap · decay · device + Tier · (host, disk, external)
//	decay    = 1/(1 + OverlapDecay · (booked prefill − least booked prefill) / prompt)
//	decode   = Decode · (booked blocks + blocks of this prompt)
//	requests = Requests · booked requests
//
// A prompt that comes computed has no prefill, as in Dynamo's decode routers.
//
// Dynamo counts a block that several running requests share once, and lets the blocks of an answer of
// known length shrink. Here each request counts with the blocks of its booking.
func (w *Weights) Score(r *Request, f *Facts, s *Score) {
	*s = Score{}
	blockSize := float64(max(1, r.BlockSize))
	blocks := float64(r.Blocks())

	decay := 1.0
	if w.OverlapDecay > 0 && blocks > 0 {
		ahead := float64(f.Booked.PrefillTokens-r.MinPrefillTokens) / blockSize
		decay = 1 / (1 + w.OverlapDecay*max(0, ahead)/blocks)
	}
	held := 0.0
	for t := range f.Overlap {
		credit := w.Tier[t] * float64(f.Overlap[t])
		if fleet.Tier(t) == fleet.Device {
			credit *= decay
		}
		held += w.Overlap * credit
	}
	s.Credit = held

	if !r.Computed {
		s.Ahead = float64(max(0, f.Booked.PrefillTokens)) / blockSize
		s.Prefill = w.PrefillLoadScale * max(0, s.Ahead+float64(r.PromptTokens)/blockSize-s.Credit)
		s.Uncached = r.PromptTokens - f.Cached(r)
	} else {
		s.Credit = 0
	}
	s.Decode = w.Decode * (f.bookedBlocks() + blocks)
	s.Requests = w.Requests * float64(max(0, f.Booked.Requests))
	s.Total = s.Prefill + s.Decode + s.Requests
}
