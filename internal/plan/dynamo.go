package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/dynamo"
)

// dynamoMemory is the memory of Dynamo's algorithms for one model. It is a value.
type dynamoMemory struct {
	config dynamo.Config // with which state was made
	begun  bool          // there is a state
	state  dynamo.State
	// window is the demand since the last decision on throughput, at windowAt. loadAt is when load scaling decided last.
	window           Demand
	windowAt, loadAt time.Time
}

// dynamoPools are the pools of a model as Dynamo has them. A role that there is not is nil; aggregated workers are decode.
type dynamoPools struct{ prefill, decode *pool }

// planDynamo sets the replicas of a model's pools by one of Dynamo's algorithms, at its intervals.
func (m *memory) planDynamo(o *Observation, d *Demand, pools []*pool) {
	defer func() {
		for _, p := range pools {
			p.follow()
		}
	}()
	roles, mode := dynamoRoles(pools)
	if len(pools) == 0 || o.Between {
		return
	}
	config := pools[0].model.dynamoConfig(&o.Settings.Budget, roles, mode)
	if err := m.dynamo.begin(config, roles); err != nil {
		for _, p := range pools {
			p.memory.asked.reason = wrongConfig(err)
		}
		return
	}

	m.dynamo.collect(o, d, pools[0].model)
	if isDue(o, pools[0].model, m.dynamo.windowAt, config.Interval) {
		m.dynamo.decideThroughput(o, &config, roles)
	}
	scalesLoad := pools[0].model.Algorithm == AlgorithmDynamoLoad || pools[0].model.Algorithm == AlgorithmDynamoHybrid
	if scalesLoad && isDue(o, pools[0].model, m.dynamo.loadAt, config.LoadInterval) {
		m.dynamo.decideLoad(o, &config, roles)
	}
}

