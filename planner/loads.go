package planner

import (
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// loads collects the reports of engines about themselves, by worker. Ranks of a worker are added up. Engines count since their
// start, so a report that is lost is made good by the next one.
//
// All methods are safe for concurrent use.
type loads struct {
	mu      sync.Mutex
	workers map[string]*workerLoad // guarded by mu; of workers that reported lately, at most maxWorkers
}

// workerLoad is the reports of one worker's ranks.
type workerLoad struct {
	epoch uint64
	ranks map[int]*rankLoad
}

// rankLoad is the newest report of a rank, and the counts at the last plan.
type rankLoad struct {
	bus.Load
	at time.Time
	// base has the counts at the last call of take, and since its time; zero before the first.
	base  bus.Load
	since time.Time
}

const (
	// loadAge is after how long a report is too old. Agents report once a second.
	loadAge = 10 * time.Second
	// maxWorkers bounds the workers that are remembered.
	maxWorkers = 1 << 16
)

// newLoads has no reports.
func newLoads() *loads { return &loads{workers: map[string]*workerLoad{}} }

// apply adds a report. It returns how many tokens the rank has made after first ones since its last report, as far as it counts them.
func (l *loads) apply(r bus.Load, now time.Time) (gaps uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()

	w := l.workers[r.Worker]
	if w == nil && len(l.workers) >= maxWorkers {
		return 0
	}
	if w == nil || w.epoch != r.Epoch {
		w = &workerLoad{epoch: r.Epoch, ranks: map[int]*rankLoad{}}
		l.workers[r.Worker] = w
	}
	rank := w.ranks[r.Rank]
	if rank == nil {
		rank = &rankLoad{base: r, since: now}
		w.ranks[r.Rank] = rank
	} else if r.Gaps > rank.Gaps {
		gaps = r.Gaps - rank.Gaps
	}
	rank.Load, rank.at = r, now
	return gaps
}

// take sets the loads of workers, from reports and from the bookings of routers. Figures of an interval are those since the last
// call.
func (l *loads) take(workers []plan.Worker, f *fleet.Snapshot, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()

	kept := map[string]*workerLoad{}
	for i := range workers {
		w := &workers[i]
		reported := l.workers[w.Name]
		if reported == nil {
			continue
		}
		kept[w.Name] = reported
		w.Load = reported.sum(now)
		if w.Load == nil {
			continue
		}
		for n := range reported.ranks {
			if rank, ok := f.Rank(w.Name, n); ok {
				w.Load.QueuedTokens += int(max(0, rank.Load.Booked().PrefillTokens))
			}
		}
	}
	l.workers = kept
}

// sum adds up the ranks; nil if one has not reported lately.
func (w *workerLoad) sum(now time.Time) *plan.Load {
	out := &plan.Load{}
	var gaps uint64
	var gapTime time.Duration
	for _, r := range w.ranks {
		if now.Sub(r.at) > loadAge {
			return nil
		}

		out.Running += r.Running
		out.Waiting += r.Waiting
		out.KVUsage += r.KVUsage / float64(len(w.ranks))
		out.StepTokens = max(out.StepTokens, r.StepTokens)
		if r.Gaps > r.base.Gaps && r.GapTime > r.base.GapTime {
			gaps += r.Gaps - r.base.Gaps
			gapTime += r.GapTime - r.base.GapTime
		}
		if seconds := r.at.Sub(r.since).Seconds(); seconds > 0 && r.PrefixHits > r.base.PrefixHits {
			out.Found += float64(r.PrefixHits-r.base.PrefixHits) / seconds
		}
		r.base, r.since = r.Load, r.at
	}
	if gaps > 0 {
		out.ITL = gapTime / time.Duration(gaps)
	}
	return out
}
