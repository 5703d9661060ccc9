package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/replaymatrix/rivals"
)

// contestant is a router with its settings. The first one is the documented default.
type contestant struct {
	name     string
	settings []setting
}

// setting is one configuration of a router.
type setting struct {
	name string
	// flags are the flags of `stator replay` that make it; empty also if no flags do.
	flags string
	// change does what flags cannot. It may be nil.
	change func(*sim.Config)
}

// contestants returns kv, with its defaults, and its rivals.
func contestants() []contestant {
	return []contestant{
		{"kv", []setting{{"default", "", nil}}},
		{"Dynamo", dynamo()},
		{"llm-d", llmd()},
		{"SMG", smg()},
		{"AIBrix", aibrix()},
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

// llmd returns llm-d's default, and samples of its repository. Where some workers only prefill, they compute all prompts.
func llmd() []setting {
	of := func(name string, policy func() *rivals.LLMD) setting {
		return setting{name, "", chosenBy(rivals.LLMDScrape, func() pick.Policy { return policy() })}
	}
	return []setting{
		of("default", rivals.NewLLMD),
		of("precise", rivals.NewLLMDPrecise),
		of("load-aware", rivals.NewLLMDLoadAware),
		of("active requests", rivals.NewLLMDActive),
	}
}

// smg returns SMG's default, lower thresholds, the thresholds that its policy has without flags, and its matches by KV events.
func smg() []setting {
	of := func(name string, policy rivals.SMG) setting {
		return setting{name, "", chosenBy(-1, func() pick.Policy { fresh := policy; return &fresh })}
	}
	return []setting{
		of("default", *rivals.NewSMG()),
		of("match 0.5, 32 and 1.1×", rivals.SMG{Threshold: 0.5, Abs: 32, Rel: 1.1}),
		of("match 0.3, 8 and 1.1×", rivals.SMG{Threshold: 0.3, Abs: 8, Rel: 1.1}),
		of("KV events", rivals.SMG{Threshold: 0.3, Abs: 64, Rel: 1.5, Events: true}),
	}
}

// aibrix returns AIBrix's default, an index of larger blocks, twice the deviations, and its matches by KV events.
func aibrix() []setting {
	of := func(name string, policy rivals.AIBrix) setting {
		return setting{name, "", chosenBy(-1, func() pick.Policy { fresh := policy; return &fresh })}
	}
	return []setting{
		of("default", *rivals.NewAIBrix()),
		of("large blocks", rivals.AIBrix{Imbalance: 8, Factor: 1, Capacity: rivals.AIBrixLargeBlocks}),
		of("large blocks, 16 and 2 σ", rivals.AIBrix{Imbalance: 16, Factor: 2, Capacity: rivals.AIBrixLargeBlocks}),
		of("KV events", rivals.AIBrix{Imbalance: 8, Factor: 1, Events: true}),
	}
}

// chosenBy makes every replica choose by policies of its own, which read the metrics of engines as of the last report.
func chosenBy(reportEvery time.Duration, policy func() pick.Policy) func(*sim.Config) {
	return func(cfg *sim.Config) {
		cfg.BookLag = -1
		cfg.ReportEvery = reportEvery
		cfg.Chooser = func(int) pick.Policy { return &perRole{policy, map[fleet.Role]pick.Policy{}} }
	}
}

// perRole has one policy for the workers of each role, as the rivals do that have separate roles.
type perRole struct {
	make   func() pick.Policy
	byRole map[fleet.Role]pick.Policy
}

// Choose chooses by the policy of the candidates' role.
func (p *perRole) Choose(cs []pick.Candidate, asked *pick.Request, rng *rand.Rand) int {
	role := cs[0].Rank.Worker.Role
	if p.byRole[role] == nil {
		p.byRole[role] = p.make()
	}
	return p.byRole[role].Choose(cs, asked, rng)
}
