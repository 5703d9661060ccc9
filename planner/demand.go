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
//	a report with a smaller sum or time     nothing yet: the replica has started again
//	a report comes late                     the differences over the time between the two, by the replica's own clock: while a planner,
//	                                        the bus or a replica stands still, the rate stays
//	a replica has stood still               its reports of the second after the gap count together with the gap: they have the requests
//	                                        that waited there
//	no report for silentAfter               nothing; the replica's queue does not count either, and it is forgotten
//	no two reports of a replica since take  the demand is not known
//
// All methods are safe for concurrent use.
type demands struct {
	mu       sync.Mutex
	replicas map[string]*replicaDemand // guarded by mu; at most maxReplicas
	models   map[string]*modelDemand   // guarded by mu; since the last take
}

// replicaDemand is the last report of one replica, and the additions of its reports since the last take.
type replicaDemand struct {
	at       time.Time
	up       time.Duration
	last     map[string]bus.ModelDemand
	over     time.Duration     // that the additions cover; 0 if there is none
	settles  time.Duration     // for how long its next reports still belong to a gap
	requests map[string]uint64 // by model
}

// modelDemand is the new demand for one model.
type modelDemand struct {
	bus.ModelDemand
	gaps uint64 // tokens that engines made after first ones
}

const (
	// reportsEvery is the interval of reports. One that covers more than lateAfter is late.
	reportsEvery = time.Second
	lateAfter    = 3 * reportsEvery / 2
	// silentAfter is after how long a replica without a report is gone.
	silentAfter = 10 * time.Second
	// maxReplicas bounds the replicas that are remembered.
	maxReplicas = 1024
)

func newDemands() *demands {
	return &demands{replicas: map[string]*replicaDemand{}, models: map[string]*modelDemand{}}
}

// apply adds a report. It returns the models for which requests have begun to wait at the replica.
func (d *demands) apply(r *bus.Demand, now time.Time) (waiting []string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	known := d.replicas[r.Replica]
	if known == nil {
		if len(d.replicas) >= maxReplicas {
			return nil
		}
		known = &replicaDemand{requests: map[string]uint64{}}
		d.replicas[r.Replica] = known
	}
	if known.last != nil && known.startedAgain(r) {
		known.last = nil
	}
	if known.last != nil {
		known.cover(known.since(r, now))
	}
	next := make(map[string]bus.ModelDemand, len(r.Models))
	for i := range r.Models {
		m := &r.Models[i]
		next[m.Model] = *m
		if m.Waiting > 0 && known.last[m.Model].Waiting == 0 {
			waiting = append(waiting, m.Model)
		}
		if known.last == nil {
			continue
		}
		was := known.last[m.Model] // zero at the first request for this model
		d.model(m.Model).addDifference(m, &was)
		known.requests[m.Model] += m.Requests - was.Requests
	}
	known.at = now
	known.up = r.Up
	known.last = next
	return waiting
}

// startedAgain reports whether the replica has started again since the last report: its sums began at 0.
func (k *replicaDemand) startedAgain(r *bus.Demand) bool {
	return r.Up < k.up || slices.ContainsFunc(r.Models, func(m bus.ModelDemand) bool {
		was := k.last[m.Model]
		return m.Requests < was.Requests || m.Ended < was.Ended || m.Streams < was.Streams || m.Late < was.Late ||
			m.Timed < was.Timed || m.Slow < was.Slow
	})
}

// cover adds the time of one more report.
func (k *replicaDemand) cover(t time.Duration) {
	k.over += t
	switch {
	case k.settles > 0:
		k.settles = max(0, k.settles-t)
	case t > lateAfter && k.up > 0: // by its own clock
		k.settles = reportsEvery
	}
}

// isKnown reports whether there are additions, and no further report belongs to them.
func (k *replicaDemand) isKnown() bool { return k.over > 0 && k.settles == 0 }

// since returns the time from the last report until r.
func (k *replicaDemand) since(r *bus.Demand, now time.Time) time.Duration {
	if k.up > 0 {
		return r.Up - k.up
	}
	return now.Sub(k.at) // the replica is of a release that does not report its time
}

// rate returns the arrivals per second of a model, of all replicas.
func (d *demands) rate(model string) (rate float64) {
	for _, r := range d.replicas {
		if r.isKnown() {
			rate += float64(r.requests[model]) / r.over.Seconds()
		}
	}
	return rate
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
	m.Streams += now.Streams - was.Streams
	m.Late += now.Late - was.Late
	m.Timed += now.Timed - was.Timed
	m.Slow += now.Slow - was.Slow
	m.ResponseBytes += now.ResponseBytes - was.ResponseBytes
	m.ResponseSquares += max(0, now.ResponseSquares-was.ResponseSquares)
}

// generated adds tokens that an engine of a model made after first ones.
func (d *demands) generated(model string, gaps uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.model(model).gaps += gaps
}

// take returns the demand since the last call, sorted by model; nil if it is not known.
func (d *demands) take(now time.Time) []plan.Demand {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.forgetSilent(now)
	over, settles := time.Duration(0), false
	for _, r := range d.replicas {
		if r.isKnown() {
			over = max(over, r.over)
		}
		settles = settles || r.settles > 0
	}
	if over == 0 && settles {
		return nil
	}

	// A model that is in no report now may have been removed from the configuration. One that had no request is in all of them.
	var out []plan.Demand
	if over > 0 {
		for _, name := range d.names() {
			x := d.model(name).demand(name)
			x.Over = over
			x.Requests = int(math.Round(d.rate(name) * over.Seconds()))
			d.addWaiting(&x)
			for _, r := range d.replicas {
				x.Prefill = surer(x.Prefill, r.last[name])
			}
			out = append(out, x)
		}
	}

	d.models = map[string]*modelDemand{}
	for _, r := range d.replicas {
		if r.isKnown() {
			r.over = 0
			clear(r.requests)
		}
	}
	return out
}

// waiting returns the requests that wait now, of the models that have some, and no other demand.
func (d *demands) waiting(now time.Time) (out []plan.Demand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgetSilent(now)
	for _, name := range d.names() {
		x := plan.Demand{Model: name}
		d.addWaiting(&x)
		if x.Waiting > 0 {
			out = append(out, x)
		}
	}
	return out
}

// addWaiting adds the requests that wait at all replicas. mu is held.
func (d *demands) addWaiting(x *plan.Demand) {
	for _, r := range d.replicas {
		x.Waiting += r.last[x.Model].Waiting
		x.WaitingTokens += r.last[x.Model].WaitingTokens
	}
}

// forgetSilent forgets the replicas that are gone. mu is held.
func (d *demands) forgetSilent(now time.Time) {
	for name, r := range d.replicas {
		if now.Sub(r.at) > silentAfter {
			delete(d.replicas, name)
		}
	}
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

// demand returns the demand as a plan observes it, without its rate.
func (m *modelDemand) demand(name string) plan.Demand {
	out := plan.Demand{
		Model: name, CachedTokens: float64(m.CachedTokens), Streams: int(m.Streams), Late: int(m.Late),
		Timed: int(m.Timed), Slow: int(m.Slow),
		Prompt: plan.Lengths{Count: int(m.Requests), Sum: float64(m.PromptTokens), Squares: m.PromptSquares},
	}
	if m.gaps == 0 {
		return out // the engines count no tokens
	}
	out.Generated = float64(m.gaps + m.Ended) // an answer has one gap less than tokens
	if m.Ended == 0 {
		return out
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
