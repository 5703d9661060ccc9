package route

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/queue"
)

// waiting is the queue of one pool.
type waiting struct {
	pool string
	len  atomic.Int64 // of queue

	mu    sync.Mutex
	queue *queue.Queue // guarded by mu
}

// Wait is what a decision knows of the time that its request waited.
type Wait struct {
	// Since is when the request came, and Took how long it has waited.
	Since time.Time
	Took  time.Duration
	// Class and Tenant are where it stood, Ahead how many waited in all when it came, and Busy how
	// many ranks could have taken it, had they been free; none where Free says that some were, but
	// others stood before it.
	Class, Tenant string
	Ahead, Busy   int
	Free          bool
}

// Ticket is a request's place in the queue.
type Ticket struct {
	waiting *waiting
	item    *queue.Item
	ready   func(*Decision)

	// What the decision is made of when its turn comes. Nothing here refers to the request's body.
	decision Decision
	asks     asks
	policy   pick.Policy
	blocks   []blockhash.Block
	wait     Wait

	// Guarded by waiting.mu: while Decide is still at work the final decision is its to return.
	deciding bool
	final    *Decision
}

// Until is when the wait ends at the latest: see [Router.GiveUp].
func (t *Ticket) Until() time.Time { return t.item.Until }

// setQueues gives every model its pool's queue, and every queue its configuration: who waits keeps
// their place.
func (r *Router) setQueues(models map[string]*model) {
	r.queuesMu.Lock()
	defer r.queuesMu.Unlock()
	have := map[string]*waiting{}
	for _, w := range *r.queues.Load() {
		have[w.pool] = w
	}
	list := *r.queues.Load()
	for _, m := range models {
		if m.Queue == nil {
			continue
		}
		w := have[m.Pool]
		if w == nil {
			w = &waiting{pool: m.Pool, queue: queue.New(*m.Queue)}
			have[m.Pool], list = w, append(list[:len(list):len(list)], w)
		} else {
			w.mu.Lock()
			w.queue.Configure(*m.Queue)
			w.mu.Unlock()
		}
		m.waiting = w
	}
	r.queues.Store(&list)
}

// parks says whether a request that was refused because its ranks are busy may wait instead.
func (m *model) parks(d *Decision, req *Request) bool {
	return m.waiting != nil && req.Ready != nil && d.busy()
}

// busy says whether what stood in the decision's way is that its ranks were busy.
func (d *Decision) busy() bool { return d.Reason == Overloaded || d.Reason == PinnedBusy }

// crowded says whether others wait, so that a request that could go has to take its turn.
func (m *model) crowded(req *Request) bool {
	return m.waiting != nil && req.Ready != nil && m.waiting.len.Load() > 0
}

// enqueue has the request wait, and returns the decision to hand back: d, which is Queued, or the
// final one where its turn has come at once.
func (r *Router) enqueue(s *scratch, m *model, d *Decision, req *Request) (*Decision, *prompt.Error) {
	r.score(s, m, d)
	best, first := r.soonest(s)
	t := &Ticket{
		waiting: m.waiting, ready: req.Ready, asks: s.asks.kept(), policy: s.policy, deciding: true,
		blocks: append([]blockhash.Block(nil), s.blocks...),
		wait:   Wait{Since: d.At, Busy: len(s.ranks), Free: d.Reason == ""},
	}
	ask := queue.Request{
		Class: t.asks.class, Tenant: t.asks.tenant, Lane: t.asks.lane(), Strict: t.asks.strict, Jump: t.asks.jump,
		Tokens: d.PromptTokens, Cached: d.PromptTokens - best.Uncached, Work: first - best.Facts.Wait, At: d.At, Until: d.At.Add(m.MaxWait), Value: t,
	}
	w := m.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.asks.deadline > 0 {
		ahead := first + w.queue.Ahead(ask)/time.Duration(len(s.ranks))
		if ahead > s.asks.deadline {
			return nil, s.tooLate(m, d, ahead)
		}
		if by := d.At.Add(s.asks.deadline); by.Before(ask.Until) {
			ask.Until = by
		}
	}
	t.wait.Ahead = w.queue.Len()
	item, full := w.queue.Push(ask)
	if full != nil {
		d.RetryAfter = retryIn(best.Facts.Wait)
		return nil, d.no(QueueFull, m.Busy.status(), "", fmt.Sprintf("All ranks are busy, and %s. Try again in %d seconds.", full, int(d.RetryAfter.Seconds())))
	}
	t.item, t.wait.Class, t.wait.Tenant = item, item.ClassName(), t.asks.tenant
	w.len.Add(1)
	r.queued.Add(1)
	d.Outcome, d.Ticket, d.Wait, d.Err, d.Reason, d.RetryAfter = Queued, t, &t.wait, nil, "", 0
	t.decision = *d
	t.decision.Candidates, t.decision.Others = nil, nil // d's memory may be used again
	r.drain(w, d.At)
	t.deciding = false
	if t.final != nil {
		return t.final, nil
	}
	return d, nil
}

