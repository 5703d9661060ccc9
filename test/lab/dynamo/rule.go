package dynamo

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// The names of Dynamo's algorithms, as a model of package plan has them. The hybrid scales by load, and throughput scaling is its lower
// bound.
const (
	AlgorithmThroughput = "dynamo-throughput"
	AlgorithmLoad       = "dynamo-load"
	AlgorithmHybrid     = "dynamo-hybrid"
)

// Rule returns Dynamo's planner as a rule of package plan. The name of the model's algorithm selects the metric that it scales by.
// The pools determine its mode. The configuration has Dynamo's defaults, with the targets of the model, the GPUs and bounds of its pools
// and the budget; change, which may be nil, changes it.
func Rule(change func(*Config)) plan.Rule {
	return func(before any, o *plan.Observation, d *plan.Demand, situations []plan.Situation) (wants []plan.Want, after any) {
		m, _ := before.(memory) // the first plan has none
		pools := make([]*pool, len(situations))
		for i := range situations {
			pools[i] = &pool{&situations[i], &m.asked[situations[i].Configured.Role]}
		}
		if len(pools) > 0 && !o.Between {
			m.decide(o, d, pools, change)
		}
		for _, p := range pools {
			wants = append(wants, p.want())
		}
		return wants, m
	}
}

// memory is the memory of Dynamo's algorithms for one model. It is a value.
type memory struct {
	config Config // with which state was made
	begun  bool   // there is a state
	state  State
	// window is the demand since the last decision on throughput, at windowAt. loadAt is when load scaling decided last.
	window           plan.Demand
	windowAt, loadAt time.Time
	asked            [fleet.Decode + 1]asked // the last decision of each role
}

// asked is a decision that holds until the next one. The zero value is none.
type asked struct {
	at       time.Time
	replicas int
	reason   string
}

// pool is a pool while its plan is made.
type pool struct {
	*plan.Situation
	asked *asked
}

// fleetPools are the pools of a model as Dynamo has them. A role that the model does not have is nil; aggregated workers are decode.
type fleetPools struct{ prefill, decode *pool }

