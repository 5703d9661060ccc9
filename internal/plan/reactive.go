package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/reactive"
)

// reactiveEvery is the time between two decisions of the reactive algorithm: Kubernetes' --horizontal-pod-autoscaler-sync-period.
const reactiveEvery = 15 * time.Second

// isDue reports whether a decision is due that is made at intervals. Half an interval between plans may be missing.
func isDue(o *Observation, m *Model, last time.Time, interval time.Duration) bool {
	if o.Between {
		return false
	}
	return last.IsZero() || o.At.Sub(last) >= interval-cmp.Or(m.Every, DefaultEvery)/2
}

// follow sets the pool's replicas to the last decision. Without one they stay.
func (p *pool) follow() {
	p.replicas, p.reason = p.memory.asked.replicas, p.memory.asked.reason
	if p.memory.asked.at.IsZero() {
		p.replicas = p.last()
		p.reason = fmt.Sprintf("%d stay: %s", p.replicas, cmp.Or(p.memory.asked.reason, p.model.Algorithm+" has not decided yet"))
	}
	p.bound()
}

// wrongConfig is the reason why an algorithm whose configuration is not valid does not decide, in one line.
func wrongConfig(err error) string {
	return "the configuration of the algorithm is wrong: " + strings.ReplaceAll(err.Error(), "\n", "; ")
}

// planReactive sets the replicas of a pool by the rule of Kubernetes' autoscaler.
func (p *pool) planReactive(o *Observation) {
	defer p.follow()
	if !isDue(o, p.model, p.memory.asked.at, reactiveEvery) {
		return
	}
	config := p.reactiveConfig()
	if err := config.Validate(); err != nil {
		p.memory.asked.reason = wrongConfig(err)
		return
	}

	now := p.last()
	if !p.memory.asked.at.IsZero() {
		now = p.memory.asked.replicas // a budget's reduction is not the autoscaler's decision
	}
	var d reactive.Decision
	d, p.memory.reactive = config.Next(p.memory.reactive, o.At, max(1, now), p.reactiveWorkers())
	p.memory.asked = asked{o.At, d.Replicas, fmt.Sprintf("%d by %s: %s", d.Replicas, p.model.Algorithm, d.Reason)}
}

// reactiveConfig returns the autoscaler's configuration. By default, prefill workers are counted by waiting requests, and others
// by their KV caches.
func (p *pool) reactiveConfig() reactive.Config {
	if p.model.Reactive != nil {
		return *p.model.Reactive
	}
	metric := reactive.KVUsage
	if p.configured.Role == fleet.Prefill {
		metric = reactive.Waiting
	}
	c := reactive.Defaults(metric)
	c.Min = max(1, p.configured.Min)
	c.Max = max(p.most(), c.Min)
	return c
}

// reactiveWorkers returns the reports of the workers. Workers that drain, are down, or do not come do not count.
func (p *pool) reactiveWorkers() []reactive.Worker {
	var out []reactive.Worker
	for _, w := range p.workers {
		if w.State != fleet.Ready && w.State != fleet.Starting || p.isLate(w) {
			continue
		}
		r := reactive.Worker{Ready: w.State == fleet.Ready}
		if w.Load != nil {
			r.Known = true
			r.KVUsage = w.Load.KVUsage
			r.Waiting, r.Running = w.Load.Waiting, w.Load.Running
		}
		out = append(out, r)
	}
	return out
}
