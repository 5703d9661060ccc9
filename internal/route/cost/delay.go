package cost

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Delay is the cost of a request on a rank in milliseconds of delay, its own and others': the
// least harm wins. Start from [Default].
//
//	own     = pace · (base + token · uncached tokens), by what was learned of the rank's kind
//	wait    = what is left of the prefills that are booked there, by the same estimate
//	prefill = Work · own + Neighbour · requests there · pace · token · uncached tokens
//	decode  = pace · token · (Decode · tokens that running requests occupy there + those that will not fit)
//	foreign = Foreign · pace · token · requests there that others placed
//	cost    = wait + prefill + decode + foreign
//
// Wait and own together are the time to first token that is expected. That alone would be greedy:
// a prompt that is computed once more somewhere costs everyone who comes later its time, and
// evicts what others would have found, so own counts more than once; and all who are running
// there stand still while it is computed.
//
// The weights were chosen on the Mooncake conversation trace (stator replay; 4 and 8 workers, and 8
// at three times the rate), and are flat around the choice: Work 1 to 6 moves the mean TTFT by
// less than 2 %, and lines that are wrong by half in either term do no more.
type Delay struct {
	// Work is how often the time of the request's own prefill counts. Default 2: for itself, and
	// for those who come after. Raising it keeps prompts with their caches.
	Work float64
	// Neighbour is how much more it counts for each request that is booked there. Default 0.15.
	// Raising it keeps long prefills away from ranks where many would be held up: lower e2e times,
	// and a higher TTFT in the tail.
	Neighbour float64
	// Decode is how many tokens to compute a token stands for that a running request occupies: passes
	// get longer with the contexts they read. Default 0.05. Raising it spreads long contexts, and
	// bursts of one prompt. Tokens beyond the cache count whole: someone will wait for room.
	Decode float64
	// Foreign is how many tokens to compute a request stands for that the engine reports beyond
	// those booked here. Default 1,024.
	Foreign float64
	// Tier is how much of a cached token's time is saved by where it lies: device, host, disk,
	// external. Default 1, 0.75, 0.25, 0.25.
	Tier [fleet.Tiers]float64
}

// Default is what the kv policy uses.
func Default() *Delay {
	return &Delay{Work: 2, Neighbour: 0.15, Decode: 0.05, Foreign: 1024, Tier: [fleet.Tiers]float64{1, 0.75, 0.25, 0.25}}
}

// Score judges one candidate.
func (w *Delay) Score(r *Request, f *Facts) (s Score) {
	pace := f.Pace
	if pace <= 0 {
		pace = 1
	}
	token := pace * r.Line.Token / 1e6
	compute := 0.0
	if r.PromptTokens > 0 && !r.Computed {
		s.Uncached = r.PromptTokens - f.Cached(r)
		saved, bs := 0.0, float64(max(1, r.BlockSize))
		for t, n := range f.Overlap {
			saved += w.Tier[t] * float64(n) * bs
		}
		left := max(float64(r.PromptTokens)-saved, 1)
		compute = token * left
		s.Own = pace*milliseconds(r.Line.Base) + compute
	}
	s.Wait = milliseconds(f.Wait)
	s.Prefill = w.Work*s.Own + w.Neighbour*float64(max(0, f.Booked.Requests))*compute
	occupied, beyond := f.occupied(r)
	s.Decode = token * (w.Decode*occupied + beyond)
	s.Foreign = w.Foreign * token * float64(max(0, f.Foreign))
	s.Total = s.Wait + s.Prefill + s.Decode + s.Foreign
	return s
}

// occupied is how many tokens running requests have in the cache, and how many of them and the
// prompt will not fit; a cache of unknown size holds all.
func (f *Facts) occupied(r *Request) (tokens, beyond float64) {
	blocks := max(0, f.Booked.DecodeBlocks)
	if f.Capacity > 0 {
		beyond = float64(max(0, blocks+int64(r.Blocks()-f.Capacity)))
	}
	bs := float64(max(1, r.BlockSize))
	return bs * float64(blocks), bs * beyond
}

// String names the function.
func (w *Delay) String() string { return NameDelay }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