// decide makes the decisions that are due.
func (m *memory) decide(o *plan.Observation, d *plan.Demand, pools []*pool, change func(*Config)) {
	model := pools[0].Model
	roles, mode := rolesOf(pools)
	config := configOf(model, &o.Settings.Budget, roles, mode, change)
	if err := m.begin(config, roles); err != nil {
		for _, p := range pools {
			p.asked.reason = "the configuration of the algorithm is wrong: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		return
	}

	m.collect(o, d, model)
	if isDue(o, model, m.windowAt, config.Interval) {
		m.decideThroughput(o, &config, roles)
	}
	scalesLoad := model.Algorithm == AlgorithmLoad || model.Algorithm == AlgorithmHybrid
	if scalesLoad && isDue(o, model, m.loadAt, config.LoadInterval) {
		m.decideLoad(o, &config, roles)
	}
}

// isDue reports whether a decision is due that is made at intervals. Half an interval between plans may be missing.
func isDue(o *plan.Observation, m *plan.Model, last time.Time, interval time.Duration) bool {
	return last.IsZero() || o.At.Sub(last) >= interval-cmp.Or(m.Every, plan.DefaultEvery)/2
}

// want returns the last decision. Without one the replicas stay.
func (p *pool) want() plan.Want {
	if !p.asked.at.IsZero() {
		return plan.Want{Replicas: p.asked.replicas, Reason: p.asked.reason}
	}
	why := cmp.Or(p.asked.reason, p.Model.Algorithm+" has not decided yet")
	return plan.Want{Replicas: p.Replicas, Reason: fmt.Sprintf("%d stay: %s", p.Replicas, why)}
}

// count returns how many workers are in a state.
func (p *pool) count(s fleet.State) (n int) {
	for _, w := range p.Workers {
		if w.State == s {
			n++
		}
	}
	return n
}

// rolesOf returns the pools by Dynamo's roles, and Dynamo's mode for them. Dynamo has no fleets of aggregated workers beside separate
// ones: of those it plans the separate ones, and the others stay.
func rolesOf(pools []*pool) (roles fleetPools, mode string) {
	var aggregated *pool
	for _, p := range pools {
		switch p.Configured.Role {
		case fleet.Prefill:
			roles.prefill = p
		case fleet.Decode:
			roles.decode = p
		default:
			aggregated = p
		}
	}
	switch {
	case roles.prefill != nil && roles.decode != nil:
		return roles, ModeDisaggregated
	case roles.prefill != nil:
		return roles, ModePrefill
	case roles.decode != nil:
		return roles, ModeDecode
	}
	return fleetPools{decode: aggregated}, ModeAggregated
}

// configOf returns the configuration: Dynamo's defaults with the model's targets, pools and budget, as they are changed.
func configOf(m *plan.Model, b *plan.Budget, roles fleetPools, mode string, change func(*Config)) Config {
	c := Defaults()
	c.TTFT, c.ITL = cmp.Or(m.Targets.TTFT, c.TTFT), cmp.Or(m.Targets.ITL, c.ITL)
	if m.Targets.TTFT > 0 || m.Targets.ITL > 0 {
		c.Target = TargetSLA
	}
	c.MinGPUs, c.MaxGPUs = orNone(b.MinGPUs), orNone(b.MaxGPUs)
	c.MaxWatts = int(b.MaxWatts)
	if p := roles.prefill; p != nil {
		c.PrefillGPUs, c.PrefillWatts = max(1, p.Configured.GPUs), int(p.Configured.Watts)
		c.PrefillMinEndpoint = p.Configured.Min
		c.Limits = limitsOf(p)
	}
	if p := roles.decode; p != nil {
		c.DecodeGPUs, c.DecodeWatts = max(1, p.Configured.GPUs), int(p.Configured.Watts)
		c.DecodeMinEndpoint = p.Configured.Min
		c.Limits = limitsOf(p)
	}
	if change != nil {
		change(&c)
	}

	c.Mode = mode
	c.ScaleThroughput = m.Algorithm != AlgorithmLoad
	c.ScaleLoad = m.Algorithm == AlgorithmLoad || m.Algorithm == AlgorithmHybrid
	if c.ScaleThroughput {
		c.Target = TargetSLA
	}
	return c
}

// orNone returns a bound as Dynamo has it: a negative number means no bound.
func orNone(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// limitsOf returns the limits of a pool's engines.
func limitsOf(p *pool) Limits {
	l := DefaultLimits()
	e := &p.Configured.Engine
	return Limits{
		MaxBatchedTokens: cmp.Or(e.MaxBatchedTokens, l.MaxBatchedTokens), MaxSeqs: cmp.Or(e.MaxSeqs, l.MaxSeqs),
		MaxKVTokens: cmp.Or(e.KVTokens, l.MaxKVTokens),
	}
}

// begin makes the state, and makes it again if the configuration of its parts has changed.
func (m *memory) begin(c Config, roles fleetPools) error {
	if err := c.Validate(); err != nil {
		return err
	}
	a, b := &m.config, &c
	same := a.Mode == b.Mode && a.Predictor == b.Predictor && a.Log1p == b.Log1p && a.Kalman == b.Kalman && a.Samples == b.Samples
	m.config = c
	if m.begun && same {
		return nil
	}

	state, err := c.NewState(profileOf(roles))
	if err != nil {
		return err
	}
	m.state, m.begun = state, true
	m.window = plan.Demand{}
	m.windowAt, m.loadAt = time.Time{}, time.Time{}
	return nil
}

// collect adds the demand of a step to the window.
func (m *memory) collect(o *plan.Observation, d *plan.Demand, model *plan.Model) {
	if m.windowAt.IsZero() {
		m.windowAt = o.At.Add(-cmp.Or(model.Every, plan.DefaultEvery)) // the first step counts
	}
	if d == nil || d.Over <= 0 {
		return
	}
	w := &m.window
	w.Over += d.Over
	w.Requests += d.Requests
	w.Prompt = plan.Lengths{Count: w.Prompt.Count + d.Prompt.Count, Sum: w.Prompt.Sum + d.Prompt.Sum}
	w.Answer = plan.Lengths{Count: w.Answer.Count + d.Answer.Count, Sum: w.Answer.Sum + d.Answer.Sum}
	w.CachedTokens += d.CachedTokens
}

// mean returns the mean length; 0 without any.
func mean(l plan.Lengths) float64 { return l.Sum / float64(max(1, l.Count)) }

// decideThroughput ends a window, and decides by the prediction for the next one. Load scaling uses the window's hit rate
// alone.
func (m *memory) decideThroughput(o *plan.Observation, c *Config, roles fleetPools) {
	w := m.window
	m.window, m.windowAt = plan.Demand{}, o.At
	if w.Over <= 0 {
		roles.note(o, "no demand was observed")
		return
	}

	// A window of which a part was not observed is assumed to have been like the rest.
	requests := float64(w.Requests) * float64(c.Interval) / float64(w.Over)
	m.state.Series = m.state.Series.Window(requests, mean(w.Prompt), mean(w.Answer))
	m.state.Series.HitRate = min(1, w.CachedTokens/max(1, w.Prompt.Sum))
	m.state.Series.AcceptTokens = 1
	if p := roles.decode; p != nil {
		m.state.Series.AcceptTokens = max(1, p.StepTokens)
	}

	var d Decision
	if a := roles.anyPool().Model.Algorithm; a == AlgorithmThroughput || a == AlgorithmHybrid {
		d, m.state = c.NextThroughput(m.state, roles.ready())
		roles.take(o, d)
	}
}

// decideLoad decides by the present work of engines, and learns the steps that they report.
func (m *memory) decideLoad(o *plan.Observation, c *Config, roles fleetPools) {
	m.loadAt = o.At
	prefill, _ := roles.prefill.engines(c.Limits, 0)
	decode, steps := roles.decode.engines(c.Limits, m.state.Series.ISL.Predict()+m.state.Series.OSL.Predict()/2)
	if c.Mode != ModeAggregated {
		for _, s := range steps {
			m.state.Decode = m.state.Decode.Add(s)
		}
	}
	roles.take(o, c.NextLoad(m.state, roles.ready(), prefill, decode, roles.scaling()))
}

// engines returns the load of the ready workers that report it, and the decode steps that they made. context is the mean tokens of a
// request.
func (p *pool) engines(l Limits, context float64) (engines []Engine, steps []Sample) {
	if p == nil {
		return nil, nil
	}
	capacity := float64(cmp.Or(p.Configured.Engine.KVTokens, l.MaxKVTokens))
	for _, w := range p.Workers {
		if w.State != fleet.Ready || w.Load == nil {
			continue
		}
		e := Engine{
			QueuedPrompt: float64(w.Load.QueuedTokens), DecodeRequests: float64(w.Load.Running), DecodeContext: w.Load.KVUsage * capacity,
		}
		if p.Configured.Role == fleet.Decode {
			e.QueuedDecode = float64(w.Load.Waiting) * context
		}
		engines = append(engines, e)
		if w.Load.ITL > 0 && w.Load.Running > 0 {
			ms := 1e3 * w.Load.ITL.Seconds() * max(1, p.StepTokens)
			steps = append(steps, Sample{Requests: e.DecodeRequests, ContextTokens: e.DecodeContext, Milliseconds: ms})
		}
	}
	return engines, steps
}

// anyPool returns one of the pools.
func (r fleetPools) anyPool() *pool {
	if r.decode != nil {
		return r.decode
	}
	return r.prefill
}

// ready returns the numbers of ready workers.
func (r fleetPools) ready() (n Replicas) {
	if r.prefill != nil {
		n.Prefill = r.prefill.count(fleet.Ready)
	}
	if r.decode != nil {
		n.Decode = r.decode.count(fleet.Ready)
	}
	return n
}

// scaling reports whether the last decision is still being carried out.
func (r fleetPools) scaling() bool {
	for _, p := range []*pool{r.prefill, r.decode} {
		if p != nil && p.count(fleet.Starting)+p.count(fleet.Draining) > 0 {
			return true
		}
	}
	return false
}

// take takes a decision over. One that asks for nothing leaves the last one, with the reason.
func (r fleetPools) take(o *plan.Observation, d Decision) {
	reason := d.Reason
	if d.Detail != "" {
		reason += ": " + strings.TrimSuffix(d.Detail, "; ")
	}
	if !d.Changed && d.Reason != ReasonScale {
		r.note(o, reason)
		return
	}
	for p, n := range map[*pool]int{r.prefill: d.Prefill, r.decode: d.Decode} {
		if p != nil {
			*p.asked = asked{o.At, n, fmt.Sprintf("%d by %s: %s", n, p.Model.Algorithm, reason)}
		}
	}
}

// note replaces the reason of the last decisions, which stay.
func (r fleetPools) note(o *plan.Observation, reason string) {
	for _, p := range []*pool{r.prefill, r.decode} {
		if p == nil {
			continue
		}
		if p.asked.at.IsZero() {
			*p.asked = asked{o.At, p.Replicas, ""}
		}
		n := p.asked.replicas
		p.asked.reason = fmt.Sprintf("%d stay, %s: %s", n, p.Model.Algorithm, reason)
	}
}
