package replay

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/forecast"
	"github.com/stator-project/stator/internal/sim"
)

// planningFlags are the flags of a planner, which changes the number of engines during the run.
type planningFlags struct {
	algorithm      string
	startUp, every time.Duration
	most           int
	quantile       float64
	tuning         plan.Tuning
}

func (p *planningFlags) addFlags(f *flag.FlagSet) {
	f.StringVar(&p.algorithm, "planner", "",
		"algorithm that changes the number of engines: "+strings.Join(plan.Algorithms()[1:], ", ")+" (default: the number stays)")
	f.DurationVar(&p.startUp, "startup", 30*time.Second, "time from the start of an engine until it is ready")
	f.IntVar(&p.most, "max-workers", 16, "most engines of each role, and most GPUs of all engines divided by those of one")
	f.DurationVar(&p.every, "plan-every", plan.DefaultEvery, "time between two plans; reactive decides less often")
	f.Float64Var(&p.quantile, "planner-quantile", 0.9, "sla: share of the requests that should be within the latency bounds")
	f.Float64Var(&p.tuning.Headroom, "planner-headroom", plan.DefaultHeadroom, "sla: quantile of the forecast that must be served, 0 to 1")
	f.DurationVar(&p.tuning.DownAfter, "planner-down-after", plan.DefaultDownAfter,
		"sla: how long the most engines that were needed are kept")
	f.StringVar(&p.tuning.Forecast, "planner-forecast", "auto", "sla: model of the forecast: "+strings.Join(forecast.Names(), ", "))
}

// apply adds the planner to a simulation that has all other settings. Its plans are one run's.
func (p *planningFlags) apply(c *sim.Config) error {
	if p.algorithm == "" {
		return nil
	}
	if err := p.validate(); err != nil {
		return err
	}

	m := plan.Model{
		Name: sim.Model, Algorithm: p.algorithm, Every: p.every, Tuning: p.tuning,
		Targets: capacity.Targets{TTFT: c.SLA.TTFT, ITL: c.SLA.ITL, E2E: c.SLA.E2E, Quantile: p.quantile},
	}
	pool := func(role fleet.Role, n, gpus int) {
		m.Pools = append(m.Pools, plan.Configured{
			Role: role, Replicas: n, Min: 1, Max: p.most, GPUs: gpus, StartUp: p.startUp, Engine: capacity.Engine{
				Timing: c.Engine.Timing, KVTokens: c.Engine.Blocks * c.Engine.BlockSize, MaxSeqs: c.Engine.MaxNumSeqs,
				MaxBatchedTokens: c.Engine.MaxNumBatchedTokens,
			},
		})
	}
	if c.Prefill > 0 {
		pool(fleet.Prefill, c.Prefill, c.PrefillGPUs)
		pool(fleet.Decode, c.Workers, c.GPUs)
	} else {
		pool(fleet.Aggregated, c.Workers, c.GPUs)
	}

	var state plan.State
	c.Planning = &sim.Planning{
		Every: p.every, StartUp: p.startUp, Max: p.most,
		Settings: &plan.Settings{Budget: plan.Budget{MaxGPUs: p.most * max(c.GPUs, c.PrefillGPUs)}, Models: []plan.Model{m}},
		Next: func(o plan.Observation) (out plan.Plan) {
			out, state = plan.Next(state, o)
			return out
		},
	}
	return nil
}

// validate reports everything that is wrong with the flags. The simulation checks the others.
func (p *planningFlags) validate() error {
	var errs []error
	if !slices.Contains(plan.Algorithms(), p.algorithm) {
		errs = append(errs, fmt.Errorf("--planner is %q: it must be one of %s", p.algorithm, strings.Join(plan.Algorithms(), ", ")))
	}
	if !slices.Contains(forecast.Names(), p.tuning.Forecast) {
		errs = append(errs, fmt.Errorf("--planner-forecast is %q: it must be one of %s", p.tuning.Forecast,
			strings.Join(forecast.Names(), ", ")))
	}
	if !(p.quantile > 0 && p.quantile < 1) || !(p.tuning.Headroom > 0 && p.tuning.Headroom < 1) {
		errs = append(errs, fmt.Errorf("--planner-quantile is %v and --planner-headroom %v: both must lie between 0 and 1", p.quantile,
			p.tuning.Headroom))
	}
	if p.tuning.DownAfter <= 0 {
		errs = append(errs, fmt.Errorf("--planner-down-after is %v: it must be positive", p.tuning.DownAfter))
	}
	return errors.Join(errs...)
}
