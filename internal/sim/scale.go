package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/sim/engine"
)

// life is the part of a worker that planning changes: whether it takes requests, and since when.
//
// Invariants: state is starting, ready or draining; a worker that is down for a time keeps it. gone means that the worker has
// left the fleet: its engine is nil then, and last has its final figures.
type life struct {
	state        fleet.State
	gone         bool
	began, ended time.Duration // of its GPU time
	since        time.Duration // of the last change of its state
	last         engine.Stats

	// The load at the last observation, and the counts at that time.
	load    *plan.Load
	hits    uint64
	gaps    uint64
	gapTime time.Duration
}

// state returns the state of a worker, as routers see it.
func (w *worker) state() fleet.State {
	if w.down {
		return fleet.Down
	}
	return w.life.state
}

// stats returns the figures of a worker's engine, even after it has left the fleet.
func (w *worker) stats() engine.Stats {
	if w.life.gone {
		return w.life.last
	}
	return w.engine.Stats()
}

// scale starts and drains engines until a pool has as many as its plan wants, apart from draining ones.
func (r *run) scale(p *plan.Pool) error {
	i := slices.IndexFunc(r.pools, func(x *pool) bool { return x.role == p.Role })
	if i < 0 {
		return nil
	}
	r.pools[i].wanted = min(max(p.Replicas, leastOf(p.Role)), r.cfg.Planning.Max)

	// An engine that the plan drains by name does not count, also while its drain is put off: another one is started, which
	// takes over.
	marked := map[*worker]bool{}
	for _, w := range slices.Clone(r.live) {
		if w.role != p.Role || !isMarked(p, w) {
			continue
		}
		marked[w] = true
		if w.life.state != fleet.Draining && !r.isLast(w) {
			r.drain(w)
		}
	}

	// Engines that drain without being named may be taken back.
	var active, draining []*worker
	for _, w := range r.live {
		switch {
		case w.role != p.Role || marked[w]:
		case w.life.state == fleet.Draining:
			draining = append(draining, w)
		default:
			active = append(active, w)
		}
	}
	slices.SortFunc(active, compareVictims)
	slices.SortFunc(draining, compareVictims)
	return r.resize(r.pools[i], active, draining)
}

// resize drains the first of the active engines, or takes the last of the draining ones back and starts new ones.
func (r *run) resize(p *pool, active, draining []*worker) error {
	excess := len(active) - p.wanted
	for _, w := range active[:max(0, excess)] {
		r.drain(w)
	}

	// The busiest of the draining engines are taken back first, because their caches hold the most.
	missing := max(0, -excess)
	back := min(missing, len(draining))
	for _, w := range draining[len(draining)-back:] {
		r.setState(w, fleet.Ready)
	}
	// Engines that drain still have GPUs, so they count here.
	for range min(missing-back, r.cfg.Planning.Max-r.size(p)) {
		if err := r.startEngine(p.role); err != nil {
			return err
		}
	}
	return nil
}

// leastOf returns how many engines of a role there are at least. Without engines that only prefill, others compute prompts.
func leastOf(role fleet.Role) int {
	if role == fleet.Prefill {
		return 0
	}
	return 1
}

// isMarked reports whether the plan drains a worker by name.
func isMarked(p *plan.Pool, w *worker) bool {
	return slices.ContainsFunc(p.Workers, func(x plan.Planned) bool { return x.Drain && x.Name == w.name })
}

// isLast reports whether a worker is the last one that can be picked for requests. Workers that only prefill can be spared.
func (r *run) isLast(w *worker) bool {
	if w.role == fleet.Prefill || w.state() != fleet.Ready {
		return false
	}
	return !slices.ContainsFunc(r.live, func(x *worker) bool { return x != w && x.role == w.role && x.state() == fleet.Ready })
}

// compareVictims orders the engines of a role by the cost of their loss, the cheapest first: starting engines, newest
// first, then engines that are down, and then by load.
func compareVictims(a, b *worker) int {
	if n := cmp.Compare(costOfLoss(a), costOfLoss(b)); n != 0 {
		return n
	}
	if a.life.load != nil && b.life.load != nil {
		x, y := a.life.load, b.life.load
		n := cmp.Or(cmp.Compare(x.Running+x.Waiting, y.Running+y.Waiting), cmp.Compare(x.QueuedTokens, y.QueuedTokens),
			cmp.Compare(x.Found, y.Found))
		if n != 0 {
			return n
		}
	}
	return b.number - a.number
}

