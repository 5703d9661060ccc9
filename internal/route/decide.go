package route

import (
	"time"
	"unique"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/breaks"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/programs"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/score"
	"github.com/stator-project/stator/internal/route/serving"
)

// Decide picks a rank for req, and books req there. If it returns Queued, the final decision comes through Request.Ready. It
// never waits and never returns nil. Every Picked decision must be followed by one End, and every Queued one by a call of
// Ready, by Cancel or by Expire.
func (r *Router) Decide(req *request.Request, now time.Time) *decision.Decision {
	return r.DecideInto(new(decision.Decision), req, now)
}

// DecideInto is Decide for a caller that uses a decision again. It overwrites d and its slices. It returns d, or another
// decision for a request whose turn in the queue came at once. It allocates nothing if the request has an ID, its body is
// parsed, and its prompt was seen before.
func (r *Router) DecideInto(d *decision.Decision, req *request.Request, now time.Time) *decision.Decision {
	w := r.workspaces.acquire()
	defer r.workspaces.release(w)

	// Only the memory of the slices is used again. Everything else of the last decision must go.
	*d = decision.Decision{
		ID: req.ID, At: now, Client: decision.Client{
			Session: decision.Label(req.Session), Source: decision.Label(req.Source), Account: decision.Label(req.Tenant),
		},
		Candidates: d.Candidates[:0], Placement: decision.Placement{Others: d.Others[:0]},
	}
	if d.ID == "" {
		d.ID = r.NewID()
	}

	req.Ticket = nil
	final := r.decide(w, req, d)
	req.Keep(&w.asked, d)
	if final != d {
		return final // it went through the queue without waiting, and is finished already
	}
	r.finish(d, w.asked.Chain[:d.Blocks])
	return d
}

