package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/pick"
)

// Decide picks a rank for req, and books req there. If it returns Queued, the final decision comes through Request.Ready. It
// never waits and never returns nil. Every Picked decision must be followed by one End, and every Queued one by a call of
// Ready, by Cancel or by Expire.
func (r *Router) Decide(req *Request, now time.Time) *Decision {
	return r.DecideInto(new(Decision), req, now)
}

// DecideInto is Decide for a caller that uses a decision again. It overwrites d and its slices. It returns d, or another
// decision for a request whose turn in the queue came at once. It allocates nothing if the request has an ID, its body is
// parsed, and its prompt was seen before.
func (r *Router) DecideInto(d *Decision, req *Request, now time.Time) *Decision {
	w := r.acquire()
	defer r.release(w)

	// Only the memory of the slices is used again. Everything else of the last decision must go.
	*d = Decision{
		ID: req.ID, At: now, Session: keptLabel(req.Session), Source: keptLabel(req.Source),
		Candidates: d.Candidates[:0], Others: d.Others[:0],
	}
	if d.ID == "" {
		d.ID = r.NewID()
	}

	req.Ticket = nil
	final := r.decide(w, req, d)
	req.keep(&w.asked, d)
	if final != d {
		return final // it went through the queue without waiting, and is finished already
	}
	r.finish(d, w.asked.chain[:d.Blocks])
	return d
}

// finish counts a decision and keeps it for Explain. chain is its prompt's blocks.
func (r *Router) finish(d *Decision, chain []blockhash.Sequence) {
	r.counts.add(d)
	r.recent.add(d)
	if d.Outcome == Queued || d.Role == fleet.Prefill { // that is a part of a request
		return
	}
	if r.cfg.Counted != nil {
		r.cfg.Counted(d)
	}
	if r.cfg.Decided != nil {
		r.cfg.Decided(d, chain)
	}
}

// decide reads the request and attempts to book it, or puts it into the queue. It returns d, or the
// final decision of a request whose turn in the queue came at once.
func (r *Router) decide(w *workspace, req *Request, d *Decision) *Decision {
	q := &w.asked
	var refused *refusal
	if k := r.kept(req); k != nil {
		refused = q.reuse(req, k, d)
	} else {
		refused = r.read(w, q, req, d)
	}
	if refused == nil {
		refused = r.attempt(w, q, d)
		if refused == nil {
			return d
		}
		if q.mayWait && (refused.isBusy() || refused == queueOccupied) {
			var final *Decision
			final, refused = r.enqueue(w, q, req, d, refused == queueOccupied)
			if refused == nil {
				return final
			}
		}
	}

	r.refuse(d, q.model, refused)
	return d
}

// refuse makes d a refusal. An adapter that no ready worker has is asked for.
func (r *Router) refuse(d *Decision, m *model, why *refusal) {
	d.refuse(why)
	if why.reason == ReasonNoReadyWorker && m.Loadable && r.cfg.Missing != nil {
		r.cfg.Missing(m.name)
	}
}

// attempt is the decision in one sentence: blocks → overlap → costs → pick. A request that comes and one whose turn in the queue has
// come both go through it. It returns nil for a request that is booked, and else the reason why it is not. For a request that may
// wait, w then has its overlap.
func (r *Router) attempt(w *workspace, q *asked, d *Decision) *refusal {
	f := r.finder.find(&w.field, q, d.At)
	refused := f.refusal(q, d.At)
	if refused != nil && !(refused.isBusy() && q.mayWait) {
		return refused
	}

	// A request that may wait is judged too, so it needs its overlap although no rank is free.
	q.cut()
	q.policyInput.Blocks = q.chain
	d.nameBlocks(q.chain)
	r.index.Expire(d.At)
	r.index.Lookup(q.blocks, &w.overlap)
	switch {
	case refused != nil:
		return refused
	case q.mayWait && r.queueOf(q.model).len.Load() > 0:
		return queueOccupied
	}

	if q.choosesLegs {
		if refused := r.chooseLegs(w, q, d); refused != nil {
			return refused
		}
	}
	d.Cost = q.model.choice(q.role).Cost.String()
	won, refused := r.book(w, q, d)
	if refused != nil {
		return refused
	}
	w.judged.candidates[won].Rank.Load.Health().Picked(d.At)
	w.judged.explain(d, won, r.cfg.Candidates)
	r.predicts.make(d.ID, q.session, q.chain, &w.overlap, *w.judged.candidates[won].Rank, d.At)
	if !r.bookings.Has(d.ID) { // it has ended meanwhile, or the table is full
		r.predicts.promises.drop(d.ID)
	}
	r.speeds.of(w.judged.candidates[won].Rank.Worker).reuse.observe(d.PromptTokens, d.Cached)
	r.judge.uses.touch(*w.judged.candidates[won].Rank, q.chain)
	return nil
}

