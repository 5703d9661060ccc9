package cost

import (
	"math"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// Delay is the cost of a request on a rank in milliseconds: the growth of all delays together if the request goes there. Lower is better.
// Start from [Default]. It counts the delays of the request itself, of the requests that are on the rank, and of later ones:
//
//	own      = time of the prompt's prefill
//	wait     = FirstToken · time of the prefills that are booked before it
//	slot     = FirstToken · time until enough requests have ended that the engine can run this one
//	prefill  = FirstToken · own
//	transfer = FirstToken · time of the transfer of the tokens that another worker computes, or has in its cache
//	partner  = cost of the prefill worker from which they come, beyond the cost of the cheapest one
//	others   = Interference · requests on the rank · own, without its fixed time
//	           + its share of the pass's fixed time
//	evict    = Evict · reuse · (FirstToken + Interference · requests on the rank) · own, without its fixed time
//	           + Interference · requests on a rank in the mean · time of the tokens that another rank holds
//	room     = FirstToken · time of an answer · requests that run · tokens of the prompt that another rank holds / tokens of the cache
//	decode   = Decode · lasting · tokens of the answer · time of a step for a token
//	           · (tokens of all contexts + requests · tokens of this context)
//	cost     = wait + slot + prefill + transfer + partner + others + evict + room + decode
//
// Time before the first token counts FirstToken times, because it delays the first token and the end of the request. All requests that
// run stand still while a prompt is computed (others), and each of their steps is longer by the context of this request, as its steps
// are by theirs (decode). A computed prompt takes the place of cached tokens; reuse is the mean number of times that such a token was
// found again, at most once (evict, if the cache is full). Tokens that another rank holds are then held twice, and others not at all,
// so as much is computed again later, while that rank has as many requests as there are in the mean. If requests wait for room in the
// cache, they wait longer for the room of tokens that requests on another rank share with this one (room): the tokens by which the rank
// holds less of the prompt on its device than the rank that holds most. Terms that are equal on all ranks of a class are left out.
//
// The time of a transfer depends on the place that both workers share. A decode worker is judged by the prefill worker for which transfer
// and partner are least together, and a prefill worker by its transfer to the decode worker, which has been chosen before.
//
// The fixed time is the fixed part of a pass that computes prompts. A prompt pays it, and delays others by it, unless it is computed in
// one pass with a prompt that is booked there already. Then all prompts of the pass wait for each other. With k prompts in every pass,
// each prompt has a k-th part of the delay of the n requests on the rank, and waits for k prompts: n·fixed/k + FirstToken·k·own. The
// sum is least where both parts are equal. So the first prompt of a pass, which others may join, counts a k-th part, and others join
// until their wait costs more: k then becomes as large as is best, if prompts come fast enough. The part is learned: Request.Passes is
// how many passes a prompt has added in the mean. It is at most Interference, as for a pass of this prompt alone.
//
// The model of a pass is [perfmodel.Pass], learned for each class of workers. Prompts and answers of the requests on the rank are taken
// from their bookings. An engine whose slots are not known is expected to run whatever is booked.
//
// To send each request to the rank at which it adds least to the sum of all delays is the greedy choice of MaxWeight and Balanced-PANDAS
// (Xie, Yekkehkhany and Lu, "Scheduling with multi-level data locality", INFOCOM 2016): load is weighed by the time that the request itself
// takes on a rank. That keeps queues stable at every load that any choice could serve. A rank with more load has higher costs in each term,
// so load flows away from it; nothing that grows with the load is taken for slowness.
//
// The weights have reasons and were not tuned for a trace; results change little around them (docs/routing.md).
type Delay struct {
	// FirstToken is the weight of a delay of the first token. Default 2: it delays the end, too. Raising it shortens the time to first
	// token, and lengthens requests.
	FirstToken float64
	// Interference is the share of a prefill by which each request on the rank is delayed. Default 0.5: of the requests that are there,
	// about half will have ended when a busy rank comes to the prompt. Raising it keeps long prefills away from ranks with many requests.
	Interference float64
	// Evict is the worth of tokens that lose their place in the cache, relative to the mean token. Default 2: the tokens that follow them
	// in their prompts are of no use without them.
	Evict float64
	// Decode is the part of an answer for which a difference of load between ranks of a busy fleet is expected to last. Default 0.1,
	// because later requests even it out. Raising it spreads long contexts, and bursts of one prompt.
	Decode float64
	// Tier is the share of a cached token's time that is saved, by its tier: device, host, disk, external.
	// Default 1, 0.75, 0.25, 0.25. If the time of loads is known, it counts instead: a token is then worth its
	// computing time less its loading time.
	Tier [fleet.Tiers]float64
}

// Default returns the function that the kv policy uses, with its default weights.
func Default() *Delay {
	return &Delay{FirstToken: 2, Interference: 0.5, Evict: 2, Decode: 0.1, Tier: defaultTier}
}

// defaultTier is the worth of a cached block by its tier, the same in both functions.
var defaultTier = [fleet.Tiers]float64{fleet.Device: 1, fleet.Host: 0.75, fleet.Disk: 0.25, fleet.External: 0.25}

// Score judges one candidate. A rank whose pace is not known has 1.
func (w *Delay) Score(r *Request, f *Facts, s *Score) {
	*s = Score{}
	pace := f.pace()
	compute := w.prefill(r, f, s, pace)
	fixed := s.Own - compute
	if f.Passes(s.Uncached) == 0 {
		fixed, s.Own = 0, compute
	}
	s.Prefill = w.FirstToken * s.Own
	s.Transfer *= w.FirstToken
	s.Wait = w.FirstToken * milliseconds(f.Wait)

	delayed := w.FirstToken // how often the time of the prefill counts
	if f.Requests() > 0 {
		b := f.batch(r)
		s.Wait = w.FirstToken * f.wait(r, &b)
		s.Slot = w.FirstToken * b.slot(r, pace)
		if b.crowded {
			missing := float64(f.missing(r))
			s.Room = w.FirstToken * b.answer(r, pace) * b.running * missing / float64(max(1, r.BlockSize)*f.Capacity)
		}
		interference := w.Interference * b.requests
		s.Others = interference*compute + min(w.Interference, r.Passes)*b.requests*fixed
		s.Decode = w.Decode * r.lasting() * r.Answer * pace * r.Decode.Token * perMillisecond * (b.context + b.running*r.context())
		delayed += interference
	}
	if w.Evict > 0 && r.Reuse > 0 && f.evicts(r, s.Uncached) {
		s.Evict = w.Evict * r.Reuse * delayed * compute
		if f.Capacity > 0 {
			s.Evict += w.Interference * r.Mean * pace * r.Line.Token * perMillisecond * float64(min(f.missing(r), s.Uncached))
		}
	}
	s.Total = s.Wait + s.Slot + s.Prefill + s.Transfer + s.Partner + s.Others + s.Evict + s.Room + s.Decode
}

// prefill fills in the tokens of the prompt that the rank must compute, load and fetch. It returns the time of the prefill in
// milliseconds without its fixed part.
func (w *Delay) prefill(r *Request, f *Facts, s *Score, pace float64) (compute float64) {
	if r.Computed {
		s.Transfer, s.Partner = w.receive(r, f)
		return 0
	}
	if r.Onward > 0 {
		s.Transfer = milliseconds(r.Transfers[f.Toward].Prefill(r.Onward))
	}
	if r.PromptTokens <= 0 {
		return 0
	}

	token := pace * r.Line.Token * perMillisecond
	saved := 0.0 // tokens
	s.Uncached = r.PromptTokens
	if held := f.HeldBlocks(); held > 0 {
		blockSize, reusable := max(1, r.BlockSize), f.reusable(r)
		s.Uncached -= min(held*blockSize, reusable)
		for t, n := range f.Overlap {
			if n > 0 {
				saved += w.worth(fleet.Tier(t), float64(n*blockSize), f, token)
			}
		}
		saved = min(saved, float64(reusable))
	}
	s.Tie = s.Uncached
	if f.OnNode+f.OnPeers > 0 {
		loaded, gain := w.load(r, f, token)
		s.Loaded = int32(loaded)
		s.Uncached -= loaded // and not Tie: among equal costs the rank that has the blocks is better
		saved = min(saved+gain, float64(f.reusable(r)))
	}
	if f.Outside != [fleet.Tiers]int{} {
		loaded, gain := w.outside(r, f, token)
		s.Loaded += int32(loaded)
		s.Uncached -= loaded
		saved = min(saved+gain, float64(f.reusable(r)))
	}

	compute = token * (float64(r.PromptTokens) - saved)
	if f.Pullable > 0 {
		if pulled, took := f.pull(r, token); pulled > 0 {
			s.Pulled = int32(pulled)
			s.Transfer += took
			s.Uncached -= pulled
			s.Tie = s.Uncached
			compute = max(0, compute-token*float64(pulled))
		}
	}
	s.Own = pace*milliseconds(r.Line.Base) + compute
	return compute
}

// lasting returns by how much longer a difference of load between candidates lasts than on a busy fleet. While an answer is made, as many
// requests come to a rank as run there in the mean, and each can even out a difference. So it lasts three times as long with one request on
// a candidate or none as with three or more.
func (r *Request) lasting() float64 {
	const busy = 3 // requests on a candidate
	return busy / min(busy, max(1, r.Mean))
}

// missing returns the number of tokens by which the rank holds less of the prompt on its device than the rank that holds most.
func (f *Facts) missing(r *Request) int { return max(0, r.MostHeld-f.OnDevice(r)) }

// Passes returns the part of a pass that the given number of tokens of a prompt adds to the work of the rank: nothing if they are computed
// in a pass that is made anyway, and their share of one if the prompts before them fill passes, because prompts after them fill the rest
// of theirs.
func (f *Facts) Passes(tokens int) float64 {
	pending := f.pending()
	switch {
	case !f.Gathering || pending <= 0:
		return 1
	case pending+int64(tokens) <= fleet.PassTokens:
		return 0
	}
	return min(1, float64(tokens)/fleet.PassTokens)
}

// evicts reports whether the given number of computed tokens takes the place of others. A cache of unknown size is taken for full.
func (f *Facts) evicts(r *Request, tokens int) bool {
	return f.Capacity <= 0 || f.Held*r.BlockSize+tokens > f.Capacity*r.BlockSize
}

// worth returns the number of tokens that tokens cached on a tier save: as many as could be computed in the time that loading saves, or the
// share of Tier if the time of a load is not known. Engines load tokens only if that saves time.
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

// left returns the number of tokens that could be computed in the time that is saved if cached ones are loaded and not computed.
func left(load fleet.TierLoad, cached, token float64) float64 {
	return cached - (milliseconds(load.Wait)+cached*milliseconds(load.Token))/token
}

// load returns the number of tokens after its own blocks that the rank should load from host memory, and the number that could be
// computed in the time that this saves: 0 if it is faster to compute them. Tokens of other nodes are of no use without the tokens of
// the rank's node before them.
func (w *Delay) load(r *Request, f *Facts, token float64) (tokens int, gain float64) {
	if f.Store == nil || token <= 0 {
		return 0, 0
	}
	blockSize, room := max(1, r.BlockSize), f.reusable(r)-f.Cached(r)
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

// outside returns the number of tokens after its own blocks that the rank should load from caches outside engines, and the number that
// could be computed in the time that this saves. It ends at the first tier from which a load would last longer than to compute the tokens.
func (w *Delay) outside(r *Request, f *Facts, token float64) (tokens int, gain float64) {
	room := f.reusable(r) - f.Cached(r)
	for t, n := range f.Outside {
		more := min(n*max(1, r.BlockSize), room-tokens)
		if more <= 0 {
			continue
		}
		saves := w.Tier[t] * float64(more)
		if load := r.Loads[t]; load.Known() && token > 0 {
			saves = left(load, float64(more), token)
		}
		if saves <= 0 {
			break
		}
		tokens += more
		gain += saves
	}
	return tokens, gain
}

// receive returns the milliseconds in which a decode worker receives the tokens that it does not have, and the cost of the prefill worker
// from which they come beyond the cheapest one: the two whose sum is least. Without a partner the worker counts as far from all.
func (w *Delay) receive(r *Request, f *Facts) (transfer, partner float64) {
	tokens := r.PromptTokens - f.Cached(r)
	transfer = milliseconds(r.Transfers[fleet.Apart].Prefill(tokens))
	if f.Partners == nil {
		return transfer, 0
	}
	least := math.Inf(1)
	for level, more := range f.Partners {
		took := milliseconds(r.Transfers[level].Prefill(tokens))
		if sum := w.FirstToken*took + more; sum < least {
			transfer, partner = took, more
			least = sum
		}
	}
	return transfer, partner
}

// pull returns the number of tokens that the rank should fetch from another worker's cache, and the milliseconds that it takes: 0 if
// it is faster to compute them.
func (f *Facts) pull(r *Request, token float64) (tokens int, took float64) {
	tokens = min(f.Pullable*max(1, r.BlockSize), f.reusable(r)-f.Cached(r))
	if tokens <= 0 {
		return 0, 0
	}
	took = milliseconds(r.Transfers[f.FromSource].Prefill(tokens))
	if took >= token*float64(tokens) {
		return 0, 0
	}
	return tokens, took
}

// PullSaves returns the milliseconds that the rank saves if it fetches the pullable blocks and does not compute them.
func (f *Facts) PullSaves(r *Request) float64 {
	token := f.pace() * r.Line.Token * perMillisecond
	tokens, took := f.pull(r, token)
	return token*float64(tokens) - took
}

// String returns the function's name in configurations and flags.
func (w *Delay) String() string { return NameDelay }

// perMillisecond makes milliseconds of nanoseconds.
const perMillisecond = 1e-6

func milliseconds(d time.Duration) float64 { return float64(d) * perMillisecond }
