package main

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/sim"
)

// contestant is a router with its settings. The first one is the documented default.
type contestant struct {
	name     string
	settings []setting
}

// setting is one configuration of a router.
type setting struct {
	name string
	// flags are those of `stator replay` that make it; empty also where no flags do.
	flags string
	// change does what flags cannot. It may be nil.
	change func(*sim.Config)
}

// contestants returns kv, with its defaults, and its rivals.
func contestants() []contestant {
	return []contestant{
		{"kv", []setting{{"default", "", nil}}},
		{"Dynamo", dynamo()},
		{"least-loaded", []setting{{"default", "--policy least-loaded", alone}}},
		{"power-of-two", []setting{{"default", "--policy power-of-two", alone}}},
		{"round-robin", []setting{{"default", "--policy round-robin", alone}}},
	}
}

// alone is for routers that neither exchange bookings nor read metrics of engines.
func alone(cfg *sim.Config) {
	cfg.BookLag = -1
	cfg.ReportEvery = -1
}

// dynamo returns Dynamo's cost function with the values of --router-prefill-load-scale that a search tries. Its routers see first
// tokens. They exchange bookings by --router-replica-sync, which is off by default; the search has it on. Where some workers only
// prefill, they compute all prompts, as without its conditional disaggregation. It has the predictions of this project's
// router, which are at least as good as its own.
func dynamo() []setting {
	flags := func(scale int) string {
		return fmt.Sprintf("--cost dynamo --prefill-load-scale %d --first-tokens --prefill-at remote", scale)
	}
	list := []setting{{"default", flags(1), alone}}
	for _, scale := range []int{1, 4, 16, 32} {
		list = append(list, setting{fmt.Sprintf("scale %d", scale), flags(scale), nil})
	}
	return list
}

// chosenBy makes every replica choose by a policy of its own, which reads the metrics of engines as of the last report.
func chosenBy(reportEvery time.Duration, policy func() pick.Policy) func(*sim.Config) {
	return func(cfg *sim.Config) {
		cfg.BookLag = -1
		cfg.ReportEvery = reportEvery
		cfg.Chooser = func(int) pick.Policy { return policy() }
	}
}
