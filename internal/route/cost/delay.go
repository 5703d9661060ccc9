package cost

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Delay is the cost of a request on a rank in milliseconds of delay, the request's and others'. Lower is
// better. Start from [Default].
//
//	token     = Pace · learned time per uncached token
//	own       = Pace · learned fixed time of a prefill + token · uncached tokens
//	wait      = expected rest of the prefills that are booked there
//	prefill   = PrefillWeight · own + Interference · booked requests · token · uncached tokens
//	decode    = token · (Decode · tokens that running requests occupy + tokens that will not fit)
//	untracked = Untracked · token · untracked requests
//	transfer  = learned time of the transfer of the tokens that another worker computes, or has in its cache
//	cost      = wait + prefill + decode + untracked + transfer
//
// Uncached tokens are those of the prompt less what cached ones are worth: see Tier. Those in host memory that the rank can load from
// count, too.
//
// Wait and own together are the expected time to first token. To minimise that alone would be greedy. A
// prompt that is computed once more on another rank costs every later request that time, and evicts
// blocks that they would have found. All requests that run on the rank also stand still while it
// computes the prompt. So own counts more than once.
//
// The weights were chosen with stator replay on four traces with noise, and on bursts of equal prompts, by other seeds than
// those of docs/replay.md. On conversations they are flat around the choice: PrefillWeight 1 to 6 moves the mean time to first
// token by less than 2 %, and so do lines that are wrong by half in either term. Agents with long contexts gain 5 % from a
// PrefillWeight of 4 against 2. It keeps bursts of one prompt together too, which Decode limits.
type Delay struct {
	// PrefillWeight is how often the time of the request's own prefill counts. Default 4: for itself, and
	// for later requests. Raising it keeps prompts with their caches.
	PrefillWeight float64
	// Interference is how much more the prefill counts for each request that is booked there. Default
	// 0.15. Raising it keeps long prefills away from ranks with many running requests. That lowers
	// end-to-end times, and raises the tail of the time to first token.
	Interference float64
	// Decode is how many tokens to compute one occupied token counts for: passes get longer with the
	// contexts that they read. Default 0.15. Raising it spreads long contexts, and bursts of one prompt.
	// Tokens beyond the cache's capacity count fully, because some request will wait for room.
	Decode float64
	// Untracked is how many tokens to compute one untracked request counts for: a request that the
	// engine reports and no router has booked. Default 1,024.
	Untracked float64
	// Tier is the share of a cached token's time that is saved, by its tier: device, host, disk,
	// external. Default 1, 0.75, 0.25, 0.25. Where the time of loads is known, that counts instead: a token is then worth what is left of
	// its computing time.
	Tier [fleet.Tiers]float64
}

// Default returns the function that the kv policy uses, with its default weights.
func Default() *Delay {
	return &Delay{PrefillWeight: 4, Interference: 0.15, Decode: 0.15, Untracked: 1024, Tier: defaultTier}
}

// defaultTier is the worth of a cached block by its tier, the same in both functions.
var defaultTier = [fleet.Tiers]float64{fleet.Device: 1, fleet.Host: 0.75, fleet.Disk: 0.25, fleet.External: 0.25}

