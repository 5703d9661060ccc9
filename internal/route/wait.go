package route

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/programs"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// waiting is the queue of one pool.
type waiting struct {
	pool string
	len  atomic.Int64 // of queue; read without mu to see quickly whether anything waits

	programs programs.Table

	mu    sync.Mutex
	queue *queue.Queue       // guarded by mu
	open  eligible.OpenRanks // guarded by mu; memory of drain
	empty time.Time          // guarded by mu; since when requests wait for the start of a worker, or did; zero once one was served
}

// ticket is a Ticket with the request as it will be decided when its turn comes.
type ticket struct {
	waiting *waiting
	item    *queue.Item
	ready   func(*decision.Decision)

	// The request as it will be decided when its turn comes. Nothing here refers to the request's body.
	decision decision.Decision
	session  uint64 // see request.Prepared
	held     bool   // it has been held back: see Router.isHeldBack
	legs     bool   // see request.Prepared
	stored   bool
	endpoint prompt.Endpoint
	splits   bool
	hints    request.Hints
	batch    request.Batch
	policy   pick.Policy
	blocks   request.Kept
	wait     decision.Wait
	lane     eligible.LaneRanks // guarded by waiting.mu

	deciding bool               // guarded by waiting.mu; true until Decide has returned
	final    *decision.Decision // guarded by waiting.mu; the final decision, if it was made while deciding
}

// Until is the latest end of the wait.
func (t *ticket) Until() time.Time { return t.item.Until }

// setQueues gives every pool that needs one a queue, and every queue its configuration. Requests that
// wait keep their place. A queue whose pool has no model any more stays until its requests have gone.
func (r *Router) setQueues(models map[string]*serving.Model) {
	r.queuesMu.Lock()
	defer r.queuesMu.Unlock()

	list := *r.queues.Load()
	byPool := map[string]*waiting{}
	for _, w := range list {
		byPool[w.pool] = w
	}
	for _, m := range models {
		if m.Queue == nil {
			continue
		}
		w := byPool[m.Pool]
		if w == nil {
			w = &waiting{pool: m.Pool, queue: queue.New(*m.Queue)}
			byPool[m.Pool] = w
			list = append(list[:len(list):len(list)], w) // readers may hold the old slice
		} else {
			w.mu.Lock()
			w.queue.Configure(*m.Queue)
			w.mu.Unlock()
		}
	}
	r.queues.Store(&list)
}

// queueOf returns the queue of a model that has one. There are as many queues as pools, so a search is quick.
func (r *Router) queueOf(m *serving.Model) *waiting {
	for _, wt := range *r.queues.Load() {
		if wt.pool == m.Pool {
			return wt
		}
	}
	return nil // setQueues makes the queue of a model before the model is served, so this cannot happen
}

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
		waiting: r.queueOf(q.Model), ready: req.Ready, batch: q.Batch, policy: q.Policy, deciding: true,
		legs: q.ChoosesLegs, splits: q.Splits, stored: q.Stored, endpoint: q.Endpoint, session: q.Session,
		hints:  q.Hints.ForQueue(eligible.RanksFor(q.Model, r.fleet.Snapshot(), q.Role)),
		blocks: q.KeepBlocks(), wait: wait,
	}
	t.wait.Since, t.wait.Tenant = d.At, t.hints.Tenant
	return t
}

// turn returns the request as the queue has it, for a longest wait.
func (t *ticket) turn(q *request.Prepared, longest time.Duration) queue.Request {
	return queue.Request{
		Class: t.hints.Class, Tenant: t.hints.Tenant, Lane: t.hints.LaneFor(q.Model),
		Restricted: t.hints.IsRestricted() || q.Model.Adapter != "",
		Strict:     t.hints.Strict, HeadStart: t.hints.HeadStart,
		Tokens: q.Tokens, At: t.wait.Since, Until: t.wait.Since.Add(longest), Value: t,
	}
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
	r.queued.Add(1)

	// The ticket keeps a copy of the decision, which is final once its outcome is set.
	d.Outcome, req.Ticket = decision.Queued, t
	d.Wait = &t.wait
	t.decision = *d
	t.decision.Split = t.splits
	t.decision.Candidates, t.decision.Others = nil, nil // the caller may use the memory of d again
	r.drain(wt, d.At)                                   // a rank may have become free since attempt
	t.deciding = false
	if t.final != nil {
		return t.final, nil
	}
	return d, nil
}