// soonest is the candidate whose first token is expected first, and when that is, from now.
func (r *Router) soonest(s *scratch) (best *pick.Candidate, first time.Duration) {
	for i := range s.candidates {
		if at := r.firstToken(s, &s.candidates[i]); best == nil || at < first {
			best, first = &s.candidates[i], at
		}
	}
	return best, first
}

// tooLate refuses a request whose first token is expected after its deadline.
func (s *scratch) tooLate(m *model, d *Decision, expected time.Duration) *prompt.Error {
	d.RetryAfter = retryIn(expected - s.asks.deadline)
	return d.no(DeadlineMissed, m.Busy.status(), "", fmt.Sprintf("The first token is expected after %d ms, and this request allows %d ms. Allow more, or try again in %d seconds.",
		expected.Milliseconds(), s.asks.deadline.Milliseconds(), int(d.RetryAfter.Seconds())))
}

// Wake lets those go whose turn it is, and ends waits that have lasted too long. The router calls it
// itself when a booking or its prefill ends; it is for what the router is not told: workers that
// came, reports of engines, time. It takes no time while nobody waits.
func (r *Router) Wake(now time.Time) {
	if r.queued.Load() == 0 {
		return
	}
	for _, w := range *r.queues.Load() {
		if w.len.Load() == 0 {
			continue
		}
		w.mu.Lock()
		for it := w.queue.Expired(now); it != nil; it = w.queue.Expired(now) {
			t := it.Value.(*Ticket)
			r.left(w)
			r.deliver(t, r.overdue(t, now))
		}
		r.drain(w, now)
		w.mu.Unlock()
	}
}

// drain decides for those who can go, in their order, until nobody can. w.mu is held: whoever is next
// sees the bookings of those before.
func (r *Router) drain(w *waiting, now time.Time) {
	s := r.take()
	defer r.give(s)
	var stuck map[string]bool // lanes that were open, and closed before their head was booked
	for {
		it := w.queue.Next(func(it *queue.Item) bool { return !stuck[it.Lane] && r.canGo(it.Value.(*Ticket), now) })
		if it == nil {
			return
		}
		t := it.Value.(*Ticket)
		d := r.resume(s, t, now)
		if d == nil {
			if stuck == nil {
				stuck = map[string]bool{}
			}
			stuck[it.Lane] = true
			continue
		}
		w.queue.Take(it)
		r.left(w)
		r.deliver(t, d)
	}
}

func (r *Router) left(w *waiting) {
	w.len.Add(-1)
	r.queued.Add(-1)
}

// canGo says whether a rank is free for the request, or none will ever be: then it goes to be refused.
func (r *Router) canGo(t *Ticket, now time.Time) bool {
	m := (*r.models.Load())[t.decision.Model]
	if m == nil {
		return true
	}
	snap, there := r.fleet.Snapshot(), false
	free := func(ranks []fleet.Rank) bool {
		for i := range ranks {
			rank := &ranks[i]
			if rank.Worker.Model != m.Pool || rank.Worker.Role != t.asks.role || t.asks.bars(rank) != nothing {
				continue
			}
			there = true
			if rank.Worker.State == fleet.Ready && !r.full(&m.Busy, rank, now) {
				return true
			}
		}
		return false
	}
	switch {
	case t.asks.worker != "":
		return free(ranksOf(snap, t.asks.worker)) || !there
	case len(t.asks.allowed) > 0:
		return slices.ContainsFunc(t.asks.allowed, func(name string) bool { return free(ranksOf(snap, name)) }) || !there
	}
	return free(m.pool(snap, t.asks.role)) || !there
}

// ranksOf returns the ranks of one worker, without a walk over the fleet: there may be many lanes.
func ranksOf(snap *fleet.Snapshot, worker string) []fleet.Rank {
	at, ok := slices.BinarySearchFunc(snap.Ranks, worker, func(r fleet.Rank, name string) int { return strings.Compare(r.Worker.Name, name) })
	if !ok {
		return nil
	}
	end := at
	for end < len(snap.Ranks) && snap.Ranks[end].Worker.Name == worker {
		end++
	}
	return snap.Ranks[at:end]
}

