package route

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/breaks"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/predict"
	"github.com/stator-project/stator/internal/route/programs"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

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
	case q.MayWait && (r.queues.of(q.Model).len.Load() > 0 || r.isHeldBack(q.Model, q.Role, w.step(q), d.At)):
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
	if !r.cfg.Shadow {
		r.recordPick(w, q, d, &w.judged.Candidates[won])
	}
	return nil
}

// queueOccupied makes a request join the queue although a rank is free, because others wait already. It
// never reaches a client.
var queueOccupied = &decision.Refusal{}

// lookUp finds the part of the prompt that each rank holds, by the blocks of its engine's size.
func (r *Router) lookUp(w *workspace, q *request.Prepared) {
	r.index.Lookup(q.Blocks, &w.overlap)
	for i := range q.Coarse {
		r.index.Lookup(q.Coarse[i].Blocks, &w.coarse)
		w.overlap.Add(&w.coarse, q.Coarse[i].Each)
	}
}

// recordPick records a request that is booked on a candidate where later decisions look for it.
func (r *Router) recordPick(w *workspace, q *request.Prepared, d *decision.Decision, c *pick.Candidate) {
	c.Rank.Load.Picked(d.At)
	if q.Stored {
		r.places.Put(q.Session, c.Rank.Worker.Name)
	}
	r.predict(w, q, d, c)
	if !r.IsBooked(d.ID) { // it has ended meanwhile, or the table is full
		r.predictor.Forget(d.ID)
	}
	if q.Model.Programs {
		r.queues.of(q.Model).programs.Began(programs.Step{Session: q.Session, Tokens: q.Tokens}, d.At)
	}
	class := r.speeds.Of(c.Rank.Worker)
	class.Reuse.Observe(d.PromptTokens, d.PromptTokens-c.Uncached)
	if c.Uncached > 0 {
		class.Passes.Observe(c.Facts.Passes(c.Uncached))
	}
	if !d.AnyRank {
		r.judge.Touch(c, q.Chain)
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
	r.predictor.Predict(d.ID, q.Session, chain, held, *c.Rank, d.At.Add(w.judged.FirstToken(c)))
}

// Expect makes the index expect the blocks of a prompt that another router has sent to a rank, or no longer expect them.
func (r *Router) Expect(p predict.Prediction) { r.predictor.Expect(p) }

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

// refuse makes d a refusal. An adapter that no ready worker has is asked for.
func (r *Router) refuse(d *decision.Decision, m *serving.Model, why *decision.Refusal) {
	d.Refuse(why)
	if why.Reason == decision.ReasonNoReadyWorker && m.Loadable && r.cfg.Missing != nil {
		r.cfg.Missing(m.Name)
	}
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
