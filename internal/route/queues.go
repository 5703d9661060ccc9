package route

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/programs"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// queues are the queues of all pools.
type queues struct {
	list atomic.Pointer[[]*waiting] // the slice never changes once stored
	mu   sync.Mutex                 // held to store list
	len  atomic.Int64               // requests that wait, in all queues
}

func (qs *queues) init() { qs.list.Store(&[]*waiting{}) }

// all returns the queues, which readers must not change.
func (qs *queues) all() []*waiting { return *qs.list.Load() }

// of returns the queue of a model; nil for none. A model that is served and has a queue always finds it: SetModels makes queues before it
// stores models. There are as many queues as pools, so a search is quick.
func (qs *queues) of(m *serving.Model) *waiting {
	for _, wt := range qs.all() {
		if wt.pool == m.Pool {
			return wt
		}
	}
	return nil
}

// configure gives every pool that needs one a queue, and every queue its configuration. Requests that
// wait keep their place. A queue whose pool has no model any more stays until its requests have gone.
func (qs *queues) configure(models map[string]*serving.Model) {
	qs.mu.Lock()
	defer qs.mu.Unlock()

	for _, m := range models {
		if m.Queue == nil {
			continue
		}
		if wt := qs.of(m); wt != nil {
			wt.mu.Lock()
			wt.queue.Configure(*m.Queue)
			wt.mu.Unlock()
			continue
		}
		list := append(slices.Clip(qs.all()), &waiting{pool: m.Pool, queue: queue.New(*m.Queue)}) // readers may hold the old slice
		qs.list.Store(&list)
	}
}

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
	asked    request.Asked
	blocks   request.Kept
	held     bool // it has been held back: see Router.isHeldBack
	wait     decision.Wait
	lane     eligible.LaneRanks // guarded by waiting.mu

	deciding bool               // guarded by waiting.mu; true until Decide has returned
	final    *decision.Decision // guarded by waiting.mu; the final decision, if it was made while deciding
}

// Until is the latest end of the wait.
func (t *ticket) Until() time.Time { return t.item.Until }

// turn returns the request as the queue has it, for a longest wait.
func (t *ticket) turn(q *request.Prepared, longest time.Duration) queue.Request {
	return queue.Request{
		Class: t.asked.Class, Tenant: t.asked.Tenant, Lane: t.asked.LaneFor(q.Model),
		Restricted: t.asked.IsRestricted() || q.Model.Adapter != "",
		Strict:     t.asked.Strict, HeadStart: t.asked.HeadStart,
		Tokens: q.Tokens, At: t.wait.Since, Until: t.wait.Since.Add(longest), Value: t,
	}
}

// newDecision is a copy of the ticket's decision, still to be made.
func (t *ticket) newDecision(now time.Time) *decision.Decision {
	d, wait := t.decision, t.wait
	wait.Took = now.Sub(wait.Since)
	d.At, d.Wait = now, &wait
	d.Outcome = decision.Picked
	return &d
}
