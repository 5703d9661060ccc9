package route

import (
	"cmp"
	"time"

	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// enqueue puts a request into the queue after attempt has returned that it cannot go now. It returns d, which is
// then Queued, or the final decision if the request's turn came at once, or a refusal. free is true if a rank is
// free and others wait already.
func (r *Router) enqueue(
	w *workspace, q *request.Prepared, req *request.Request, d *decision.Decision, free bool,
) (*decision.Decision, *decision.Refusal) {
	f := &w.field
	j := r.judge.Field(&w.judged, &w.overlap, q, f, d.At)
	best, first := j.Soonest()
	t := r.newTicket(q, req, d, decision.Wait{Busy: f.Usable(), Free: free})
	wt := t.waiting
	step := w.step(q)
	t.wait.Held = r.isHeldBack(q.Model, q.Role, step, d.At)
	turn := t.turn(q, cmp.Or(q.Model.MaxWait, q.Model.Hold))
	turn.Cached, turn.Work = d.PromptTokens-best.Uncached, j.Expect(best).Prefill

	wt.mu.Lock()
	defer wt.mu.Unlock()
	if q.Deadline > 0 {
		expected := first + wt.queue.Ahead(turn)/time.Duration(f.Usable())
		if expected > q.Deadline {
			return nil, request.RefuseLate(q, expected)
		}
		if deadline := d.At.Add(q.Deadline); deadline.Before(turn.Until) {
			turn.Until = deadline
		}
	}
	if t.wait.Held {
		left, work := wt.programs.Hold(step, q.Model.MaxWait/2, d.At)
		turn.Hold = queue.Hold{Until: d.At.Add(left), Work: work}
		t.held = true
	}
	// The checks above and Push are under one lock, so no other request can come between them.
	final, full := r.push(t, turn, req, d)
	if full != nil {
		wt.endHold(t, d.At)
		return nil, decision.Refuse(decision.ReasonQueueFull, q.Model.Busy.RefusalStatus(), decision.WholeSeconds(best.Facts.Wait),
			"All ranks are busy", full)
	}
	return final, nil
}

// newTicket returns the ticket of a request that waits from now on.
func (r *Router) newTicket(q *request.Prepared, req *request.Request, d *decision.Decision, wait decision.Wait) *ticket {
	t := &ticket{
		waiting: r.queues.of(q.Model), ready: req.Ready, asked: q.Asked, blocks: q.KeepBlocks(), wait: wait, deciding: true,
	}
	t.asked.Hints = q.Hints.ForQueue(eligible.RanksFor(q.Model, r.fleet.Snapshot(), q.Role))
	t.wait.Since, t.wait.Tenant = d.At, t.asked.Tenant
	return t
}

// push puts a request into its queue, and makes the decisions that can be made. It returns d, which is then Queued, or the final decision
// if the request's turn came at once, or the limit that is reached. waiting.mu is held.
func (r *Router) push(
	t *ticket, turn queue.Request, req *request.Request, d *decision.Decision,
) (*decision.Decision, *queue.Full) {
	wt := t.waiting
	t.wait.Ahead = wt.queue.Len()
	item, full := wt.queue.Push(turn)
	if full != nil {
		return nil, full
	}
	t.item = item
	t.wait.Class = item.ClassName()
	wt.len.Add(1)
	r.queues.len.Add(1)

	// The ticket keeps a copy of the decision, which is final once its outcome is set.
	d.Outcome, req.Ticket = decision.Queued, t
	d.Wait = &t.wait
	t.decision = *d
	t.decision.Split = t.asked.Splits
	t.decision.Candidates, t.decision.Others = nil, nil // the caller may use the memory of d again
	r.drain(wt, d.At)                                   // a rank may have become free since attempt
	t.deciding = false
	if t.final != nil {
		return t.final, nil
	}
	return d, nil
}

// hold puts a request into the queue of a model that lacks a worker, if one starts because requests wait. refused is the refusal without
// that. It returns as enqueue does.
func (r *Router) hold(
	q *request.Prepared, req *request.Request, d *decision.Decision, refused *decision.Refusal,
) (*decision.Decision, *decision.Refusal) {
	if len(req.Only) > 0 || !r.lacksWorker(q.Model, q.Role) {
		return nil, refused // only workers may take it that are there
	}
	start := r.starts(q.Model)
	if !start.ok() {
		if eligible.HasRanks(q.Model, r.fleet.Snapshot(), q.Role) {
			return nil, refused
		}
		return nil, decision.Refuse(decision.ReasonNoReadyWorker, 0, unknownStart, q.Model.Name, "it has none, and "+start.Not)
	}

	q.Cut()
	d.NameBlocks(q.Chain)
	t := r.newTicket(q, req, d, decision.Wait{Starting: true})
	wt := t.waiting
	wt.mu.Lock()
	defer wt.mu.Unlock()
	// Requests that wait no more may have been the last ones, and the start that they have seen may have failed.
	if wt.empty.IsZero() || wt.queue.Len() == 0 && d.At.Sub(wt.empty) > start.After {
		wt.empty = d.At
	}
	turn := t.turn(q, q.Model.Hold)
	if q.Deadline > 0 {
		if expected := wt.startIn(start, d.At); expected > q.Deadline {
			return nil, request.RefuseLate(q, expected)
		}
		turn.Until = t.wait.Since.Add(min(q.Deadline, q.Model.Hold))
	}
	first := wt.queue.Len() == 0
	final, full := r.push(t, turn, req, d)
	if full != nil {
		after := decision.RoundUp(wt.startIn(start, d.At))
		return nil, decision.Refuse(decision.ReasonQueueFull, serving.DefaultBusyStatus, after, "No worker is ready", full)
	}
	if first && r.cfg.Waits != nil {
		r.cfg.Waits()
	}
	return final, nil
}

// QueueEnabled reports whether any model has had a queue. If not, no Request needs a Ready.
func (r *Router) QueueEnabled() bool { return len(r.queues.all()) > 0 }