// finish counts a decision and keeps it for Explain. chain is its prompt's blocks.
func (r *Router) finish(d *decision.Decision, chain []blockhash.Sequence) {
	r.counts.countDecision(d)
	r.recent.Add(d)
	if d.Outcome == decision.Queued || d.Role == fleet.Prefill { // that is a part of a request
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
func (r *Router) decide(w *workspace, req *request.Request, d *decision.Decision) *decision.Decision {
	q := &w.asked
	var refused *decision.Refusal
	if k := r.kept(req); k != nil {
		refused = q.Reuse(req, k, d)
		q.Session = learned.SessionHash(r.cfg.Seed, d.Session)
	} else {
		refused = r.readPrompt(w, q, req, d)
	}
	if refused == nil {
		refused = r.attempt(w, q, d)
		if refused == nil {
			return d
		}
		var final *decision.Decision
		switch {
		case !q.MayWait:
		case refused == queueOccupied, refused.IsBusy() && q.Model.MaxWait > 0:
			final, refused = r.enqueue(w, q, req, d, refused == queueOccupied)
		case refused.Reason == decision.ReasonNoReadyWorker && q.Model.Hold > 0:
			final, refused = r.hold(q, req, d, refused)
		}
		if refused == nil {
			return final
		}
	}

	if q.Dry {
		d.Refuse(refused)
		return d
	}
	r.refuse(d, q.Model, refused)
	return d
}

// dryID is the id of decisions that were made for no request.
const dryID = "dry-run"

// DryRun returns the decision that Decide would make about req now, with all candidates. It books, counts and learns nothing; only the
// policy round-robin counts it as a turn. A request that would have to wait is refused as busy. req must have no Ready.
func (r *Router) DryRun(req *request.Request, now time.Time) *decision.Decision {
	w := r.workspaces.acquire()
	defer r.workspaces.release(w)
	dry := *req
	dry.Dry = true
	return r.decide(w, &dry, &decision.Decision{ID: dryID, At: now, Client: decision.Client{Session: decision.Label(req.Session)}})
}

// refuse makes d a refusal. An adapter that no ready worker has is asked for.
func (r *Router) refuse(d *decision.Decision, m *serving.Model, why *decision.Refusal) {
	d.Refuse(why)
	if why.Reason == decision.ReasonNoReadyWorker && m.Loadable && r.cfg.Missing != nil {
		r.cfg.Missing(m.Name)
	}
}

// attempt is the decision in one sentence: blocks → overlap → costs → pick. A request that comes and one whose turn in the queue has
// come both go through it. It returns nil for a request that is booked, and else the reason why it is not. For a request that may
// wait, w then has its overlap.
func (r *Router) attempt(w *workspace, q *request.Prepared, d *decision.Decision) *decision.Refusal {
	f := r.finder.Find(&w.field, q, d.At)
	refused := f.Refusal(q, d.At)
	if refused != nil && !(refused.IsBusy() && q.MayWait) {
		return refused
	}

	// A request that may wait is judged too, so it needs its overlap although no rank is free.
	q.Cut()
	q.PolicyInput.Blocks = q.Chain
	d.NameBlocks(q.Chain)
	r.index.Expire(d.At)
	r.lookUp(w, q)
	if q.DecodeID != "" {
		q.Onward = r.onward(q.DecodeID)
	}
	q.Steps.End(request.LookedUp)
	r.watchPrompt(w, q, d)
	switch {
	case refused != nil:
		return refused
	case q.MayWait && (r.queueOf(q.Model).len.Load() > 0 || r.isHeldBack(q.Model, q.Role, w.step(q), d.At)):
		return queueOccupied
	}

	if q.ChoosesLegs {
		if refused := r.chooseLegs(w, q, d); refused != nil {
			return refused
		}
	}
	d.Cost = q.Model.Choice(q.Role).Cost.String()
	won, refused := r.book(w, q, d)
	if refused != nil {
		return refused
	}
	q.Steps.End(request.Booked)
	if q.Dry {
		w.judged.Explain(d, won, len(w.judged.Candidates))
		return nil
	}
	w.judged.Explain(d, won, r.cfg.Candidates)
	if r.cfg.Shadow {
		return nil
	}
	w.judged.Candidates[won].Rank.Load.Picked(d.At)
	if q.Stored {
		r.places.Put(q.Session, w.judged.Candidates[won].Rank.Worker.Name)
	}
	r.predict(w, q, d, &w.judged.Candidates[won])
	if !r.IsBooked(d.ID) { // it has ended meanwhile, or the table is full
		r.predictor.Forget(d.ID)
	}
	if q.Model.Programs {
		r.queueOf(q.Model).programs.Began(programs.Step{Session: q.Session, Tokens: q.Tokens}, d.At)
	}
	r.speeds.Of(w.judged.Candidates[won].Rank.Worker).Reuse.Observe(d.PromptTokens, d.PromptTokens-w.judged.Candidates[won].Uncached)
	if !d.AnyRank {
		r.judge.Touch(&w.judged.Candidates[won], q.Chain)
	}
	return nil
}

// lookUp finds the part of the prompt that each rank holds, by the blocks of its engine's size.
func (r *Router) lookUp(w *workspace, q *request.Prepared) {
	r.index.Lookup(q.Blocks, &w.overlap)
	for i := range q.Coarse {
		r.index.Lookup(q.Coarse[i].Blocks, &w.coarse)
		w.overlap.Add(&w.coarse, q.Coarse[i].Each)
	}
}

// predict makes the index expect the prompt's blocks on the picked rank, if the engine computes the prompt there and has a
// prefix cache.
func (r *Router) predict(w *workspace, q *request.Prepared, d *decision.Decision, c *pick.Candidate) {
	chain, each := q.ChainOn(c.Rank.Worker)
	if c.AnyRank || !c.Rank.Load.Caches() {
		chain = nil
	}
	held := w.overlap.Of(c.Rank.ID)[fleet.Device] / each
	r.predictor.Predict(d.ID, q.Session, chain, held, *c.Rank, d.At)
}

// watchPrompt looks for a place in the prompt that keeps caches from being hit: see package breaks. A dry run and the prefill part of a
// request are not looked at, nor requests with several prompts.
func (r *Router) watchPrompt(w *workspace, q *request.Prepared, d *decision.Decision) {
	if q.Parsed == nil || q.Dry || q.Role == fleet.Prefill || q.Batch.Prompts > 1 {
		return
	}
	r.breaks.Observe(&breaks.Request{
		Model: q.Model.Name, Seed: q.Model.Seed(q.Parsed.CacheSalt, w.prompt.Media), Session: q.Session,
		Prompt: &w.prompt, Messages: q.Parsed.Messages, Cached: w.mostCached(q.Model.BlockSize), At: d.At,
	})
}

// step returns the request as a step of its program. What is cached matters for models that hold programs back alone.
func (w *workspace) step(q *request.Prepared) programs.Step {
	s := programs.Step{Session: q.Session, Tokens: q.Tokens}
	if q.Model.Programs && s.Session != 0 {
		s.Cached = w.mostCached(q.Model.BlockSize)
	}
	return s
}

// mostCached returns the tokens of the prompt that the rank with the most of it has, in any tier.
func (w *workspace) mostCached(blockSize int) (tokens int) {
	for _, held := range w.overlap.Ranks() {
		blocks := 0
		for _, n := range held.Blocks {
			blocks += n
		}
		tokens = max(tokens, blocks*blockSize)
	}
	return tokens
}

// queueOccupied makes a request join the queue although a rank is free, because others wait already. It
// never reaches a client.
var queueOccupied = &decision.Refusal{}

// PrefillTimeout bounds the time that prefill workers have for the prompt of a request whose decision is Split.
const PrefillTimeout = 30 * time.Second

// maxRaces is the number of races that a decision may lose before it books whatever the load.
const maxRaces = 64

// book judges, chooses and books. It begins again if the chosen rank's load has changed since it was judged. Each lost
// race means that another decision was booked, so all decisions together make progress; maxRaces bounds the wait of a
// decision that loses each time.
func (r *Router) book(w *workspace, q *request.Prepared, d *decision.Decision) (won int, refused *decision.Refusal) {
	f, busy := &w.field, &q.Model.Busy
	for try := 0; ; try++ {
		if try > 0 && (busy.IsSet() || f.Admitted) { // the booking that came first may have filled the rank
			f = r.finder.Find(&w.field, q, d.At)
			if refused := f.Refusal(q, d.At); refused != nil {
				return 0, refused
			}
		}
		j := r.judge.Field(&w.judged, &w.overlap, q, f, d.At)
		q.Steps.End(request.Judged)
		if q.Deadline > 0 {
			if _, first := j.Soonest(); first > q.Deadline {
				return 0, request.RefuseLate(q, first)
			}
			j.DropLate(q.Deadline)
		}

		won := q.Policy.Choose(j.Candidates, &q.PolicyInput, w.rng)
		if r.cfg.Shadow || q.Dry {
			return won, nil
		}
		c := &j.Candidates[won]
		k := r.newBooking(q, j, c, d)
		if try == maxRaces {
			r.bookings.Force(d.ID, k)
			return won, nil
		}
		if busy.IsSet() && r.finder.IsBusyWith(busy, c.Rank, &c.Facts.Booked, d.At) {
			continue // it became busy after it was found free
		}
		if f.Admitted && !eligible.Admits(c.Rank, c.Facts.Booked.Requests, d.At) {
			continue // another request went to a half-open worker meanwhile
		}
		if r.bookings.Start(d.ID, k, c.Facts.Booked) {
			return won, nil
		}
	}
}

// newBooking is the booking of a request on a candidate.
func (r *Router) newBooking(q *request.Prepared, j *score.Judged, c *pick.Candidate, d *decision.Decision) pick.Booking {
	amount, there := j.Booking, j.Expect(c)
	amount.PrefillTokens = int64(c.Uncached)
	amount.PrefillTime = there.Added
	// The booking's blocks are the engine's own.
	chain, each := q.ChainOn(c.Rank.Worker)
	amount.DecodeBlocks = (amount.DecodeBlocks + int64(each) - 1) / int64(each)
	last := uint64(0)
	if len(chain) > 0 {
		last = uint64(chain[len(chain)-1])
	}
	switch {
	case last == 0:
	case c.AnyRank, !c.Rank.Load.Caches():
		last = 0 // another rank may compute the prompt, or the engine stores no blocks: the picked rank's events show nothing
	case q.Batch.Prompts > 1:
		last = 0 // it is the first prompt's, and shows nothing of the others
	case q.Remote, r.index.IsReported(c.Rank.ID, blockhash.Sequence(last)):
		last = 0 // the block is there already, so no event will show that the prompt is computed
	}
	firstToken, cached := there.Wait+there.Added, j.Promised(c)
	if q.Remote {
		firstToken += PrefillTimeout
		cached = c.Facts.Cached(&j.Request)
	}
	certain := min(cached, c.Facts.Overlap[fleet.Device]*max(1, j.Request.BlockSize))
	outside, from := j.LoadedOutside(c)

	return pick.Booking{
		Rank: *c.Rank, Amount: amount, Last: last, At: d.At,
		Tokens: pick.Tokens{
			Prompt: int32(d.PromptTokens), Cached: int32(cached), Certain: int32(certain), Outside: int32(outside), OutsideTier: from,
		},
		FirstToken: pick.InMicros(firstToken),
		Caller:     unique.Make(pick.Caller{Source: d.Source, Account: d.Account, Stream: d.Stream}),
	}
}