// Wake books the waiting requests whose turn has come, and refuses the ones that have waited too long. The router calls it itself when a
// booking or its prefill ends. Call it for other causes: workers that came, a new configuration, the passing of time. It costs next to
// nothing while no request waits.
func (r *Router) Wake(now time.Time) {
	if r.queued.Load() == 0 {
		return
	}
	for _, wt := range *r.queues.Load() {
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
			r.isHeldBack(m, t.hints.Role, programs.Step{Session: t.session, Tokens: t.decision.PromptTokens}, now) {
			return false
		}
		if m != nil && t.wait.Starting && !eligible.HasReady(m, open.Snapshot(), t.hints.Role) {
			return false
		}
		return m == nil || open.CanGo(m, &t.lane, &t.hints)
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

// isHeldBack reports whether a step of a program is held back: the caches have no room for its context beside the contexts of the programs
// that are there. All steps of a program together are held back for at most half of the longest wait, and for less if programs are short.
func (r *Router) isHeldBack(m *serving.Model, role fleet.Role, step programs.Step, now time.Time) bool {
	if !m.Programs || step.Session == 0 {
		return false
	}
	capacity := 0
	ranks := eligible.RanksFor(m, r.fleet.Snapshot(), role)
	for i := range ranks {
		blocks := ranks[i].Worker.Blocks
		if blocks == 0 {
			return false // it is not known
		}
		capacity += blocks * m.BlocksIn(ranks[i].Worker) * m.BlockSize
	}
	return !r.queueOf(m).programs.Admits(step, capacity, m.MaxWait/2, now)
}

// endHold records that a request is not held back any more.
func (wt *waiting) endHold(t *ticket, now time.Time) {
	if t.held {
		t.held = false
		wt.programs.EndHold(t.session, now.Sub(t.wait.Since), now)
	}
}

// countGone counts one request less that waits. The caller has just taken it out of its queue.
func (r *Router) countGone(t *ticket, now time.Time) {
	t.waiting.endHold(t, now)
	t.waiting.len.Add(-1)
	r.queued.Add(-1)
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
	q.Hints = t.hints
	q.Batch = t.batch
	q.Model = m
	q.ChoosesLegs = t.legs
	q.Splits, q.Remote = t.splits, t.splits
	q.Stored = t.stored
	q.Endpoint = t.endpoint
	d.Role = q.Role
	q.Tokens = d.PromptTokens
	q.Policy = t.policy
	q.PolicyInput = t.hints.PolicyInput(d.Session)
	q.Session = learned.SessionHash(r.cfg.Seed, d.Session)
	q.Deadline = 0 // enqueue has checked it: a request that waits as long as was expected is not refused
	q.UseBlocks(&t.blocks)

	refused := r.attempt(w, q, d)
	switch {
	case refused == nil:
	case refused.IsBusy(): // a request that did not wait came first
		return nil
	case refused.Reason == decision.ReasonNoReadyWorker &&
		(eligible.HasRanks(m, r.fleet.Snapshot(), t.hints.Role) || r.lacksWorker(m, t.hints.Role) && r.starts(m).ok()):
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

// newDecision is a copy of the ticket's decision, still to be made.
func (t *ticket) newDecision(now time.Time) *decision.Decision {
	d, wait := t.decision, t.wait
	wait.Took = now.Sub(wait.Since)
	d.At, d.Wait = now, &wait
	d.Outcome = decision.Picked
	return &d
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
		if t.wait.Starting && r.lacksWorker(m, t.hints.Role) {
			d.Refuse(t.waiting.refuseStart(m, r.starts(m), d))
			return d
		}
	}
	d.Refuse(decision.Refuse(decision.ReasonWaitedTooLong, busy, decision.WholeSeconds(d.Wait.Took), d.Wait.Took.Seconds()))
	return d
}

// QueueEnabled reports whether any model has had a queue. If not, no Request needs a Ready.
func (r *Router) QueueEnabled() bool { return len(*r.queues.Load()) > 0 }
