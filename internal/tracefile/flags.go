package tracefile

import (
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/trace"
)

// AddFlags adds the flags that name a trace and how it is read. The seed of generated arrivals is not among
// them: the caller sets it.
func (o *Options) AddFlags(f *flag.FlagSet) {
	f.StringVar(&o.Path, "trace", "", "trace `file`, or folder of agents' sessions or programs")
	f.StringVar(&o.Decisions, "decisions", "", "decision log `file` of a router, instead of a trace")
	f.StringVar(&o.Format, "format", "", strings.Join(trace.Formats(), ", ")+" (default: detected)")
	f.IntVar(&o.MooncakeBlock, "trace-block-size", trace.MooncakeBlock, "tokens of a block of a Mooncake trace")
	f.BoolVar(&o.AzureSessions, "azure-sessions", false,
		"guess which rows of an Azure trace continue a conversation; without it prompts share nothing")
	f.StringVar(&o.AgentModel, "model-dir", "builtin:sim",
		"model folder, .gguf `file` or hf:ORG/MODEL whose tokenizer encodes agents' text")
	f.BoolVar(&o.AgentJoin, "agent-join", false, "make the prompt of each row of an agent's session the whole conversation so far")
	f.IntVar(&o.AgentSessions, "agent-sessions", 0,
		"run agents' sessions concurrently, `n` at a time (default: at their recorded times)")
}

// AddGenerateFlags adds the flags of arrivals that a rule makes, which have no file.
func (o *Options) AddGenerateFlags(f *flag.FlagSet) {
	g := &o.Generated
	f.IntVar(&g.Requests, "requests", 1000, "number of requests")
	f.Float64Var(&g.Rate, "rate", 10, "requests per second")
	f.StringVar(&g.Arrivals, "arrivals", "poisson", "constant, poisson, sinusoid or bursts")
	f.Float64Var(&g.Swing, "swing", 0.8, "amplitude of the sinusoid, as a share of the rate")
	f.DurationVar(&g.Period, "period", time.Minute, "period of the sinusoid")
	f.IntVar(&g.Burst, "burst", 32, "requests of a burst, which arrive at one moment")
	f.BoolVar(&g.Identical, "identical", false, "make all prompts of a burst equal")
	f.IntVar(&g.Input, "isl", 2000, "mean tokens of a prompt")
	f.IntVar(&g.Output, "osl", 200, "mean tokens of an answer")
	f.Float64Var(&g.Spread, "spread", 0, "how far lengths may be from their mean, as a share of it")
	f.Float64Var(&g.PrefixShare, "prefix-share", 0, "share of the prompt that is a shared prefix")
	f.IntVar(&g.Prefixes, "prefixes", 10, "number of shared prefixes")
}

// maxMooncakeBlock bounds the tokens of a Mooncake trace's block.
const maxMooncakeBlock = 1 << 20

// Validate refuses numbers with which no trace can be read. It names the flags of [Options.AddFlags].
func (o *Options) Validate() error {
	if o.MooncakeBlock < 1 || o.MooncakeBlock > maxMooncakeBlock {
		return fmt.Errorf("--trace-block-size is %d: it must be from 1 to %d", o.MooncakeBlock, maxMooncakeBlock)
	}
	if o.AgentSessions < 0 {
		return fmt.Errorf("--agent-sessions is %d: it must be at least 0", o.AgentSessions)
	}
	return nil
}