// resume decides anew, with what is known now. It returns nil where all ranks are busy after all.
func (r *Router) resume(s *scratch, t *Ticket, now time.Time) *Decision {
	d := t.decide(now)
	m := (*r.models.Load())[d.Model]
	if m == nil {
		d.refuse(d.no(ModelNotFound, 404, "model", fmt.Sprintf("The model `%s` does not exist any more.", d.Model)))
		return d
	}
	s.asks, s.policy, s.how = t.asks, t.policy, t.how()
	s.blocks = s.blocks[:0]
	if m.BlockSize == d.BlockSize {
		s.blocks = append(s.blocks, t.blocks...)
	}
	if err := r.eligible(s, m, d); err != nil {
		if d.busy() || d.Reason == NoReadyWorker && len(m.pool(r.fleet.Snapshot(), t.asks.role)) > 0 {
			return nil
		}
		d.refuse(err)
		return d
	}
	r.index.Expire(now)
	r.index.Lookup(s.blocks, &s.overlap)
	s.name(d)
	s.asks.deadline = 0 // it was believed to be met, and nobody is refused for waiting as long as was expected
	if err := r.place(s, m, d); err != nil {
		if d.busy() { // somebody who did not wait came first
			return nil
		}
		d.refuse(err)
	}
	return d
}

// chain is made anew for who waited, where anybody wants to know.
func (r *Router) chain(t *Ticket, d *Decision) []blockhash.Sequence {
	if r.cfg.Decided == nil || len(t.blocks) != d.Blocks { // they may have been cut by another size
		return nil
	}
	return blockhash.Chain(nil, t.blocks)
}

func (t *Ticket) how() pick.Asked {
	return pick.Asked{Session: t.decision.Session, Temperature: t.asks.temperature.Value, HasTemperature: t.asks.temperature.Set}
}

// decide is a decision that is not made yet, for the request of the ticket.
func (t *Ticket) decide(now time.Time) *Decision {
	d, w := t.decision, t.wait
	w.Took = now.Sub(w.Since)
	d.At, d.Outcome, d.Ticket, d.Wait = now, Picked, nil, &w
	return &d
}

// deliver says the final decision to whoever waits for it. waiting.mu is held.
func (r *Router) deliver(t *Ticket, d *Decision) {
	if t.deciding { // so it has not waited
		if d.Wait.Took == 0 {
			d.Wait = nil
		}
		t.final = d
	}
	r.finish(d, r.chain(t, d))
	if !t.deciding {
		t.ready(d)
	}
}

// Leave takes a request out of the queue whose client has gone, and says whether it was there still.
// If not, its final decision has been told to Request.Ready before Leave returns.
func (r *Router) Leave(t *Ticket) bool {
	t.waiting.mu.Lock()
	defer t.waiting.mu.Unlock()
	if !t.waiting.queue.Remove(t.item) {
		return false
	}
	r.left(t.waiting)
	r.counts.left.Add(1)
	return true
}

// GiveUp ends a wait that has lasted until its end, and returns the refusal. It returns nil where the
// final decision has been told already.
func (r *Router) GiveUp(t *Ticket, now time.Time) *Decision {
	t.waiting.mu.Lock()
	defer t.waiting.mu.Unlock()
	if !t.waiting.queue.Remove(t.item) {
		return nil
	}
	r.left(t.waiting)
	d := r.overdue(t, now)
	r.finish(d, r.chain(t, d))
	return d
}

func (r *Router) overdue(t *Ticket, now time.Time) *Decision {
	d := t.decide(now)
	status := 503
	if m := (*r.models.Load())[d.Model]; m != nil {
		status = m.Busy.status()
	}
	d.RetryAfter = retryIn(d.Wait.Took)
	d.refuse(d.no(WaitedTooLong, status, "", fmt.Sprintf("All ranks that may take this request stayed busy for %.1f s, while it waited. Try again in %d seconds.",
		d.Wait.Took.Seconds(), int(d.RetryAfter.Seconds()))))
	return d
}

// Parks says whether any model's requests may wait: if not, no Request needs a Ready.
func (r *Router) Parks() bool { return len(*r.queues.Load()) > 0 }

// QueueStats is what waits in one class of one pool's queue.
type QueueStats struct {
	Pool, Class                    string
	Requests, Tokens, CachedTokens int
}

// Queues returns what waits now.
func (r *Router) Queues() []QueueStats {
	var list []QueueStats
	for _, w := range *r.queues.Load() {
		w.mu.Lock()
		for _, c := range w.queue.Stats() {
			list = append(list, QueueStats{Pool: w.pool, Class: c.Name, Requests: c.Requests, Tokens: c.Tokens, CachedTokens: c.CachedTokens})
		}
		w.mu.Unlock()
	}
	return list
}
