package kvindex

import (
	"math"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// predictions are the blocks that a rank is taken to hold until a time, because a request
// was sent there: a bit in the node beside those of the tiers, and here the way to take it
// back.
type predictions struct {
	until map[blockhash.Sequence]int64 // unix nanoseconds
	heap  []expiry                     // a min-heap with one entry for each of until
}

// expiry may be earlier than the prediction's own time, which a later call may have moved.
type expiry struct {
	at  int64
	seq blockhash.Sequence
}

const (
	predictionBytes = 72
	// tick is how finely expiry works: a prediction ends at the first multiple of it that is
	// not before its time, so that the request path need not look for every one alone.
	tick  = int64(100 * time.Millisecond)
	never = int64(math.MaxInt64)
)

// Predict takes rank to hold blocks, a chain from the root, on its device until a time;
// blocks that it reports there already are left out. A later call prolongs. limit bounds the
// rank's predicted blocks, beside Config.MaxPredicted; 0 is no limit of its own. What expires
// first gives way.
func (x *Index) Predict(id fleet.RankID, blocks []blockhash.Block, until time.Time, limit int) {
	x.makeRoom(len(blocks))
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
	defer e.done()
	var seq blockhash.Sequence
	for i, b := range blocks[:min(len(blocks), limit)] {
		if i == 0 {
			seq = blockhash.Sequence(b)
		} else {
			seq = blockhash.Next(seq, b)
		}
		if !x.predict(r, &e, seq, end, limit) {
			break
		}
	}
	for at := x.nextExpiry.Load(); end < at && !x.nextExpiry.CompareAndSwap(at, end); {
		at = x.nextExpiry.Load()
	}
}

func (x *Index) predict(r *rank, e *edit, seq blockhash.Sequence, end int64, limit int) bool {
	p := &r.predictions
	if at, ok := p.until[seq]; ok {
		p.until[seq] = max(at, end)
		return true
	}
	if x.nodes.lookup(seq, e.age).tiers(r.holder)&(1<<fleet.Device) != 0 {
		return true
	}
	for len(p.until) >= limit || len(p.heap) >= 2*limit {
		x.expireFirst(r)
	}
	if !x.budget.reserve(predictionBytes) {
		return false
	}
	if _, ok := e.apply(seq); !ok {
		x.budget.release(predictionBytes)
		return false
	}
	if p.until == nil {
		p.until = map[blockhash.Sequence]int64{}
	}
	p.until[seq] = end
	p.push(expiry{end, seq})
	return true
}

// Expire ends the predictions whose time has come. Between two ticks of 100 ms it costs one
// comparison, so every decision can afford to call it.
func (x *Index) Expire(now time.Time) {
	at := now.UnixNano()
	if at < x.nextExpiry.Load() {
		return
	}
	x.nextExpiry.Store(never) // before the scan: a prediction made meanwhile lowers it again
	next := never
	for _, r := range *x.byID.Load() {
		if r == nil {
			continue
		}
		r.mu.Lock()
		for len(r.predictions.heap) > 0 && r.predictions.heap[0].at <= at {
			x.expireOrMove(r, at)
		}
		if len(r.predictions.heap) > 0 {
			next = min(next, r.predictions.heap[0].at)
		}
		r.mu.Unlock()
	}
	for at := x.nextExpiry.Load(); next < at && !x.nextExpiry.CompareAndSwap(at, next); {
		at = x.nextExpiry.Load()
	}
}

// expireOrMove handles the first of the heap: a prolonged prediction moves to its new time.
func (x *Index) expireOrMove(r *rank, now int64) {
	p := &r.predictions
	first := p.pop()
	until, ok := p.until[first.seq]
	switch {
	case !ok: // taken back by the engine's own word
		x.budget.release(predictionBytes)
	case until > now:
		p.push(expiry{until, first.seq})
	default:
		x.endPrediction(r, first.seq)
		x.budget.release(predictionBytes)
	}
}

// expireFirst makes room for another prediction.
func (x *Index) expireFirst(r *rank) {
	p := &r.predictions
	for len(p.heap) > 0 {
		first := p.pop()
		x.budget.release(predictionBytes)
		if _, ok := p.until[first.seq]; ok {
			x.endPrediction(r, first.seq)
			return
		}
	}
}

func (x *Index) endPrediction(r *rank, seq blockhash.Sequence) {
	delete(r.predictions.until, seq)
	e := x.edit(r, 0, predicted)
	e.apply(seq)
	e.done()
}

// unpredict forgets a prediction whose bit has been cleared; its entry in the heap goes when
// its time comes.
func (x *Index) unpredict(r *rank, seq blockhash.Sequence) { delete(r.predictions.until, seq) }

func (p *predictions) push(e expiry) {
	p.heap = append(p.heap, e)
	for i := len(p.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if p.heap[up].at <= p.heap[i].at {
			return
		}
		p.heap[up], p.heap[i] = p.heap[i], p.heap[up]
		i = up
	}
}

func (p *predictions) pop() expiry {
	first, last := p.heap[0], len(p.heap)-1
	p.heap[0] = p.heap[last]
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
