package plan

// Rule is an algorithm of the caller's own for one model. It returns the wanted workers of each pool, in the order of the pools, and its
// state until the next plan. Its argument before is the state of the last plan; nil at the first one, and after the name of
// the model's algorithm has changed. d is nil if the model has no known demand.
//
// A Rule must be pure, and must not change its arguments: plans are made again from the same state. It is called for every plan, plans
// between two regular ones included. Bounds of pools, budgets and drains are applied to its result.
type Rule func(before any, o *Observation, d *Demand, pools []Situation) (wants []Want, after any)

// Situation is a pool as a [Rule] sees it.
type Situation struct {
	Model      *Model
	Configured *Configured
	// Workers are all of the pool, sorted by name. Workers that the last plan drained are draining.
	Workers []*Worker
	// StepTokens is the number of an answer's tokens that a decode step makes; 0 is unknown.
	StepTokens float64
	// Replicas is the number of the last plan, or before the first one the number of workers that there are to be or are.
	Replicas int
}

// Want is the number of workers that a [Rule] wants in a pool, and one sentence about why.
type Want struct {
	Replicas int
	Reason   string
}

// planByRule sets the replicas of a model's pools by the caller's own algorithm.
func (m *memory) planByRule(o *Observation, d *Demand, rule Rule, pools []*pool) {
	situations := make([]Situation, 0, len(pools))
	for _, p := range pools {
		situations = append(situations, Situation{
			Model: p.model, Configured: p.configured, Workers: p.workers, StepTokens: p.engine.StepTokens, Replicas: p.last(),
		})
	}

	wants, after := rule(m.rule, o, d, situations)
	m.rule = after
	for i, p := range pools {
		p.replicas, p.reason = wants[i].Replicas, wants[i].Reason
		p.bound()
	}
}
