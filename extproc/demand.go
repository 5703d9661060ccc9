package extproc

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
)

// demandEvery is the interval at which a replica publishes its demand. Planners make a plan every second at most.
const demandEvery = time.Second

// mostUrgent bounds the messages between two intervals: clients can come and leave, each as the first one that waits.
const mostUrgent = 16

// demand counts the requests of clients to this replica, by model, for planners.
//
//	event                                 counted
//	a request is picked a worker          its arrival, its prompt's tokens, and the cached ones among them
//	a request is refused for a shortage   the same: more workers would have served it
//	a request is wrong, or its model is   nothing: no worker could serve it
//	a request waits in the queue          among the waiting ones; its arrival when it is decided
//	a worker's answer ends, with 2xx      its bytes, and of a stream whether its first token was late, and where Envoy has counted
//	                                      its tokens, whether the time between them was too long
//	the same, of another replica's pick   at the replica that receives the access log
//
// All methods are safe for concurrent use.
type demand struct {
	began  time.Time
	urgent chan struct{} // has a token when requests have begun to wait for the start of a worker
	mu     sync.Mutex
	models map[string]*bus.ModelDemand // guarded by mu; models of the configuration, past ones included

	targets map[string]config.Targets // guarded by mu; by model

	// modelOf has the model of each worker's address in a snapshot of the fleet, because an end names the address.
	modelOf map[string]string // guarded by mu
	version uint64            // guarded by mu; of that snapshot
}

// maxDemandModels bounds the models that are counted, for a configuration that is replaced again and again.
const maxDemandModels = 512

func newDemand() *demand {
	return &demand{began: time.Now(), urgent: make(chan struct{}, 1), models: map[string]*bus.ModelDemand{}}
}

// urge has the demand published at once. A token that is there covers this one.
func (c *demand) urge() {
	select {
	case c.urgent <- struct{}{}:
	default:
	}
}

// countsOf returns the counts of a model; nil for none, and if there are too many models. mu is held.
func (c *demand) countsOf(model string) *bus.ModelDemand {
	m := c.models[model]
	if m == nil && model != "" && len(c.models) < maxDemandModels {
		m = &bus.ModelDemand{Model: model}
		c.models[model] = m
	}
	return m
}

// decided counts a request that was decided. One for a model that there is not, or that is wrong in itself, is no demand. It is called
// for each request, so it does little: one lock, which no slow work holds.
func (c *demand) decided(d *decision.Decision) {
	if d.Outcome != decision.Picked && !d.Reason.IsShortage() || d.Pool == "" {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.countsOf(d.Pool)
	if m == nil {
		return
	}

	// An adapter's requests count for its base model, whose workers serve both.
	tokens := float64(d.PromptTokens)
	m.Requests++
	m.PromptTokens += uint64(d.PromptTokens)
	m.PromptSquares += tokens * tokens
	m.CachedTokens += uint64(d.Cached)
}

// ended counts a request that a worker has answered. k is its booking; nil if it is not known.
func (c *demand) ended(e *messages.Entry, k *pick.Booking, f *fleet.Snapshot) {
	if !e.Upstream || e.Status < 200 || e.Status >= 300 {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.countsOf(c.modelServed(e, k, f))
	if m == nil {
		return
	}
	size := float64(e.ResponseBytes)
	m.Ended++
	m.ResponseBytes += e.ResponseBytes
	m.ResponseSquares += size * size

	if k == nil || !k.Caller.Value().Stream || e.FirstToken <= 0 {
		return
	}
	m.Streams++
	// Without a target no stream is late or slow: the planner then has nothing to keep.
	targets := c.targets[m.Model]
	if exceeds(e.FirstToken, targets.TTFT) {
		m.Late++
	}
	if !e.Counted || e.LastByte < e.FirstToken {
		return
	}
	m.Timed++
	if e.AnswerTokens > 1 && exceeds((e.LastByte-e.FirstToken)/time.Duration(e.AnswerTokens-1), targets.ITL) {
		m.Slow++
	}
}

// exceeds reports whether a time is longer than a target; 0 is no target.
func exceeds(took time.Duration, target config.Duration) bool {
	return target > 0 && took > target.Std()
}

// modelServed returns the model of the worker that answered; empty for one that has left. mu is held.
func (c *demand) modelServed(e *messages.Entry, k *pick.Booking, f *fleet.Snapshot) string {
	if k != nil {
		return k.Rank.Worker.Model
	}
	if c.modelOf == nil || c.version != f.Version {
		c.version = f.Version
		c.modelOf = make(map[string]string, len(f.Workers))
		for _, w := range f.Workers {
			c.modelOf[w.Address] = w.Model
		}
	}
	return c.modelOf[e.Served]
}

// setTargets replaces the targets. Streams that have ended keep their count by the target of their time, so that a new target does not turn
// requests of the past into misses.
func (c *demand) setTargets(models []config.Model) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.targets = map[string]config.Targets{}
	for i := range models {
		c.targets[models[i].Name] = models[i].Targets
	}
}

// message returns the demand since the start, with the requests that wait in the queues now, and the learned speed of the engines. A
// replica without requests has a message without models, which shows planners that it lives.
func (c *demand) message(replica string, queues []route.QueueStats, speeds map[learned.WorkerClass]perfmodel.Speed) *bus.Demand {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.models {
		m.Waiting, m.WaitingTokens = 0, 0
	}
	for _, q := range queues {
		if m := c.countsOf(q.Pool); m != nil {
			m.Waiting += q.Requests
			m.WaitingTokens += q.Tokens
		}
	}

	// Of several kinds of engines of one model, the one with the most observations stands for all.
	for class, speed := range speeds {
		m := c.models[class.Model]
		if m != nil && uint64(max(0, speed.Prefill.Observed)) > m.PrefillsObserved {
			m.PrefillNanoseconds = uint64(max(0, speed.Prefill.Base))
			m.PrefillTokenNanoseconds = speed.Prefill.Token
			m.PrefillsObserved = uint64(speed.Prefill.Observed)
		}
	}

	out := &bus.Demand{Replica: replica, Up: time.Since(c.began)}
	for _, m := range c.models {
		out.Models = append(out.Models, *m)
	}
	slices.SortFunc(out.Models, func(a, b bus.ModelDemand) int { return strings.Compare(a.Model, b.Model) })
	return out
}

// publishDemand publishes the demand of this replica until ctx ends: at intervals, and when requests begin to wait for a worker to start.
// It does so also while nothing changes: a planner takes silence for a router that is gone, and not for clients that ask nothing.
func (r *Router) publishDemand(ctx context.Context, b *bus.Bus) {
	tick := time.NewTicker(demandEvery)
	defer tick.Stop()
	urgent := 0 // since the last tick
	for {
		select {
		case <-tick.C:
			urgent = 0
		case <-r.demand.urgent:
			urgent++
			if urgent > mostUrgent {
				continue // the next tick is near
			}
		case <-ctx.Done():
			return
		}
		if err := b.PublishDemand(r.demand.message(r.replica, r.routes.Queues(), r.routes.Speeds())); err != nil {
			r.log.Debug("demand not published", "err", err)
		}
	}
}
