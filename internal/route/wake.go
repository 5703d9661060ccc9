package route

import (
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/programs"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// Wake books the waiting requests whose turn has come, and refuses the ones that have waited too long. The router calls it itself when a
// booking or its prefill ends. Call it for other causes: workers that came, a new configuration, the passing of time. It costs next to
// nothing while no request waits.
func (r *Router) Wake(now time.Time) {
	if r.queues.len.Load() == 0 {
		return
	}
	for _, wt := range r.queues.all() {
		if wt.len.Load() > 0 {
			r.wakeQueue(wt, now)
		}
	}
}

// wakeQueue is Wake for one queue. Expired requests leave first, so that they do not hold up others.
func (r *Router) wakeQueue(wt *waiting, now time.Time) {
	wt.mu.Lock()
	defer wt.mu.Unlock()
	for it := wt.queue.PopExpired(now); it != nil; it = wt.queue.PopExpired(now) {
		t := it.Value.(*ticket)
		r.countGone(t, now)
		r.deliver(t, r.refuseWaited(t, now))
	}
	r.drain(wt, now)
}

// drain decides for the requests that can go, in their order, until none can. wt.mu is held, so each decision sees the
// bookings of the decisions before it.
func (r *Router) drain(wt *waiting, now time.Time) {
	w := r.workspaces.acquire()
	defer r.workspaces.release(w)

	open, models := &wt.open, *r.models.Load()
	open.Begin(r.finder, now)
	canGo := func(it *queue.Item) bool {
		t := it.Value.(*ticket)
		m := models[t.decision.Model]
		if m != nil && it.IsHeld() &&
			r.isHeldBack(m, t.asked.Role, programs.Step{Session: t.asked.Session, Tokens: t.decision.PromptTokens}, now) {
			return false
		}
		if m != nil && t.wait.Starting && !eligible.HasReady(m, open.Snapshot(), t.asked.Role) {
			return false
		}
		return m == nil || open.CanGo(m, &t.lane, &t.asked.Hints)
	}
	var closed map[string]bool // lanes whose head could go and then found no free rank
	for {
		it := wt.queue.Next(func(it *queue.Item) bool { return !closed[it.Lane] && canGo(it) })
		if it == nil {
			return
		}
		t := it.Value.(*ticket)
		d := r.resume(w, t, now)
		if d == nil {
			if closed == nil {
				closed = map[string]bool{}
			}
			closed[it.Lane] = true
			continue
		}
		if d.Outcome == decision.Picked {
			open.Booked(d.Worker, d.Rank)
			wt.empty = time.Time{}
		}
		wt.queue.Take(it)
		r.countGone(t, now)
		r.deliver(t, d)
	}
}

// countGone counts one request less that waits. The caller has just taken it out of its queue.
func (r *Router) countGone(t *ticket, now time.Time) {
	t.waiting.endHold(t, now)
	t.waiting.len.Add(-1)
	r.queues.len.Add(-1)
}

// resume attempts to book a waiting request, with the models, the fleet and the index of now. It returns nil if
// the request must go on waiting.
func (r *Router) resume(w *workspace, t *ticket, now time.Time) *decision.Decision {
	d := t.newDecision(now)
	m := r.model(d.Model)
	if m == nil {
		d.Refuse(decision.Refuse(decision.ReasonModelNotFound, 0, 0, d.Model, " any more"))
		return d
	}

	q := &w.asked
	q.Reset()
	q.Asked = t.asked
	q.Model = m
	q.Remote = q.Splits
	q.Tokens = d.PromptTokens
	q.PolicyInput = q.Hints.PolicyInput(d.Session)
	d.Role = q.Role
	q.Deadline = 0 // enqueue has checked it: a request that waits as long as was expected is not refused
	q.UseBlocks(&t.blocks)

	refused := r.attempt(w, q, d)
	switch {
	case refused == nil:
	case refused.IsBusy(): // a request that did not wait came first
		return nil
	case refused.Reason == decision.ReasonNoReadyWorker &&
		(eligible.HasRanks(m, r.fleet.Snapshot(), t.asked.Role) || r.lacksWorker(m, t.asked.Role) && r.starts(m).ok()):
		return nil // its workers may become ready again, or others start
	default:
		r.refuse(d, m, refused)
	}
	return d
}

// chain makes the block names of a request that waited, if Config.Decided needs them.
func (r *Router) chain(t *ticket, d *decision.Decision) []blockhash.Sequence {
	if r.cfg.Decided == nil || t.blocks.Len() != d.Blocks { // a reload may have changed the block size
		return nil
	}
	return t.blocks.Chain()
}

// deliver passes on the final decision of a request that is out of the queue. waiting.mu is held.
func (r *Router) deliver(t *ticket, d *decision.Decision) {
	if t.deciding && d.Wait.Took == 0 {
		d.Wait = nil // it did not wait
	}
	r.finish(d, r.chain(t, d))
	if t.deciding {
		t.final = d
		return
	}
	t.ready(d)
}

// Cancel takes a request whose client has gone out of the queue, and reports whether it was still there.
// If not, its final decision was passed to Request.Ready before Cancel returns.
func (r *Router) Cancel(of request.Ticket) bool {
	t := of.(*ticket)
	t.waiting.mu.Lock()
	defer t.waiting.mu.Unlock()
	if !t.waiting.queue.Remove(t.item) {
		return false
	}
	r.countGone(t, t.wait.Since) // the wait of a request that never went does not count as its program's
	r.counts.cancelled.Add(1)
	return true
}

// Expire ends the wait of a request at Until, and returns its refusal. It returns nil if the final decision was
// passed to Request.Ready already.
func (r *Router) Expire(of request.Ticket, now time.Time) *decision.Decision {
	t := of.(*ticket)
	t.waiting.mu.Lock()
	defer t.waiting.mu.Unlock()
	if !t.waiting.queue.Remove(t.item) {
		return nil
	}
	r.countGone(t, now)
	d := r.refuseWaited(t, now)
	r.finish(d, r.chain(t, d))
	return d
}

// refuseWaited is the refusal of a request that has waited too long.
func (r *Router) refuseWaited(t *ticket, now time.Time) *decision.Decision {
	d := t.newDecision(now)
	busy := serving.DefaultBusyStatus
	if m := r.model(d.Model); m != nil {
		busy = m.Busy.RefusalStatus()
		if t.wait.Starting && r.lacksWorker(m, t.asked.Role) {
			d.Refuse(t.waiting.refuseStart(m, r.starts(m), d))
			return d
		}
	}
	d.Refuse(decision.Refuse(decision.ReasonWaitedTooLong, busy, decision.WholeSeconds(d.Wait.Took), d.Wait.Took.Seconds()))
	return d
}
