package cost

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Request is what every candidate is judged for.
type Request struct {
	// BlockSize is in tokens; less than 1 counts as 1.
	BlockSize int
	// PromptTokens is the length of the prompt.
	PromptTokens int
	// MinPrefillTokens is the smallest booked prefill of all candidates; only the decay of
	// [Weights.OverlapDecay] needs it.
	MinPrefillTokens int64
	// Now dates the engines' reports.
	Now time.Time
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
	// Report is the engine's own word, where HasReport is true.
	Report    fleet.Report
	HasReport bool
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

// Score is the cost of a candidate and the named terms it is the sum of. Lower is better;
// every term is in blocks.
type Score struct {
	Total    float64
	Prefill  float64 // prompt tokens still to compute here, booked ones included, scaled, less the credit for overlap
	Decode   float64 // blocks that running requests and this one occupy
	Requests float64 // booked requests
	Foreign  float64 // requests the engine reports beyond those we booked
	// Credit is the overlap's worth and Ahead what is booked before this request, both in
	// blocks, weighed but not scaled. They are parts of Prefill.
	Credit, Ahead float64
	// ForeignRequests is what Foreign weighs.
	ForeignRequests int64
	// Uncached is the prompt tokens that this rank would have to compute.
	Uncached int
}

// Score judges one candidate.
//
//	prefill  = PrefillScale · max(0, (Ahead · booked prefill + prompt)/blockSize − credit)
//	credit   = Overlap · decay · device + Tier · (host, disk, external)
//	decay    = 1/(1 + OverlapDecay · (booked prefill − least booked prefill) / prompt)
//	decode   = Decode · (booked blocks + blocks of this prompt)
//	requests = Requests · booked requests
//	foreign  = Foreign · max(0, running + waiting − booked requests), of a fresh report
//
// With Ahead 1 all but the last term are those of NVIDIA Dynamo's default selector.
func (w *Weights) Score(r *Request, f *Facts) Score {
	bs := float64(max(1, r.BlockSize))
	blocks := float64(r.Blocks())
	decay := 1.0
	if w.OverlapDecay > 0 && blocks > 0 {
		ahead := float64(f.Booked.PrefillTokens-r.MinPrefillTokens) / bs
		decay = 1 / (1 + w.OverlapDecay*max(0, ahead)/blocks)
	}
	var s Score
	for t, n := range f.Overlap {
		credit := w.Tier[t] * float64(n)
		if fleet.Tier(t) == fleet.Device {
			credit *= decay
		}
		s.Credit += w.Overlap * credit
	}
	s.Ahead = w.Ahead * float64(max(0, f.Booked.PrefillTokens)) / bs
	s.Prefill = w.PrefillScale * max(0, s.Ahead+float64(r.PromptTokens)/bs-s.Credit)
	s.Decode = w.Decode * (float64(max(0, f.Booked.DecodeBlocks)) + blocks)
	s.Requests = w.Requests * float64(max(0, f.Booked.Requests))
	s.ForeignRequests = f.foreign(r.Now, w.ReportAge)
	s.Foreign = w.Foreign * float64(s.ForeignRequests)
	s.Total = s.Prefill + s.Decode + s.Requests + s.Foreign
	s.Uncached = r.PromptTokens - f.Cached(r)
	return s
}

// foreign counts requests that others placed on the engine. An old report is worth nothing.
func (f *Facts) foreign(now time.Time, age time.Duration) int64 {
	if !f.HasReport || now.Sub(f.Report.At) > age {
		return 0
	}
	return max(0, int64(f.Report.Running)+int64(f.Report.Waiting)-f.Booked.Requests)
}
