package kvindex

import (
	"math"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prefetch"
)

const (
	// tick is the resolution of expiry. A prediction ends at the first multiple of it that is not before its
	// time, so that few calls of Expire have something to do.
	tick  = int64(100 * time.Millisecond)
	never = int64(math.MaxInt64)
)

// Predict makes lookups count the blocks of a chain, which begins at the root, for a rank's device until a
// time. Blocks that the rank reports there already need no prediction. A later call prolongs an earlier one.
//
// The first from blocks are skipped: a caller that has just looked them up, and found that they will last,
// saves a search for each. limit bounds the rank's predicted blocks, as Config.MaxPredicted does; 0 is no
// further limit. Beyond the limit the predictions that end first are dropped.
func (x *Index) Predict(id fleet.RankID, chain []blockhash.Sequence, from int, until time.Time, limit int) {
	if from >= len(chain) {
		return
	}
	if limit <= 0 || limit > x.cfg.MaxPredicted {
		limit = x.cfg.MaxPredicted
	}
	chain = chain[:from+min(len(chain)-from, limit)]
	x.makeRoom(len(chain) - from)

	r := x.rank(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return
	}
	end := roundUp(until)
	p := predicting{x: x, r: r, e: x.edit(r, predicted, 0), end: end, limit: limit}
	p.e.unless = 1<<fleet.Device | predicted
	p.predictChain(chain, from)
	p.e.done()
	if p.first != nil {
		r.predictions.push(prediction{p.end, p.first})
		x.lowerNext(p.end)
	}
}

// predicting is one call of Predict.
type predicting struct {
	x     *Index
	r     *rank
	e     edit
	end   int64
	limit int
	first *predictionPart // of the prediction; nil until a block needs one
	part  *predictionPart // the one that got the last block
	old   *predictionPart // the owner of the last block that was prolonged
}

// predictChain predicts the blocks of a chain except the first from.
func (p *predicting) predictChain(chain []blockhash.Sequence, from int) {
	p.x.nodes.prefetch(chain[from:])
	for i := from; i < len(chain); i++ {
		if (i-from)%prefetch.Most == 0 {
			p.x.nodes.prefetch(chain[min(i+prefetch.Most, len(chain)):])
		}
		p.e.expect(0, false, len(chain)-i)
		if i > 0 {
			p.e.expect(chain[i-1], true, len(chain)-i)
		}
		if !p.block(chain[i], len(chain)-i) {
			return
		}
	}
}

// block predicts one block, or prolongs its prediction, unless it is reported. left is the number of blocks of the chain that are left,
// this one included. False means that there is no room.
//
//	bits before     effect
//	predicted       moves to this prediction if it ends later
//	device          none
//	neither         predicted
func (p *predicting) block(seq blockhash.Sequence, left int) bool {
	held := &p.r.predictions
	for held.size >= 2*p.limit && p.evictFirst() {
	}
	before, ok := p.e.apply(seq)
	if !ok {
		return false
	}

	bit := uint64(1) << p.e.pos
	if before&predicted != 0 {
		if p.old == nil || p.old.chunk != p.e.chunk || p.old.owned&bit == 0 {
			p.old = held.owner(p.e.chunk, bit)
		}
		if p.old == nil || p.old.at >= p.end {
			return true
		}
	} else if before&(1<<fleet.Device) != 0 {
		return true
	} else {
		for held.n >= p.limit && p.evictFirst() {
		}
	}

	to := p.partFor(left)
	if to == nil {
		if before&predicted == 0 {
			p.x.clearPredicted(p.r, seq)
		}
		return false
	}
	if before&predicted != 0 {
		held.disown(p.old, bit)
	}
	had := len(to.seqs)
	for to.after() < int(p.e.pos) {
		to.seqs = append(to.seqs, 0) // a block of the chunk that this part does not own
	}
	to.seqs = append(to.seqs, seq)
	held.size += len(to.seqs) - had
	held.ownBlock(to, bit)
	return true
}

// evictFirst ends the rank's prediction that ends first; false if there is none beside this one.
func (p *predicting) evictFirst() bool {
	held := &p.r.predictions
	if len(held.heap) == 0 {
		return false
	}
	p.old = nil // it may be a part of that prediction
	p.x.endPrediction(p.r, held.popFirst())
	return true
}

// partFor returns the part for the block that was just applied: the last one if the block lies behind its
// last block in the same chunk, else a new one. It returns nil if there is no room.
func (p *predicting) partFor(left int) *predictionPart {
	to := p.part
	if to != nil && to.chunk == p.e.chunk && int(p.e.pos) >= to.after() && int(p.e.pos-to.start) < cap(to.seqs) {
		return to
	}
	to = p.r.predictions.allocate(min(left, chunkBlocks-int(p.e.pos)), &p.x.budget)
	if to == nil {
		return nil
	}
	to.at = p.end
	to.chunk, to.start = p.e.chunk, p.e.pos
	to.next = p.first
	p.first, p.part = to, to
	return to
}

