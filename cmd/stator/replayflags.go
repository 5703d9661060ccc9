package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/sim"
)

// replaySpec is one simulation as its flags say it.
type replaySpec struct {
	flags *flag.FlagSet

	trace, decisions, format, model string
	rows, traceBlock                int
	azureSessions                   bool
	jitter                          time.Duration
	agentJoin                       bool
	agentSessions                   int
	generated                       sim.Generated

	engine, router, timing, order string
	queue                         int
	cfg                           sim.Config
	seed                          uint64
	cost                          replayCost
	restarts                      restarts
	slow                          slowdowns
}

func addReplayFlags(f *flag.FlagSet) *replaySpec {
	s := &replaySpec{flags: f, slow: slowdowns{}}
	s.addTraceFlags(f)
	s.addFleetFlags(f)
	s.addRouterFlags(f)
	return s
}

func (s *replaySpec) addTraceFlags(f *flag.FlagSet) {
	f.StringVar(&s.trace, "trace", "", "trace `file`, or folder of agents' sessions")
	f.StringVar(&s.format, "format", "", "mooncake, azure, agent, decisions or generate (default: what the trace looks like)")
	f.StringVar(&s.decisions, "decisions", "", "decision log `file` of a router, instead of a trace")
	f.IntVar(&s.rows, "rows", 0, "play only the first `n` rows")
	f.Float64Var(&s.cfg.Speed, "speed", 1, "divides the times between arrivals; 3 is three times as many requests")
	f.IntVar(&s.cfg.Concurrency, "concurrency", 0, "closed loop: so many requests at a time, whatever the trace's times")
	f.DurationVar(&s.jitter, "jitter", 0, "lets each arrival come later by a random time up to this, for traces whose times were rounded")
	f.IntVar(&s.traceBlock, "trace-block-size", 512, "tokens of a block of a Mooncake trace")
	f.BoolVar(&s.azureSessions, "azure-sessions", false, "guess which rows of an Azure trace continue another; without it prompts share nothing")
	f.StringVar(&s.model, "model", "builtin:sim", "model folder or .gguf `file` whose tokenizer reads agents' text")
	f.BoolVar(&s.agentJoin, "agent-join", false, "make of each row of an agent's session the whole conversation so far")
	f.IntVar(&s.agentSessions, "agent-sessions", 0, "lay agents' sessions side by side, `n` at a time (default: as recorded)")
	g := &s.generated
	f.IntVar(&g.Requests, "requests", 1000, "generate: how many requests")
	f.Float64Var(&g.Rate, "rate", 10, "generate: requests per second")
	f.StringVar(&g.Arrivals, "arrivals", "poisson", "generate: constant, poisson, sinusoid or bursts")
	f.Float64Var(&g.Swing, "swing", 0.8, "generate: by which share of the rate the sinusoid swings")
	f.DurationVar(&g.Period, "period", time.Minute, "generate: how long a wave of the sinusoid is")
	f.IntVar(&g.Burst, "burst", 32, "generate: requests of a burst, which come at one moment")
	f.BoolVar(&g.Identical, "identical", false, "generate: all prompts of a burst are equal")
	f.IntVar(&g.Input, "isl", 2000, "generate: mean tokens of a prompt")
	f.IntVar(&g.Output, "osl", 200, "generate: mean tokens of an answer")
	f.Float64Var(&g.Spread, "spread", 0, "generate: how far lengths lie from their mean, as a share of it")
	f.Float64Var(&g.PrefixShare, "prefix-share", 0, "generate: share of the prompt that is a shared beginning")
	f.IntVar(&g.Prefixes, "prefixes", 10, "generate: how many shared beginnings there are")
}