// costOfLoss returns the rank of a worker's state.
func costOfLoss(w *worker) int {
	switch w.state() {
	case fleet.Starting:
		return 0
	case fleet.Down:
		return 1
	}
	return 2
}

// startEngine starts a new engine with an empty cache. Its number was never used before, so nothing that is on its way can be
// meant for an earlier engine. Routers list it from now on, as agents announce a worker before its engine is ready.
func (r *run) startEngine(role fleet.Role) error {
	number := len(r.workers)
	w, err := newWorker(number, role, &r.cfg, r.neighbourComputes(number))
	if err != nil {
		return err
	}
	w.settle(r.emptiestNode(role), &r.cfg.Transfer)
	w.life.state = fleet.Starting
	w.life.began = r.now
	w.life.since = r.now
	r.workers = append(r.workers, w)
	r.live = append(r.live, w)
	r.tally.workers = append(r.tally.workers, WorkerShare{})
	for _, p := range r.replicas {
		if err := p.add(w, r.cfg.Pull); err != nil {
			return err
		}
	}

	if r.cfg.Planning.StartUp == 0 {
		r.setState(w, fleet.Ready)
		return nil
	}
	r.agenda.add(event{at: r.now + r.cfg.Planning.StartUp, kind: workerReady, worker: number})
	return nil
}

// emptiestNode returns the node with the fewest engines of a role, and of those the first.
func (r *run) emptiestNode(role fleet.Role) int {
	engines := make([]int, r.cfg.Transfer.Nodes)
	for _, w := range r.live {
		if w.role == role {
			engines[w.node]++
		}
	}
	return slices.Index(engines, slices.Min(engines))
}

// endStartUp makes a new engine ready, unless it has left the fleet.
func (r *run) endStartUp(w *worker) {
	if w.life.gone {
		return
	}
	r.setState(w, fleet.Ready)
	r.recordAll()
}

// setState changes the state of a worker in the fleets of all routers. Requests may wait in their queues for a ready one.
func (r *run) setState(w *worker, s fleet.State) {
	w.life.state = s
	w.life.since = r.now
	if w.down {
		return // its routers get the state when it starts again
	}
	for _, p := range r.replicas {
		p.fleet.SetState(w.name, s)
		if s == fleet.Ready {
			p.router.Wake(r.clock())
		}
	}
}

// drain has an engine finish its requests and leave the fleet. One that does not serve leaves at once.
func (r *run) drain(w *worker) {
	if w.down || w.life.state == fleet.Starting {
		r.leave(w)
		return
	}
	r.setState(w, fleet.Draining)
	r.draining++
}

// endDrains removes the draining engines that have nothing left to do. The requests of a worker are in its jobs from the decision
// on, with separate roles also those whose prompt is computed elsewhere, or whose transfer reads from it. So it is enough to look
// at them after each event, when no decision is under way.
func (r *run) endDrains() {
	if r.draining == 0 {
		return
	}
	r.draining = 0
	var ended []*worker
	for _, w := range r.live {
		switch {
		case w.life.state != fleet.Draining:
		case len(w.jobs) == 0:
			ended = append(ended, w)
		default:
			r.draining++
		}
	}

	for _, w := range ended {
		r.leave(w)
	}
	if len(ended) > 0 {
		r.recordAll()
	}
}

// leave removes a worker without requests from the fleet. Its cache is lost, and its GPU time ends.
func (r *run) leave(w *worker) {
	w.life.last = w.engine.Stats()
	w.life.gone = true
	w.life.ended = r.now
	w.engine = nil
	w.down = true
	w.inPass = false
	w.pass = 0 // there may be one without requests
	r.live = slices.DeleteFunc(r.live, func(x *worker) bool { return x == w })
	for _, p := range r.replicas {
		p.fleet.Remove(w.name)
		delete(p.byName, w.name)
	}
}
