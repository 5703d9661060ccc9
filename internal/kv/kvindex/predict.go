package kvindex

import (
	"math"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

const (
	// tick is how finely expiry works: a prediction ends at the first multiple of it that is
	// not before its time, so that the request path need not look for every one alone.
	tick  = int64(100 * time.Millisecond)
	never = int64(math.MaxInt64)
)

// Predict takes rank to hold the blocks of a chain from the root on its device until a time;
// blocks that it reports there already are left out. A later call prolongs. The first from
// blocks are left as they are: a caller that has just looked them up, and knows that they will
// last, saves a search for each. limit bounds the rank's predicted blocks, beside
// Config.MaxPredicted; 0 is no limit of its own. What expires first gives way.
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
	p := promising{x: x, r: r, e: x.edit(r, predicted, 0), end: (until.UnixNano() + tick - 1) / tick * tick, limit: limit}
	p.e.unless = 1<<fleet.Device | predicted
	p.all(chain, from)
	p.e.done()
	if p.first != nil {
		r.predictions.push(promise{p.end, p.first})
		x.lowerNext(p.end)
	}
}

// promising is one call of Predict.
type promising struct {
	x     *Index
	r     *rank
	e     edit
	end   int64
	limit int
	first *share // of the promise
	share *share // at hand
	old   *share // the one that had the last block that is prolonged
}

// all predicts the blocks of a chain but the first from.
func (p *promising) all(chain []blockhash.Sequence, from int) {
	p.x.nodes.fetch(chain[from:])
	for i := from; i < len(chain); i++ {
		if (i-from)%prefetches == 0 {
			p.x.nodes.fetch(chain[min(i+prefetches, len(chain)):])
		}
		p.e.after(0, false, len(chain)-i)
		if i > 0 {
			p.e.after(chain[i-1], true, len(chain)-i)
		}
		if !p.block(chain[i], len(chain)-i) {
			return
		}
	}
}

// block predicts one block, unless it is reported, or prolongs it. left is how many blocks of
// the chain there are from here on. False means that there is no room.
func (p *promising) block(seq blockhash.Sequence, left int) bool {
	held := &p.r.predictions
	for held.size >= 2*p.limit && p.giveWay() {
	}
	before, ok := p.e.apply(seq)
	if !ok {
		return false
	}
	bit := uint64(1) << p.e.pos
	if before&predicted != 0 {
		if p.old == nil || p.old.stretch != p.e.stretch || p.old.owned&bit == 0 {
			p.old = held.owner(p.e.stretch, bit)
		}
		if p.old == nil || p.old.at >= p.end {
			return true
		}
	} else if before&(1<<fleet.Device) != 0 {
		return true
	} else {
		for held.n >= p.limit && p.giveWay() {
		}
	}
	to := p.into(left)
	if to == nil {
		if before&predicted == 0 {
			p.x.unmark(p.r, seq)
		}
		return false
	}
	if before&predicted != 0 {
		held.disown(p.old, bit)
	}
	had := len(to.seqs)
	for to.after() < int(p.e.pos) {
		to.seqs = append(to.seqs, 0) // not ours
	}
	to.seqs = append(to.seqs, seq)
	held.size += len(to.seqs) - had
	held.own(to, bit)
	return true
}

// giveWay ends the promise that is due first; false where there is none but this.
func (p *promising) giveWay() bool {
	held := &p.r.predictions
	if len(held.heap) == 0 {
		return false
	}
	p.old = nil // it may be of that promise
	p.x.end(p.r, held.pop())
	return true
}

// into returns the share that the block at hand goes to, a new one unless it lies behind the
// last in its stretch; nil where there is no room.
func (p *promising) into(left int) *share {
	to := p.share
	if to != nil && to.stretch == p.e.stretch && int(p.e.pos) >= to.after() && int(p.e.pos-to.start) < cap(to.seqs) {
		return to
	}
	to = p.r.predictions.take(min(left, stretchBlocks-int(p.e.pos)), &p.x.budget)
	if to == nil {
		return nil
	}
	to.at, to.stretch, to.start = p.end, p.e.stretch, p.e.pos
	to.next, p.first, p.share = p.first, to, to
	return to
}

// PredictedUntil is when the prediction of a chain's last block ends; false means that the
// rank reports the block itself, or that nothing is said of it. Blocks nearer to the root last
// at least as long, because every prediction begins there.
func (x *Index) PredictedUntil(id fleet.RankID, last blockhash.Sequence) (until time.Time, ok bool) {
	r := x.known(id)
	if r == nil {
		return time.Time{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at, pos := x.nodes.find(key(last))
	if at == nil {
		return time.Time{}, false
	}
	p := r.predictions.owner(at.stretch, 1<<pos)
	if p == nil {
		return time.Time{}, false
	}
	return time.Unix(0, p.at), true
}

func (x *Index) lowerNext(at int64) {
	for next := x.nextExpiry.Load(); at < next && !x.nextExpiry.CompareAndSwap(next, at); {
		next = x.nextExpiry.Load()
	}
}

// Expire ends the predictions whose time has come. Between two ticks of 100 ms it costs one
// comparison, so every decision can afford to call it; no call ends more than about 4,096,
// the next goes on.
func (x *Index) Expire(now time.Time) {
	at := now.UnixNano()
	if at < x.nextExpiry.Load() {
		return
	}
	x.nextExpiry.Store(never) // before the scan: a prediction made meanwhile lowers it again
	left := 4096
	for _, r := range *x.byID.Load() {
		if r == nil {
			continue
		}
		r.mu.Lock()
		p := &r.predictions
		for len(p.heap) > 0 && p.heap[0].at <= at && left > 0 {
			left -= x.end(r, p.pop())
		}
		if len(p.heap) > 0 {
			x.lowerNext(p.heap[0].at)
		}
		r.mu.Unlock()
	}
}

// end ends what a promise still owns and returns how many blocks it had.
func (x *Index) end(r *rank, ended promise) (blocks int) {
	e := x.edit(r, 0, predicted)
	for p := ended.shares; p != nil; {
		next := p.next
		blocks += len(p.seqs)
		x.endShare(r, &e, p)
		r.predictions.give(p, &x.budget)
		p = next
	}
	e.done()
	return blocks
}

func (x *Index) endShare(r *rank, e *edit, p *share) {
	if p.owned == 0 {
		return
	}
	x.nodes.fetch(p.seqs)
	owned := p.owned
	r.predictions.disown(p, owned)
	for i, seq := range p.seqs {
		if i%prefetches == 0 {
			x.nodes.fetch(p.seqs[min(i+prefetches, len(p.seqs)):])
		}
		if pos := p.start + uint8(i); owned>>pos&1 != 0 {
			e.only(p.stretch, pos)
			e.apply(seq)
		}
	}
}

// unmark takes back a bit that no promise owns.
func (x *Index) unmark(r *rank, seq blockhash.Sequence) {
	e := x.edit(r, 0, predicted)
	e.apply(seq)
	e.done()
}

// unpredict forgets a prediction whose bit has been cleared.
func (x *Index) unpredict(r *rank, at *stretch, pos uint8) {
	if p := r.predictions.owner(at, 1<<pos); p != nil {
		r.predictions.disown(p, 1<<pos)
	}
}