func (s *replaySpec) addFleetFlags(f *flag.FlagSet) {
	c := &s.cfg
	f.IntVar(&c.Workers, "workers", 4, "how many engines")
	f.StringVar(&s.engine, "engine", "vllm", "how engines schedule: vllm")
	f.IntVar(&c.Engine.BlockSize, "block-size", 64, "tokens in a block")
	f.IntVar(&c.Engine.Blocks, "blocks", 16384, "KV capacity of an engine in blocks")
	f.IntVar(&c.Engine.MaxSeqs, "max-num-seqs", 256, "requests that run at once on an engine")
	f.IntVar(&c.Engine.MaxBatchedTokens, "max-num-batched-tokens", 8192, "tokens of one pass")
	f.StringVar(&s.timing, "timing", "polynomial", "how long passes take: polynomial, fixed:PREFILL,DECODE or profile:DIR")
	f.Var(&s.restarts, "restart", "`worker@at+after`: that engine dies at a time and is back after another, empty; 2@10m+30s. May be given more than once")
	f.Var(&s.slow, "slow", "`worker=factor`: that engine takes so many times as long; 0=3. May be given more than once")
}

func (s *replaySpec) addRouterFlags(f *flag.FlagSet) {
	c := &s.cfg
	f.StringVar(&s.router, "router", "kv", "routing policy: kv, round-robin, random, power-of-two, least-loaded or session")
	s.cost.addFlags(f)
	f.Float64Var(&c.Temperature, "temperature", 0, "spreads the kv policy's picks")
	f.IntVar(&c.Replicas, "replicas", 1, "how many routers take requests in turn")
	f.DurationVar(&c.EventLag, "event-lag", 0, "how long caches' events are under way")
	f.DurationVar(&c.SignalLag, "signal-lag", 0, "how long until a router hears of last tokens, and of first ones")
	f.DurationVar(&c.PredictFor, "predict-for", 0, "how long a pick is believed to have filled its cache until events say so; 0: 5s, or 2m without events; negative: not at all")
	f.Int64Var(&c.Busy.PrefillTokens, "busy-prefill-tokens", 0, "an engine with more tokens of prompts to compute is busy, and takes no request (default: never)")
	f.IntVar(&s.queue, "queue", 0, "how many requests may wait in a router while all engines are busy (default: they are refused)")
	f.StringVar(&s.order, "queue-order", "fcfs", "who goes first: fcfs or wspt")
	f.DurationVar(&c.MaxWait, "max-wait", 0, "how long a request may wait; 0: 30s")
	f.IntVar(&c.Prefill, "prefill-workers", 0, "how many more engines there are that only prefill; --workers then only decode")
	f.StringVar(&c.DecodePolicy, "decode-router", "", "routing policy for workers that only decode (default: --router)")
	f.DurationVar(&c.TransferBase, "transfer-base", 0, "how long a computed prompt is on its way between them; 0: 1ms")
	f.DurationVar(&c.TransferToken, "transfer-token", 0, "and so much longer for each of its tokens; 0: 3µs, 128 KiB at 43 GB/s")
	f.BoolVar(&c.FirstTokens, "first-tokens", false, "routers hear of first tokens, as Dynamo's does, and need not gather them from events")
	f.BoolVar(&c.NoEvents, "no-events", false, "keep caches' events from the routers")
	f.Uint64Var(&s.seed, "seed", 0, "makes all choices: ties, random policies, generated arrivals")
}

// config is the simulation that the flags say.
func (s *replaySpec) config() (sim.Config, error) {
	cfg := s.cfg
	if s.engine != "vllm" {
		return cfg, fmt.Errorf("--engine is %q: vllm is the one whose scheduling is simulated", s.engine)
	}
	if s.rows < 0 || s.jitter < 0 || s.traceBlock < 1 || s.traceBlock > 1<<20 || s.agentSessions < 0 {
		return cfg, fmt.Errorf("--rows, --jitter, --trace-block-size and --agent-sessions must be at least 0, 0, 1 and 0")
	}
	var err error
	if cfg.Engine.Timing, err = parseTiming(s.timing); err != nil {
		return cfg, fmt.Errorf("--timing: %w", err)
	}
	if cfg.Cost, err = s.cost.function(s.flags); err != nil {
		return cfg, err
	}
	if s.queue > 0 {
		order, err := queue.ParseOrder(s.order)
		if err != nil {
			return cfg, fmt.Errorf("--queue-order: %w", err)
		}
		cfg.Queue = &queue.Config{Limit: queue.Limit{Requests: s.queue}, Classes: []queue.Class{{Order: order}}}
	}
	cfg.Policy, cfg.Seed = s.router, s.seed
	cfg.Restarts, cfg.Slow = s.restarts, s.slow
	return cfg, nil
}

