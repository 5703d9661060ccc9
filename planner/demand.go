package planner

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
)

// demands collects the reports of the router's replicas, and returns the demand since the last call of take. Replicas report
// sums, so a report that is lost is made good by the next one.
//
//	event                                   what counts
//	first report of a replica               nothing yet: its sums may be of a long time
//	another report                          the differences to the one before
//	a sum is smaller than before            nothing yet: the replica has started again
//	no report for silentAfter               nothing; the replica's queue does not count either, and it is forgotten
//	no replica has reported since take      the demand is not known
//
// All methods are safe for concurrent use.
type demands struct {
	mu       sync.Mutex
	replicas map[string]*replicaDemand // guarded by mu; at most maxReplicas
	models   map[string]*modelDemand   // guarded by mu; since the last take
	began    time.Time                 // guarded by mu; of the interval since the last take
	reported bool                      // guarded by mu; a replica has reported since then
}

// replicaDemand is the last report of one replica.
type replicaDemand struct {
	at   time.Time
	last map[string]bus.ModelDemand
}

// modelDemand is the new demand for one model.
type modelDemand struct {
	bus.ModelDemand
	gaps uint64 // tokens that engines made after first ones
}

const (
	// silentAfter is after how long a replica without a report is gone. Replicas report once a second.
	silentAfter = 10 * time.Second
	// maxReplicas bounds the replicas that are remembered.
	maxReplicas = 1024
)

// newDemands begins the first interval.
func newDemands(now time.Time) *demands {
	return &demands{replicas: map[string]*replicaDemand{}, models: map[string]*modelDemand{}, began: now}
}

// apply adds a report.
func (d *demands) apply(r *bus.Demand, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.reported = true
	known := d.replicas[r.Replica]
	if known == nil {
		if len(d.replicas) >= maxReplicas {
			return
		}
		known = &replicaDemand{}
		d.replicas[r.Replica] = known
	}
	next := make(map[string]bus.ModelDemand, len(r.Models))
	for i := range r.Models {
		m := &r.Models[i]
		next[m.Model] = *m
		was, counted := known.last[m.Model]
		if known.last == nil || m.Requests < was.Requests || m.Ended < was.Ended {
			continue
		}
		if !counted {
			was = bus.ModelDemand{} // the first request for this model
		}
		d.model(m.Model).addDifference(m, &was)
	}
	known.at, known.last = now, next
}

// model returns the new demand for a model. mu is held.
func (d *demands) model(name string) *modelDemand {
	m := d.models[name]
	if m == nil {
		m = &modelDemand{}
		d.models[name] = m
	}
	return m
}

// addDifference adds the difference of two reports.
func (m *modelDemand) addDifference(now, was *bus.ModelDemand) {
	m.Requests += now.Requests - was.Requests
	m.PromptTokens += now.PromptTokens - was.PromptTokens
	m.PromptSquares += max(0, now.PromptSquares-was.PromptSquares)
	m.CachedTokens += now.CachedTokens - was.CachedTokens
	m.Ended += now.Ended - was.Ended
	m.ResponseBytes += now.ResponseBytes - was.ResponseBytes
	m.ResponseSquares += max(0, now.ResponseSquares-was.ResponseSquares)
}

// generated adds tokens that an engine of a model made after first ones.
func (d *demands) generated(model string, gaps uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.model(model).gaps += gaps
}

// take returns the demand since the last call, sorted by model; nil if no replica has reported.
func (d *demands) take(now time.Time) []plan.Demand {
	d.mu.Lock()
	defer d.mu.Unlock()

	for name, r := range d.replicas {
		if now.Sub(r.at) > silentAfter {
			delete(d.replicas, name)
		}
	}
	over := now.Sub(d.began)
	d.began = now
	if !d.reported {
		d.models = map[string]*modelDemand{}
		return nil
	}

	// A model that is in no report now may have been removed from the configuration. One that had no request is in all of them.
	var out []plan.Demand
	for _, name := range d.names() {
		m := d.model(name)
		x := m.demand(name, over)
		for _, r := range d.replicas {
			x.Waiting += r.last[name].Waiting
			x.WaitingTokens += r.last[name].WaitingTokens
			x.Prefill = surer(x.Prefill, r.last[name])
		}
		out = append(out, x)
	}
	d.models = map[string]*modelDemand{}
	d.reported = false
	return out
}

// surer returns the line of prefills with more observations.
func surer(l perfmodel.Line, m bus.ModelDemand) perfmodel.Line {
	if m.PrefillsObserved <= uint64(max(0, l.Observed)) || m.PrefillsObserved > math.MaxInt32 {
		return l
	}
	return perfmodel.Line{
		Base: time.Duration(m.PrefillNanoseconds), Token: m.PrefillTokenNanoseconds, Observed: int(m.PrefillsObserved),
	}
}

// names returns the models of all reports, sorted. mu is held.
func (d *demands) names() []string {
	var names []string
	for _, r := range d.replicas {
		for name := range r.last {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return slices.Compact(names)
}

// demand returns the demand as a plan observes it.
func (m *modelDemand) demand(name string, over time.Duration) plan.Demand {
	out := plan.Demand{
		Model: name, Over: over, Requests: int(m.Requests), CachedTokens: float64(m.CachedTokens),
		Prompt: plan.Lengths{Count: int(m.Requests), Sum: float64(m.PromptTokens), Squares: m.PromptSquares},
	}
	if m.Ended == 0 || m.gaps == 0 {
		return out // without gaps, the engines count no tokens
	}

	// Engines count the tokens of all answers, and routers the bytes of each: the spread of bytes stands for the spread of
	// tokens.
	n := float64(m.Ended)
	mean := float64(m.gaps)/n + 1
	bytes := float64(m.ResponseBytes) / n
	spread := 0.0
	if bytes > 0 {
		spread = math.Max(0, m.ResponseSquares/n/(bytes*bytes)-1)
	}
	out.Answer = plan.Lengths{Count: int(m.Ended), Sum: n * mean, Squares: n * mean * mean * (1 + spread)}
	return out
}
