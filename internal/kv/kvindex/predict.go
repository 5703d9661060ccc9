package kvindex

import (
	"math"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// predictions are the blocks that a rank is taken to hold until a time, because a request
// was sent there: a bit in the node beside those of the tiers, and here the way to take it
// back. The rank's lock guards them.
type predictions struct {
	until untilTable
	n     int     // predicted blocks
	heap  []batch // a min-heap; every predicted block is in at least one batch
	size  int     // blocks in all batches
}

// batch is what one call predicted first. A block may since have been prolonged, then until
// says so and it moves on when the batch is due; or been taken back, then until lacks it.
type batch struct {
	at   int64 // unix nanoseconds
	seqs []blockhash.Sequence
}

func (b *batch) bytes() int64 { return 64 + 8*int64(cap(b.seqs)) }

// untilTable maps predicted content to its time. It is an engine's table by shape: a Go map
// of the same took twice the memory and three times the time.
type untilTable struct{ engineTable }

func (t *untilTable) get(seq blockhash.Sequence) (at int64, ok bool) {
	v, found := t.engineTable.get(uint64(seq))
	return int64(v), found != 0
}

func (t *untilTable) set(seq blockhash.Sequence, at int64, b *budget) bool {
	return t.engineTable.set(uint64(seq), blockhash.Sequence(at), 1, b)
}

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
	var parent blockhash.Sequence
	if from > 0 {
		parent = chain[from-1]
	}
	chain = chain[from:]
	x.makeRoom(len(chain))
	r := x.rank(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return
	}
	if limit <= 0 || limit > x.cfg.MaxPredicted {
		limit = x.cfg.MaxPredicted
	}
	end := (until.UnixNano() + tick - 1) / tick * tick
	e := x.edit(r, predicted, 0)
	e.unless = 1<<fleet.Device | predicted
	defer e.done()
	fresh := batch{at: end}
	chain = chain[:min(len(chain), limit)]
	for i, seq := range chain {
		e.after(parent, from+i > 0)
		parent = seq
		ok, added := x.predict(r, &e, seq, end, limit)
		if added {
			if fresh.seqs == nil {
				fresh.seqs = make([]blockhash.Sequence, 0, len(chain)-i)
			}
			fresh.seqs = append(fresh.seqs, seq)
		}
		if !ok {
			break
		}
	}
	x.schedule(r, fresh)
}

// PredictedUntil is when the prediction of a chain's last block ends; false means that the
// rank reports the block itself, or that nothing is said of it. Blocks nearer to the root last
// at least as long, because every prediction begins there.
func (x *Index) PredictedUntil(id fleet.RankID, last blockhash.Sequence) (until time.Time, ok bool) {
	r := x.rank(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.predictions.until.get(last)
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(0, at), true
}

// predict predicts one block, unless it is reported, or prolongs it.
func (x *Index) predict(r *rank, e *edit, seq blockhash.Sequence, end int64, limit int) (ok, added bool) {
	p := &r.predictions
	for p.n >= limit || p.size >= 2*limit {
		if len(p.heap) == 0 {
			return false, false // the limit is smaller than this prompt
		}
		x.settleBatch(r, p.heap[0].at)
	}
	before, ok := e.apply(seq)
	switch {
	case !ok:
		return false, false
	case before&predicted != 0:
		if at, known := p.until.get(seq); known && at < end {
			p.until.set(seq, end, &x.budget) // its slot exists
		}
		return true, false
	case before&(1<<fleet.Device) != 0:
		return true, false
	}
	if !p.until.set(seq, end, &x.budget) {
		x.unmark(r, seq)
		return false, false
	}
	p.n++
	return true, true
}

// schedule makes sure that the batch is looked at when it is due. Without room for it in the
// budget its blocks end at once.
func (x *Index) schedule(r *rank, b batch) {
	if len(b.seqs) == 0 {
		return
	}
	if !x.budget.reserve(b.bytes()) {
		for _, seq := range b.seqs {
			x.unpredict(r, seq)
			x.unmark(r, seq)
		}
		return
	}
	r.predictions.push(b)
	x.lowerNext(b.at)
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
		for len(r.predictions.heap) > 0 && r.predictions.heap[0].at <= at && left > 0 {
			left -= len(r.predictions.heap[0].seqs)
			x.settleBatch(r, at)
		}
		if len(r.predictions.heap) > 0 {
			x.lowerNext(r.predictions.heap[0].at)
		}
		r.mu.Unlock()
	}
}

// settleBatch takes the first batch and ends what is due by now; what has been prolonged
// moves to batches of its new time.
func (x *Index) settleBatch(r *rank, now int64) {
	p := &r.predictions
	first := p.pop()
	x.budget.release(first.bytes())
	moved := batch{}
	e := x.edit(r, 0, predicted)
	defer e.done()
	for _, seq := range first.seqs {
		at, ok := p.until.get(seq)
		switch {
		case !ok: // taken back by the engine's own word
		case at <= now:
			p.until.remove(uint64(seq), &x.budget)
			p.n--
			e.apply(seq)
		default:
			if at != moved.at {
				x.schedule(r, moved)
				moved = batch{at: at}
			}
			moved.seqs = append(moved.seqs, seq)
		}
	}
	x.schedule(r, moved)
}

func (x *Index) unmark(r *rank, seq blockhash.Sequence) {
	e := x.edit(r, 0, predicted)
	e.apply(seq)
	e.done()
}

// unpredict forgets a prediction whose bit has been cleared.
func (x *Index) unpredict(r *rank, seq blockhash.Sequence) {
	if _, ok := r.predictions.until.get(seq); ok {
		r.predictions.until.remove(uint64(seq), &x.budget)
		r.predictions.n--
	}
}

func (p *predictions) push(b batch) {
	p.size += len(b.seqs)
	p.heap = append(p.heap, b)
	for i := len(p.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if p.heap[up].at <= p.heap[i].at {
			return
		}
		p.heap[up], p.heap[i] = p.heap[i], p.heap[up]
		i = up
	}
}

func (p *predictions) pop() batch {
	first, last := p.heap[0], len(p.heap)-1
	p.size -= len(first.seqs)
	p.heap[0], p.heap[last] = p.heap[last], batch{}
	p.heap = p.heap[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if down+1 < last && p.heap[down+1].at < p.heap[down].at {
			down++
		}
		if p.heap[i].at <= p.heap[down].at {
			return first
		}
		p.heap[i], p.heap[down] = p.heap[down], p.heap[i]
		i = down
	}
}