// settings are the flags that were given, sorted by name.
func (s *replaySpec) settings() string {
	var words []string
	s.flags.Visit(func(f *flag.Flag) {
		value := f.Value.String()
		switch f.Name {
		case "json", "html", "jobs", "run":
			return
		case "trace", "decisions":
			value = filepath.Base(value)
		}
		if value == "true" {
			words = append(words, "--"+f.Name)
			return
		}
		words = append(words, "--"+f.Name+" "+value)
	})
	return strings.Join(words, " ")
}

// parseTiming is a model of timing by its name.
func parseTiming(text string) (perfmodel.Timing, error) {
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "polynomial":
		if rest == "" {
			return perfmodel.Polynomial{}, nil
		}
	case "fixed":
		a, b, _ := strings.Cut(rest, ",")
		prefill, err := time.ParseDuration(a)
		decode, err2 := time.ParseDuration(b)
		if err != nil || err2 != nil || prefill < 0 || decode < 0 || prefill+decode == 0 {
			return nil, fmt.Errorf("%q: write it like fixed:40ms,8ms", text)
		}
		return perfmodel.Fixed{PrefillTime: prefill, DecodeTime: decode}, nil
	case "profile":
		if rest != "" {
			return perfmodel.LoadProfile(os.DirFS(rest))
		}
	}
	return nil, fmt.Errorf("%q is unknown: use polynomial, fixed:PREFILL,DECODE or profile:DIR", text)
}

// restarts is a flag of engines that die.
type restarts []sim.Restart

// String writes them as they are read.
func (r *restarts) String() string {
	var words []string
	for _, x := range *r {
		words = append(words, fmt.Sprintf("%d@%v+%v", x.Worker, x.At, x.After))
	}
	return strings.Join(words, " ")
}

// Set adds one, or several with spaces between.
func (r *restarts) Set(text string) error { return each(text, r.add) }

func (r *restarts) add(text string) error {
	worker, times, ok := strings.Cut(text, "@")
	at, after, ok2 := strings.Cut(times, "+")
	n, err := strconv.Atoi(worker)
	from, err2 := time.ParseDuration(at)
	span, err3 := time.ParseDuration(after)
	if !ok || !ok2 || err != nil || err2 != nil || err3 != nil {
		return fmt.Errorf("write it like 2@10m+30s: worker 2 dies after 10 minutes and is back 30 seconds later")
	}
	*r = append(*r, sim.Restart{Worker: n, At: from, After: span})
	return nil
}

// slowdowns is a flag of engines that are slower.
type slowdowns map[int]float64

// String writes them as they are read.
func (s *slowdowns) String() string {
	var words []string
	for _, w := range slices.Sorted(maps.Keys(*s)) {
		words = append(words, fmt.Sprintf("%d=%v", w, (*s)[w]))
	}
	return strings.Join(words, " ")
}

// Set adds one, or several with spaces between.
func (s *slowdowns) Set(text string) error { return each(text, s.add) }

// each adds the words of a flag one by one.
func each(text string, add func(word string) error) error {
	for _, word := range strings.Fields(text) {
		if err := add(word); err != nil {
			return err
		}
	}
	return nil
}

func (s *slowdowns) add(text string) error {
	worker, factor, ok := strings.Cut(text, "=")
	n, err := strconv.Atoi(worker)
	v, err2 := strconv.ParseFloat(factor, 64)
	if !ok || err != nil || err2 != nil {
		return fmt.Errorf("write it like 0=3: worker 0 takes three times as long")
	}
	(*s)[n] = v
	return nil
}