// dynamoRoles returns the pools by Dynamo's roles, and Dynamo's mode for them. Dynamo has no fleets of aggregated workers beside separate
// ones: of those it plans the separate ones, and the others stay.
func dynamoRoles(pools []*pool) (roles dynamoPools, mode string) {
	var aggregated *pool
	for _, p := range pools {
		switch p.configured.Role {
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
		return roles, dynamo.ModeDisaggregated
	case roles.prefill != nil:
		return roles, dynamo.ModePrefill
	case roles.decode != nil:
		return roles, dynamo.ModeDecode
	}
	return dynamoPools{decode: aggregated}, dynamo.ModeAggregated
}

// dynamoConfig returns the configuration of Dynamo's algorithm: the model's, or the defaults with its targets, pools and budget.
func (m *Model) dynamoConfig(b *Budget, roles dynamoPools, mode string) dynamo.Config {
	c := dynamo.Defaults()
	if m.Dynamo != nil {
		c = *m.Dynamo
	} else {
		c.TTFT, c.ITL = cmp.Or(m.Targets.TTFT, c.TTFT), cmp.Or(m.Targets.ITL, c.ITL)
		if m.Targets.TTFT > 0 || m.Targets.ITL > 0 {
			c.Target = dynamo.TargetSLA
		}
		c.MinGPUs, c.MaxGPUs = orNone(b.MinGPUs), orNone(b.MaxGPUs)
		c.MaxWatts = int(b.MaxWatts)
		if p := roles.prefill; p != nil {
			c.PrefillGPUs, c.PrefillWatts = max(1, p.configured.GPUs), int(p.configured.Watts)
			c.PrefillMinEndpoint = p.configured.Min
			c.Limits = dynamoLimits(p)
		}
		if p := roles.decode; p != nil {
			c.DecodeGPUs, c.DecodeWatts = max(1, p.configured.GPUs), int(p.configured.Watts)
			c.DecodeMinEndpoint = p.configured.Min
			c.Limits = dynamoLimits(p)
		}
	}

	c.Mode = mode
	c.ScaleThroughput = m.Algorithm != AlgorithmDynamoLoad
	c.ScaleLoad = m.Algorithm == AlgorithmDynamoLoad || m.Algorithm == AlgorithmDynamoHybrid
	if c.ScaleThroughput {
		c.Target = dynamo.TargetSLA
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

// dynamoLimits returns the limits of a pool's engines.
func dynamoLimits(p *pool) dynamo.Limits {
	l := dynamo.DefaultLimits()
	e := &p.configured.Engine
	return dynamo.Limits{
		MaxBatchedTokens: cmp.Or(e.MaxBatchedTokens, l.MaxBatchedTokens), MaxSeqs: cmp.Or(e.MaxSeqs, l.MaxSeqs),
		MaxKVTokens: cmp.Or(e.KVTokens, l.MaxKVTokens),
	}
}

// begin makes the state, and makes it again if the configuration of its parts has changed.
func (m *dynamoMemory) begin(c dynamo.Config, roles dynamoPools) error {
	if err := c.Validate(); err != nil {
		return err
	}
	a, b := &m.config, &c
	same := a.Mode == b.Mode && a.Predictor == b.Predictor && a.Log1p == b.Log1p && a.Kalman == b.Kalman && a.Samples == b.Samples
	m.config = c
	if m.begun && same {
		return nil
	}

	state, err := c.NewState(dynamoProfile(roles))
	if err != nil {
		return err
	}
	m.state, m.begun = state, true
	m.window = Demand{}
	m.windowAt, m.loadAt = time.Time{}, time.Time{}
	return nil
}

// collect adds the demand of a step to the window.
func (m *dynamoMemory) collect(o *Observation, d *Demand, model *Model) {
	if m.windowAt.IsZero() {
		m.windowAt = o.At.Add(-cmp.Or(model.Every, DefaultEvery)) // the first step counts
	}
	if d == nil || d.Over <= 0 {
		return
	}
	w := &m.window
	w.Over += d.Over
	w.Requests += d.Requests
	w.Prompt = Lengths{w.Prompt.Count + d.Prompt.Count, w.Prompt.Sum + d.Prompt.Sum, 0}
	w.Answer = Lengths{w.Answer.Count + d.Answer.Count, w.Answer.Sum + d.Answer.Sum, 0}
	w.CachedTokens += d.CachedTokens
}

// mean returns the mean length; 0 without any.
func (l Lengths) mean() float64 { return l.Sum / float64(max(1, l.Count)) }

// decideThroughput ends a window, and decides by the prediction for the next one. Load scaling uses the window's hit rate
// alone.
func (m *dynamoMemory) decideThroughput(o *Observation, c *dynamo.Config, roles dynamoPools) {
	w := m.window
	m.window, m.windowAt = Demand{}, o.At
	if w.Over <= 0 {
		roles.note(o, "no demand was observed")
		return
	}

	// A window of which a part was not observed is assumed to have been like the rest.
	requests := float64(w.Requests) * float64(c.Interval) / float64(w.Over)
	m.state.Series = m.state.Series.Window(requests, w.Prompt.mean(), w.Answer.mean())
	m.state.Series.HitRate = min(1, w.CachedTokens/max(1, w.Prompt.Sum))
	m.state.Series.AcceptTokens = 1
	if p := roles.decode; p != nil {
		m.state.Series.AcceptTokens = max(1, p.engine.StepTokens)
	}

	var d dynamo.Decision
	if a := roles.of().model.Algorithm; a == AlgorithmDynamoThroughput || a == AlgorithmDynamoHybrid {
		d, m.state = c.NextThroughput(m.state, roles.ready())
		roles.take(o, d)
	}
}

// decideLoad decides by the present work of engines, and learns the steps that they report.
func (m *dynamoMemory) decideLoad(o *Observation, c *dynamo.Config, roles dynamoPools) {
	m.loadAt = o.At
	prefill, _ := roles.prefill.engines(c.Limits, 0)
	decode, steps := roles.decode.engines(c.Limits, m.state.Series.ISL.Predict()+m.state.Series.OSL.Predict()/2)
	if c.Mode != dynamo.ModeAggregated {
		for _, s := range steps {
			m.state.Decode = m.state.Decode.Add(s)
		}
	}
	roles.take(o, c.NextLoad(m.state, roles.ready(), prefill, decode, roles.scaling()))
}

// engines returns the load of the ready workers that report it, and the decode steps that they made. context is the mean tokens of a
// request.
func (p *pool) engines(l dynamo.Limits, context float64) (engines []dynamo.Engine, steps []dynamo.Sample) {
	if p == nil {
		return nil, nil
	}
	capacity := float64(cmp.Or(p.configured.Engine.KVTokens, l.MaxKVTokens))
	for _, w := range p.workers {
		if w.State != fleet.Ready || w.Load == nil {
			continue
		}
		e := dynamo.Engine{
			QueuedPrompt: float64(w.Load.QueuedTokens), DecodeRequests: float64(w.Load.Running), DecodeContext: w.Load.KVUsage * capacity,
		}
		if p.configured.Role == fleet.Decode {
			e.QueuedDecode = float64(w.Load.Waiting) * context
		}
		engines = append(engines, e)
		if w.Load.ITL > 0 && w.Load.Running > 0 {
			ms := 1e3 * w.Load.ITL.Seconds() * max(1, p.engine.StepTokens)
			steps = append(steps, dynamo.Sample{Requests: e.DecodeRequests, ContextTokens: e.DecodeContext, Milliseconds: ms})
		}
	}
	return engines, steps
}

// of returns one of the pools.
func (r dynamoPools) of() *pool {
	if r.decode != nil {
		return r.decode
	}
	return r.prefill
}

// ready returns the numbers of ready workers.
func (r dynamoPools) ready() (n dynamo.Replicas) {
	if r.prefill != nil {
		n.Prefill = r.prefill.count(fleet.Ready)
	}
	if r.decode != nil {
		n.Decode = r.decode.count(fleet.Ready)
	}
	return n
}

// scaling reports whether the last decision is still being carried out.
func (r dynamoPools) scaling() bool {
	for _, p := range []*pool{r.prefill, r.decode} {
		if p != nil && p.count(fleet.Starting)+p.count(fleet.Draining) > 0 {
			return true
		}
	}
	return false
}

// take takes a decision over. One that asks for nothing leaves the last one, with the reason.
func (r dynamoPools) take(o *Observation, d dynamo.Decision) {
	reason := d.Reason
	if d.Detail != "" {
		reason += ": " + strings.TrimSuffix(d.Detail, "; ")
	}
	if !d.Changed && d.Reason != dynamo.ReasonScale {
		r.note(o, reason)
		return
	}
	for p, n := range map[*pool]int{r.prefill: d.Prefill, r.decode: d.Decode} {
		if p != nil {
			p.memory.asked = asked{o.At, n, fmt.Sprintf("%d by %s: %s", n, p.model.Algorithm, reason)}
		}
	}
}

// note replaces the reason of the last decisions, which stay.
func (r dynamoPools) note(o *Observation, reason string) {
	for _, p := range []*pool{r.prefill, r.decode} {
		if p == nil {
			continue
		}
		if p.memory.asked.at.IsZero() {
			p.memory.asked = asked{o.At, p.last(), ""}
		}
		n := p.memory.asked.replicas
		p.memory.asked.reason = fmt.Sprintf("%d stay, %s: %s", n, p.model.Algorithm, reason)
	}
}