// queueOccupied makes a request join the queue although a rank is free, because others wait already. It
// never reaches a client.
var queueOccupied = &refusal{}

// PrefillTimeout bounds the time that prefill workers have for the prompt of a request whose decision is Split.
const PrefillTimeout = 30 * time.Second

// maxRaces is the number of races that a decision may lose before it books whatever the load.
const maxRaces = 64

// book judges, chooses and books. It begins again if the chosen rank's load has changed since it was judged. Each lost
// race means that another decision was booked, so all decisions together make progress; maxRaces bounds the wait of a
// decision that loses each time.
func (r *Router) book(w *workspace, q *asked, d *Decision) (won int, refused *refusal) {
	f, busy := &w.field, &q.model.Busy
	for try := 0; ; try++ {
		if try > 0 && (busy.isSet() || f.admitted) { // the booking that came first may have filled the rank
			f = r.finder.find(&w.field, q, d.At)
			if refused := f.refusal(q, d.At); refused != nil {
				return 0, refused
			}
		}
		j := r.judge.field(&w.judged, &w.overlap, q, f, d.At)
		if q.deadline > 0 {
			if _, first := j.soonest(); first > q.deadline {
				return 0, refuseLate(q, first)
			}
			j.dropLate(q.deadline)
		}

		won := q.policy.Choose(j.candidates, &q.policyInput, w.rng)
		c := &j.candidates[won]
		k := r.newBooking(q, j, c, d)
		if try == maxRaces {
			r.bookings.Force(d.ID, k)
			return won, nil
		}
		if busy.isSet() && r.finder.isBusyWith(busy, c.Rank, &c.Facts.Booked, d.At) {
			continue // it became busy after it was found free
		}
		if f.admitted && !admits(c.Rank, c.Facts.Booked.Requests, d.At) {
			continue // another request went to a half-open worker meanwhile
		}
		if r.bookings.Start(d.ID, k, c.Facts.Booked) {
			return won, nil
		}
	}
}

// newBooking is the booking of a request on a candidate.
func (r *Router) newBooking(q *asked, j *judged, c *pick.Candidate, d *Decision) pick.Booking {
	amount, there := j.booking, j.expect(c)
	amount.PrefillTokens = int64(c.Uncached)
	amount.PrefillTime = there.added
	last := d.Last
	switch {
	case last == 0:
	case q.batch.prompts > 1:
		last = 0 // it is the first prompt's, and shows nothing of the others
	case q.remote, r.index.IsReported(c.Rank.ID, blockhash.Sequence(last)):
		last = 0 // the block is there already, so no event will show that the prompt is computed
	}
	firstToken, cached := there.wait+there.added, d.PromptTokens-c.Uncached
	if q.remote {
		firstToken += PrefillTimeout
		cached = c.Facts.Cached(&j.request)
	}
	certain := min(cached, c.Facts.Overlap[fleet.Device]*max(1, j.request.BlockSize))
	return pick.Booking{
		Rank: *c.Rank, Amount: amount, Last: last, Source: d.Source, At: d.At,
		Tokens:     pick.Tokens{Prompt: int32(d.PromptTokens), Cached: int32(cached), Certain: int32(certain)},
		FirstToken: pick.InMicros(firstToken),
	}
}
