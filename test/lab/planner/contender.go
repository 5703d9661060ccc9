package planner

import (
	"fmt"
	"time"

	role "github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/reactive"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/lab/dynamo"
)

// The bounds of all planners.
const (
	mostEngines = 16              // in the budget
	every       = 5 * time.Second // between two observations; rivals decide at intervals of their own
)

// candidate is a planner with its parameters, or a fleet that stays as it is.
type candidate struct {
	label  string
	static fleet // used where settings is nil
	// settings has an entry for each pool that is planned separately, and one for all pools that are planned together.
	settings []*plan.Settings
}

// planner returns the function that plans, with an empty memory. Observations and plans go to a timeline, which may be nil.
func (c *candidate) planner(t *timeline) func(plan.Observation) plan.Plan {
	states := make([]plan.State, len(c.settings))
	return func(o plan.Observation) (out plan.Plan) {
		for i, s := range c.settings {
			var p plan.Plan
			o.Settings = s
			p, states[i] = plan.Next(states[i], o)
			out.Pools = append(out.Pools, p.Pools...)
		}
		if t != nil {
			t.planned(&o, out)
		}
		return out
	}
}

// contender is an algorithm with its grid. Grids have about as many points as ours.
type contender struct {
	name string
	// about describes the grid.
	about string
	grid  func(w *workload, startUp time.Duration) []candidate
}

// ours is the name of the algorithm that is compared with all others.
const ours = "Stator, sla"

// static is the name of the fleets that stay as they are.
const static = "static fleet"

var contenders = []contender{
	{ours, "headroom (quantile of the forecast) × requests within the targets × time before a pool shrinks", gridOfOurs},
	{static, "every number of engines, or every pair around the one at the start", gridOfStatic},
	{"reactive", "running requests that an engine should have × window before a pool shrinks; Kubernetes' other defaults", gridOfReactive},
	{"Dynamo, throughput", "predictor × interval × factor of the targets", gridOfThroughput},
	{"Dynamo, load", "sensitivity × interval × factor of the targets, and the other targets", gridOfLoad},
	{"Dynamo, both", "sensitivity × predictor × factor of the targets", gridOfHybrid},
}

// pools returns the pools of a workload's fleet.
func (w *workload) pools(startUp time.Duration) (list []plan.Configured) {
	add := func(r role.Role, n int) {
		list = append(list, plan.Configured{
			Role: r, Replicas: n, Min: 1, Max: mostEngines, GPUs: w.machine.perEngine(), StartUp: startUp, Engine: w.machine.known(),
		})
	}
	if w.start.prefill == 0 {
		add(role.Aggregated, w.start.decode)
		return list
	}
	add(role.Prefill, w.start.prefill)
	add(role.Decode, w.start.decode)
	return list
}

// targets returns the SLA as planners have it.
func (w *workload) targets() capacity.Targets {
	return capacity.Targets{TTFT: w.sla.TTFT, ITL: w.sla.ITL, Quantile: w.quantile}
}

// settings returns the settings of an algorithm, without its own.
func (w *workload) settings(algorithm string, startUp time.Duration) *plan.Settings {
	m := plan.Model{
		Name: sim.Model, Algorithm: algorithm, Every: every, Targets: w.targets(), Pools: w.pools(startUp),
	}
	return &plan.Settings{Budget: plan.Budget{MaxGPUs: mostEngines * w.machine.perEngine()}, Models: []plan.Model{m}}
}

func gridOfOurs(w *workload, startUp time.Duration) (list []candidate) {
	for _, headroom := range []float64{0.05, 0.6, 1} {
		for _, quantile := range []float64{0.2, 0.85, 0.99} {
			for _, downAfter := range []time.Duration{5 * time.Second, 2 * time.Minute, 10 * time.Minute} {
				s := w.settings(plan.AlgorithmSLA, startUp)
				m := &s.Models[0]
				m.Tuning = plan.Tuning{Headroom: headroom, DownAfter: downAfter}
				m.Targets.Quantile = quantile
				list = append(list, candidate{
					label:    fmt.Sprintf("headroom %v, quantile %v, down after %v", headroom, quantile, downAfter),
					settings: []*plan.Settings{s},
				})
			}
		}
	}
	return list
}

func gridOfStatic(w *workload, _ time.Duration) (list []candidate) {
	add := func(f fleet) { list = append(list, candidate{label: f.String(), static: f}) }
	if w.start.prefill == 0 {
		for n := 1; n <= 12; n++ {
			add(fleet{0, n})
		}
		return list
	}
	for p := max(1, w.start.prefill-1); p <= w.start.prefill+4; p++ {
		for d := max(1, w.start.decode-1); d <= w.start.decode+3; d++ {
			if p <= 2*w.start.prefill*max(1, d)/w.start.decode {
				add(fleet{p, d})
			}
		}
	}
	return list
}

