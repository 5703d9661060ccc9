package sim

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// Planning changes the number of engines during a run, as a planner does. Zero fields have their defaults.
type Planning struct {
	// Every is the time between two observations; default 5 s.
	Every time.Duration
	// StartUp is the time from the start of an engine until it is ready. 0 makes new engines ready at once.
	StartUp time.Duration
	// Next returns the plan for an observation. It is called every Every, from the run's goroutine. A function that
	// remembers earlier observations, as [plan.Next] does in its State, keeps them itself.
	//
	// The number of engines of a role is the Replicas of its pool: decode and prefill with separate roles, and aggregated
	// without. Pools of other models and roles have no effect, and the engines of a role without a pool stay. At least one
	// engine that decodes, or does both, is kept, and its drain is put off until another one is ready. Of the workers that a
	// pool names, Drain has an effect, and Weight has none: routers pick a worker for every request.
	Next func(plan.Observation) plan.Plan
	// Settings are passed on in observations. Their only model is named [Model].
	Settings *plan.Settings
	// Max bounds the engines of each role, those included that are starting or draining; default 256.
	Max int
}

func (p Planning) withDefaults() Planning {
	p.Every = cmp.Or(p.Every, 5*time.Second)
	p.Max = cmp.Or(p.Max, 256)
	return p
}

// maxEngines bounds the engines of a role.
const maxEngines = 4096

// validate reports everything that is wrong.
func (p *Planning) validate(c *Config) error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	refuse(p.Next == nil, "planning needs a function that plans")
	refuse(p.Every < time.Millisecond, "plans are made every %v: it must be at least 1ms", p.Every)
	refuse(p.StartUp < 0, "the start-up of an engine is %v: it must not be negative", p.StartUp)
	refuse(p.Max < 1 || p.Max > maxEngines, "planning has at most %d engines of a role: it must be 1 to %d", p.Max, maxEngines)
	refuse(max(c.Workers, c.Prefill) > p.Max, "%d and %d engines at the start: planning allows %d of a role", c.Workers, c.Prefill, p.Max)
	refuse(c.SharedCache, "engines with a shared cache cannot be planned: its size is that of the engines at the start")
	if p.Settings != nil {
		for i := range p.Settings.Models {
			name := p.Settings.Models[i].Name
			refuse(name != Model, "the settings of planning have a model %q: the only one is %q", name, Model)
		}
	}
	return errors.Join(errs...)
}

// plan makes an observation, and starts and drains engines as the plan for it wants. Pools are scaled in the order of the plan;
// they have no engine in common, so the order has no effect but on the numbers of new engines.
func (r *run) plan() error {
	o := r.observe()
	p := r.cfg.Planning.Next(o)
	for i := range p.Pools {
		if p.Pools[i].Model != Model {
			continue
		}
		if err := r.scale(&p.Pools[i]); err != nil {
			return err
		}
	}

	r.recordAll()
	r.addTick(plans, r.cfg.Planning.Every)
	return nil
}

// observe returns a planner's observation of now, with the workers in order of their numbers. Its loads are kept, because they
// order the engines that may be drained. The figures of demand and load count since the observation before.
func (r *run) observe() plan.Observation {
	every := r.cfg.Planning.Every
	o := plan.Observation{At: r.clock(), Settings: r.cfg.Planning.Settings, Demand: []plan.Demand{r.demand.take(every)}}
	for _, w := range r.live {
		w.life.load = w.observe(every)
		o.Workers = append(o.Workers, plan.Worker{
			Name: w.name, Model: Model, Role: w.role, State: w.state(), Weight: fleet.DefaultWeight,
			Since: epoch.Add(w.life.since), Load: w.life.load,
		})
	}
	return o
}

// observe returns the load of an engine; nil for one that is not serving. Its rates are means over the time since
// the observation before.
func (w *worker) observe(over time.Duration) *plan.Load {
	if w.down || w.life.state == fleet.Starting {
		return nil
	}

	s := w.engine.Stats()
	// A decode step makes one token, because speculative decoding is not simulated.
	load := &plan.Load{
		Running: s.Running, Waiting: s.Waiting, QueuedTokens: w.engine.Backlog(), KVUsage: float64(s.Active) / float64(max(1, s.Blocks)),
		StepTokens: 1, Found: float64(s.PrefixHits-w.life.hits) / over.Seconds(),
	}
	if gaps := w.gaps - w.life.gaps; gaps > 0 {
		load.ITL = (w.gapTime - w.life.gapTime) / time.Duration(gaps)
	}
	w.life.hits = s.PrefixHits
	w.life.gaps = w.gaps
	w.life.gapTime = w.gapTime
	return load
}

// demand counts the requests and tokens that clients asked for since the last observation. It is counted without planning, too,
// which costs less than to ask.
//
// Invariant: figures.Waiting is the number of requests in all routers' queues now.
type demand struct {
	figures plan.Demand
}

// arrived counts a request and its prompt.
func (d *demand) arrived(j *job) {
	d.figures.Requests++
	add(&d.figures.Prompt, len(j.engine.Prompt))
}

// promised counts the tokens of a prompt that are cached by the decision about it.
func (d *demand) promised(cached int) { d.figures.CachedTokens += float64(cached) }

// waits counts a request that joins a router's queue, or with -1 leaves it.
func (d *demand) waits(j *job, n int) {
	d.figures.Waiting += n
	d.figures.WaitingTokens += n * len(j.engine.Prompt)
}

// ended counts the answer of a request that ends now. It is late if its first token came later than the SLA allows, and slow if its mean
// time between tokens was longer.
func (d *demand) ended(tokens int, late, slow bool) {
	add(&d.figures.Answer, tokens)
	d.figures.Streams++
	d.figures.Timed++
	if late {
		d.figures.Late++
	}
	if slow {
		d.figures.Slow++
	}
}

// take returns the figures of a time that ends now, and begins the next one.
func (d *demand) take(over time.Duration) plan.Demand {
	out := d.figures
	out.Model = Model
	out.Over = over

	// Requests that wait now wait also at the beginning of the next time.
	*d = demand{figures: plan.Demand{Waiting: out.Waiting, WaitingTokens: out.WaitingTokens}}
	return out
}

// add adds a number of tokens.
func add(l *plan.Lengths, tokens int) {
	n := float64(tokens)
	l.Count++
	l.Sum += n
	l.Squares += n * n
}