// Score judges one candidate. A rank whose pace is not known has 1.
func (w *Delay) Score(r *Request, f *Facts) (s Score) {
	pace := f.Pace
	if pace <= 0 {
		pace = 1
	}
	token := pace * r.Line.Token / 1e6 // Line is in nanoseconds

	compute := 0.0 // the part of own that grows with the prompt
	if r.PromptTokens > 0 && !r.Computed {
		s.Uncached = r.PromptTokens - f.Cached(r)
		s.Tie = s.Uncached
		saved, blockSize := 0.0, float64(max(1, r.BlockSize))
		for t, n := range f.Overlap {
			saved += w.worth(fleet.Tier(t), float64(n)*blockSize, f, token)
		}
		loaded, gain := w.load(r, f, token)
		s.Loaded = loaded
		s.Uncached -= loaded // and not Tie: among equal costs the rank that has the blocks is better
		compute = token * (float64(r.PromptTokens) - min(saved+gain, float64(r.reusable())))
		if pulled, took := f.pull(r, token); pulled > 0 {
			s.Pulled, s.Transfer = pulled, took
			s.Uncached -= pulled
			s.Tie = s.Uncached
			compute = max(0, compute-token*float64(pulled))
		}
		s.Own = pace*milliseconds(r.Line.Base) + compute
	}

	if r.Computed {
		s.Transfer = milliseconds(r.Transfer.Prefill(r.PromptTokens - f.Cached(r)))
	}

	s.Wait = milliseconds(f.Wait)
	s.Prefill = w.PrefillWeight*s.Own + w.Interference*float64(max(0, f.Booked.Requests))*compute
	occupied, beyond := f.occupied(r)
	s.Decode = token * (w.Decode*occupied + beyond)
	s.Untracked = w.Untracked * token * float64(max(0, f.Untracked))
	s.Total = s.Wait + s.Prefill + s.Decode + s.Untracked + s.Transfer
	return s
}

// worth returns how many tokens less need to be computed for those that are cached on a tier: as many as could be computed in the time that
// is left when they are loaded, or the share of Tier where it is not known how long that takes. Engines load only what is worth it.
func (w *Delay) worth(t fleet.Tier, cached float64, f *Facts, token float64) float64 {
	if cached <= 0 || f.Store == nil || token <= 0 {
		return w.Tier[t] * cached
	}
	load := f.Store.Tiers[t]
	if !load.Known() {
		return w.Tier[t] * cached
	}
	return max(0, left(load, cached, token))
}

// left returns how many tokens could be computed in the time that is left of computing cached ones when they are loaded instead.
func left(load fleet.TierLoad, cached, token float64) float64 {
	return cached - (milliseconds(load.Wait)+cached*milliseconds(load.Token))/token
}

// load returns how many tokens the rank should load from host memory that follow those of its blocks, and how many could be computed in the
// time that this saves: 0 where it is faster to compute them. Those of other nodes are of no use without those of its node before them.
func (w *Delay) load(r *Request, f *Facts, token float64) (tokens int, gain float64) {
	if f.Store == nil || f.OnNode+f.OnPeers == 0 || token <= 0 {
		return 0, 0
	}
	blockSize, room := max(1, r.BlockSize), r.reusable()-f.Cached(r)
	onNode := min(f.OnNode*blockSize, room)
	onPeers := min(f.OnPeers*blockSize, room-onNode)

	if onNode > 0 {
		gain = w.worth(fleet.Host, float64(onNode), f, token)
		if gain <= 0 {
			return 0, 0
		}
		tokens = onNode
	}
	if onPeers > 0 && f.Store.Peers.Known() {
		if more := left(f.Store.Peers, float64(onPeers), token); more > 0 {
			tokens += onPeers
			gain += more
		}
	}
	return tokens, gain
}

// pull returns how many tokens the rank should fetch from another worker's cache, and how many milliseconds that takes: 0 where
// it is faster to compute them.
func (f *Facts) pull(r *Request, token float64) (tokens int, took float64) {
	tokens = min(f.Pullable*max(1, r.BlockSize), r.reusable()-f.Cached(r))
	if tokens <= 0 {
		return 0, 0
	}
	took = milliseconds(r.Transfer.Prefill(tokens))
	if took >= token*float64(tokens) {
		return 0, 0
	}
	return tokens, took
}

// occupied is how many tokens running requests have in the cache, and how many tokens of them and of the
// prompt will not fit. In a cache of unknown capacity all fit.
func (f *Facts) occupied(r *Request) (tokens, beyond float64) {
	blocks := max(0, f.Booked.DecodeBlocks)
	if f.Capacity > 0 {
		beyond = float64(max(0, blocks+int64(r.Blocks()-f.Capacity)))
	}
	blockSize := float64(max(1, r.BlockSize))
	return blockSize * float64(blocks), blockSize * beyond
}

// String returns the function's name in configurations and flags.
func (w *Delay) String() string { return NameDelay }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