// PredictedUntil returns when the prediction of a block ends, by the sequence hash of the block. False means
// that it is not predicted. Blocks nearer to the root last at least as long, because every prediction begins
// there.
func (x *Index) PredictedUntil(id fleet.RankID, last blockhash.Sequence) (until time.Time, ok bool) {
	r := x.lookupRank(id)
	if r == nil {
		return time.Time{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at, pos := x.nodes.find(key(last))
	if at == nil {
		return time.Time{}, false
	}
	p := r.predictions.owner(at.chunk, 1<<pos)
	if p == nil {
		return time.Time{}, false
	}
	return time.Unix(0, p.at), true
}

// Withdraw takes back the predictions of a chain on a rank, because its request did not reach the rank. The first from blocks are left
// alone. So are predictions that end after until, because another request has made or prolonged them, and blocks that the rank has
// reported. It returns the number of blocks that it took back.
func (x *Index) Withdraw(id fleet.RankID, chain []blockhash.Sequence, from int, until time.Time) (blocks int) {
	r := x.lookupRank(id)
	if r == nil || from >= len(chain) {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return 0
	}

	end := roundUp(until)
	e := x.edit(r, 0, predicted)
	for _, seq := range chain[from:] {
		at, pos := x.nodes.find(key(seq))
		if at == nil {
			continue
		}
		p := r.predictions.owner(at.chunk, 1<<pos)
		if p == nil || p.at > end {
			continue
		}
		r.predictions.disown(p, 1<<pos)
		e.restrictTo(at.chunk, pos)
		e.apply(seq)
		blocks++
	}
	e.done()
	return blocks
}

// roundUp is the end of a prediction until a time.
func roundUp(until time.Time) int64 { return (until.UnixNano() + tick - 1) / tick * tick }

// lowerNext makes Expire look at the predictions no later than at a time.
func (x *Index) lowerNext(at int64) {
	for next := x.nextExpiry.Load(); at < next && !x.nextExpiry.CompareAndSwap(next, at); {
		next = x.nextExpiry.Load()
	}
}

// Expire ends the predictions whose time has come. Between two ticks of 100 ms it costs one comparison, so
// every decision calls it. One call ends about expireBlocks at most, and the next one goes on.
func (x *Index) Expire(now time.Time) {
	at := now.UnixNano()
	if at < x.nextExpiry.Load() {
		return
	}
	x.nextExpiry.Store(never) // before the scan: a prediction made meanwhile lowers it again
	left := expireBlocks
	for _, r := range *x.byID.Load() {
		if r == nil {
			continue
		}
		r.mu.Lock()
		p := &r.predictions
		for len(p.heap) > 0 && p.heap[0].at <= at && left > 0 {
			left -= x.endPrediction(r, p.popFirst())
		}
		if len(p.heap) > 0 {
			x.lowerNext(p.heap[0].at)
		}
		r.mu.Unlock()
	}
}

// expireBlocks bounds the blocks of one call of Expire, for the sake of the decision that calls it.
const expireBlocks = 4096

// endPrediction ends the blocks that a prediction still owns, and returns the number of blocks that it had.
func (x *Index) endPrediction(r *rank, ended prediction) (blocks int) {
	e := x.edit(r, 0, predicted)
	for p := ended.parts; p != nil; {
		next := p.next
		blocks += len(p.seqs)
		x.endPart(r, &e, p)
		r.predictions.recycle(p, &x.budget)
		p = next
	}
	e.done()
	return blocks
}

// endPart clears the bits that a part owns.
func (x *Index) endPart(r *rank, e *edit, p *predictionPart) {
	if p.owned == 0 {
		return
	}
	x.nodes.prefetch(p.seqs)
	owned := p.owned
	r.predictions.disown(p, owned)
	for i, seq := range p.seqs {
		if i%prefetch.Most == 0 {
			x.nodes.prefetch(p.seqs[min(i+prefetch.Most, len(p.seqs)):])
		}
		if pos := p.start + uint8(i); owned>>pos&1 != 0 {
			e.restrictTo(p.chunk, pos)
			e.apply(seq)
		}
	}
}

// clearPredicted clears a predicted bit that no part owns.
func (x *Index) clearPredicted(r *rank, seq blockhash.Sequence) {
	e := x.edit(r, 0, predicted)
	e.apply(seq)
	e.done()
}

// disownPredicted takes a block from the part that owns it, after its bit has been cleared.
func (x *Index) disownPredicted(r *rank, at *chunk, pos uint8) {
	if p := r.predictions.owner(at, 1<<pos); p != nil {
		r.predictions.disown(p, 1<<pos)
	}
}
