package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/propose"
)

// planFlags are the flags of `stator plan`, which each field is named after.
type planFlags struct {
	model, gpuKind, engine, dtype, profile string
	gpus, profileGPUs                      int

	targets               capacity.Targets
	isl, osl              float64
	spread, cached, rate  float64
	trace, out            string
	asJSON, simulate      bool
	rows                  int
	cachedGiven, isTraced bool
}

// The bounds of the question.
const (
	maxPlanGPUs   = 4096
	maxPlanTokens = 1 << 22
	maxPlanRows   = 1_000_000
)

// validate refuses flags for which there is no proposal. It names the flag.
func (p *planFlags) validate() error {
	t := &p.targets

	switch {
	case p.model == "":
		return fmt.Errorf("name the model's folder with --model")
	case p.gpus < 1 || p.gpus > maxPlanGPUs:
		return fmt.Errorf("--gpus is %d: it must lie between 1 and %d", p.gpus, maxPlanGPUs)
	case p.profileGPUs < 1 || p.profileGPUs > maxPlanGPUs:
		return fmt.Errorf("--profile-gpus is %d: it must lie between 1 and %d", p.profileGPUs, maxPlanGPUs)
	case !slices.Contains(propose.Engines(), p.engine):
		return fmt.Errorf("--engine is %.40q: use %s", p.engine, strings.Join(propose.Engines(), ", "))
	case p.dtype != "auto" && weightBytes[p.dtype] == 0:
		return fmt.Errorf("--dtype is %.40q: use auto, %s", p.dtype, strings.Join(dtypes(), ", "))
	case t.TTFT < 0 || t.ITL < 0 || t.E2E < 0 || !(t.Quantile > 0 && t.Quantile < 1):
		return fmt.Errorf("--ttft, --itl and --e2e must not be negative, and --quantile must lie between 0 and 1")
	case !(p.isl >= 1 && p.isl <= maxPlanTokens && p.osl >= 1 && p.osl <= maxPlanTokens):
		return fmt.Errorf("--isl and --osl must lie between 1 and %d", maxPlanTokens)
	case !(p.spread >= 0 && p.spread <= 1 && p.cached >= 0 && p.cached <= 1):
		return fmt.Errorf("--spread and --cached must lie between 0 and 1")
	case !(p.rate >= 0 && p.rate < 1e6):
		return fmt.Errorf("--rate is %v: it must lie between 0 and 1000000", p.rate)
	case p.rows < 1 || p.rows > maxPlanRows:
		return fmt.Errorf("--rows is %d: it must lie between 1 and %d", p.rows, maxPlanRows)
	}
	return nil
}