// gridOfReactive plans each role by itself, because roles have targets of their own. Prompts and steps of a role run on an engine at
// once, so the metric is running requests: it is the one that follows the load without a queue.
func gridOfReactive(w *workload, startUp time.Duration) []candidate {
	scales, prompted := []float64{0.2, 0.3, 0.45, 0.6, 0.8, 1}, []float64{0.4, 1}
	if w.start.prefill == 0 {
		// There is one pool.
		scales, prompted = []float64{0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1}, []float64{0}
	}

	return w.reactives(startUp, scales, prompted)
}

// reactives returns reactive algorithms whose engines should have shares of the SLA's batch, and so many prompts.
func (w *workload) reactives(startUp time.Duration, scales, prompted []float64) (list []candidate) {
	for _, scale := range scales {
		for _, prompts := range prompted {
			for _, window := range []time.Duration{60 * time.Second, 300 * time.Second} {
				c := candidate{label: fmt.Sprintf("%v of the SLA's batch, %v prompts, window %v", scale, prompts, window)}
				for _, p := range w.pools(startUp) {
					c.settings = append(c.settings, w.reactive(p, scale, prompts, window))
				}
				list = append(list, c)
			}
		}
	}
	return list
}

// reactive returns the settings of one pool: prefill engines should have as many prompts, and others a share of the SLA's batch.
func (w *workload) reactive(p plan.Configured, scale, prompts float64, window time.Duration) *plan.Settings {
	config := reactive.Defaults(reactive.Running)
	config.DownWindow = window
	config.Max = mostEngines / 2
	config.Target = scale * w.batch()
	switch p.Role {
	case role.Prefill:
		config.Target = prompts
	case role.Aggregated:
		config.Max = mostEngines
	}

	s := w.settings(plan.AlgorithmReactive, p.StartUp)
	s.Models[0].Pools = []plan.Configured{p}
	s.Models[0].Reactive = &config
	return s
}

// batch returns how many requests an engine may run within the SLA.
func (w *workload) batch() float64 {
	e := w.machine.known()
	return e.Running(w.typical, w.sla.ITL, 0)
}

// factors tighten the latencies that Dynamo's planner is given. Its users tighten them so that it spares fewer GPUs.
var factors = []float64{1, 0.8, 0.65, 0.5}

// dynamo returns the settings of one of Dynamo's algorithms, whose configuration is changed.
func (w *workload) dynamo(algorithm, label string, startUp time.Duration, factor float64, set func(c *dynamo.Config)) candidate {
	s := w.settings(algorithm, startUp)
	m := &s.Models[0]
	m.Targets.TTFT, m.Targets.ITL = time.Duration(factor*float64(w.sla.TTFT)), time.Duration(factor*float64(w.sla.ITL))
	m.Rule = dynamo.Rule(func(c *dynamo.Config) {
		c.Context = w.machine.longest
		set(c)
	})
	return candidate{label: fmt.Sprintf("%s, targets × %v", label, factor), settings: []*plan.Settings{s}}
}

func gridOfThroughput(w *workload, startUp time.Duration) (list []candidate) {
	for _, predictor := range []string{"constant", "arima", "kalman"} {
		for _, interval := range []time.Duration{60 * time.Second, 180 * time.Second} {
			for _, factor := range factors {
				label := fmt.Sprintf("%s, every %v", predictor, interval)
				list = append(list, w.dynamo(dynamo.AlgorithmThroughput, label, startUp, factor, func(c *dynamo.Config) {
					c.Predictor, c.Interval = predictor, interval
				}))
			}
		}
	}
	return list
}

func gridOfLoad(w *workload, startUp time.Duration) []candidate {
	return w.loads(startUp, []int{70, 80, 90}, []time.Duration{5 * time.Second, 10 * time.Second})
}

// loads returns Dynamo's load mode with sensitivities and intervals, each with all factors of the targets, and its other targets.
func (w *workload) loads(startUp time.Duration, sensitivities []int, intervals []time.Duration) (list []candidate) {
	for _, sensitivity := range sensitivities {
		for _, interval := range intervals {
			for _, factor := range factors {
				label := fmt.Sprintf("sensitivity %d, every %v", sensitivity, interval)
				list = append(list, w.dynamo(dynamo.AlgorithmLoad, label, startUp, factor, func(c *dynamo.Config) {
					c.Sensitivity, c.LoadInterval = sensitivity, interval
				}))
			}
		}
	}
	for _, target := range []string{dynamo.TargetThroughput, dynamo.TargetLatency} {
		list = append(list, w.dynamo(dynamo.AlgorithmLoad, "target "+target, startUp, 1, func(c *dynamo.Config) { c.Target = target }))
	}
	return list
}

func gridOfHybrid(w *workload, startUp time.Duration) (list []candidate) {
	for _, sensitivity := range []int{70, 90} {
		for _, predictor := range []string{"constant", "arima", "kalman"} {
			for _, factor := range factors {
				label := fmt.Sprintf("sensitivity %d, %s", sensitivity, predictor)
				list = append(list, w.dynamo(dynamo.AlgorithmHybrid, label, startUp, factor, func(c *dynamo.Config) {
					c.Sensitivity, c.Predictor = sensitivity, predictor
				}))
			}
		}
	}
	return list
}
