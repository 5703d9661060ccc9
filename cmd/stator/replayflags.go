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

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/internal/tracefile"
)

// replaySpec is one simulation, as its flags describe it.
type replaySpec struct {
	flags *cli.Flags

	trace  tracefile.Options
	rows   int
	jitter time.Duration

	policy, timing, order string
	queue                 int
	cfg                   sim.Config
	seed                  uint64
	cost                  replayCost
	restarts              restarts
	slow                  slowdowns
}

func addReplayFlags(f *cli.Flags) *replaySpec {
	s := &replaySpec{flags: f, slow: slowdowns{}}
	f.Group("Trace", func() { s.addTraceFlags(f) })
	f.Group("Arrivals by rule, with --format generate", func() { s.addGenerateFlags(f) })
	f.Group("Engines", func() { s.addEngineFlags(f) })
	f.Group("Workers that only prefill or only decode", func() { s.addRoleFlags(f) })
	f.Group("Router", func() { s.addRouterFlags(f) })
	f.Group("Cost function", func() { s.cost.addFlags(f) })
	f.Group("Queue of the router", func() { s.addQueueFlags(f) })
	f.Group("What routers receive", func() { s.addEventFlags(f) })
	return s
}

func (s *replaySpec) addTraceFlags(f *cli.Flags) {
	f.StringVar(&s.trace.Path, "trace", "", "trace `file`, or folder of agents' sessions")
	f.StringVar(&s.trace.Decisions, "decisions", "", "decision log `file` of a router, instead of a trace")
	f.StringVar(&s.trace.Format, "format", "", strings.Join(trace.Formats(), ", ")+" (default: detected)")
	f.IntVar(&s.rows, "rows", 0, "play only the first `n` rows")
	f.Float64Var(&s.cfg.ArrivalSpeedup, "arrival-speedup", 1,
		"divides the times between arrivals; 3 is three times as many requests a second")
	f.IntVar(&s.cfg.Concurrency, "concurrency", 0, "closed loop: this many requests at a time, whatever the trace's times")
	f.DurationVar(&s.jitter, "jitter", 0, "delay each arrival by a random time up to this, for traces whose times were rounded")
	f.Uint64Var(&s.seed, "seed", 0, "determines all random choices: ties, random policies, generated arrivals")
	f.IntVar(&s.trace.MooncakeBlock, "trace-block-size", trace.MooncakeBlock, "tokens of a block of a Mooncake trace")
	f.BoolVar(&s.trace.AzureSessions, "azure-sessions", false,
		"guess which rows of an Azure trace continue a conversation; without it prompts share nothing")
	f.StringVar(&s.trace.AgentModel, "model", "builtin:sim", "model folder or .gguf `file` whose tokenizer encodes agents' text")
	f.BoolVar(&s.trace.AgentJoin, "agent-join", false, "make the prompt of each row of an agent's session the whole conversation so far")
	f.IntVar(&s.trace.AgentSessions, "agent-sessions", 0,
		"run agents' sessions concurrently, `n` at a time (default: at their recorded times)")
}

func (s *replaySpec) addGenerateFlags(f *cli.Flags) {
	g := &s.trace.Generated
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

func (s *replaySpec) addEngineFlags(f *cli.Flags) {
	c := &s.cfg
	f.IntVar(&c.Workers, "workers", 4, "number of engines; they schedule as vLLM does")
	f.IntVar(&c.Engine.BlockSize, "block-size", 64, "tokens of a block")
	f.IntVar(&c.Engine.Blocks, "blocks", 16384, "KV capacity of an engine, in blocks")
	f.IntVar(&c.Engine.MaxNumSeqs, "max-num-seqs", 256, "requests that run at once on an engine")
	f.IntVar(&c.Engine.MaxNumBatchedTokens, "max-num-batched-tokens", 8192, "tokens of one pass of an engine")
	f.StringVar(&s.timing, "timing", "polynomial", "duration of passes: polynomial, fixed:PREFILL,DECODE or profile:DIR")
	f.Var(&s.restarts, "restart",
		"`worker@at+after`: the engine dies at a time and is back, empty, after another; 2@10m+30s. May be given more than once")
	f.Var(&s.slow, "slow", "`worker=factor`: the engine's passes take this many times as long; 0=3. May be given more than once")
}

func (s *replaySpec) addRoleFlags(f *cli.Flags) {
	c := &s.cfg
	f.IntVar(&c.Prefill, "prefill-workers", 0, "number of further engines, which only prefill; --workers then only decode")
	f.StringVar(&c.DecodePolicy, "decode-policy", "", "routing policy for workers that only decode (default: --policy)")
	f.DurationVar(&c.TransferBase, "transfer-base", 0, "time to transfer a computed prompt (default 1ms)")
	f.DurationVar(&c.TransferToken, "transfer-token", 0, "further time for each of its tokens (default 3µs: 128 KiB at 43 GB/s)")
}

func (s *replaySpec) addRouterFlags(f *cli.Flags) {
	c := &s.cfg
	f.StringVar(&s.policy, "policy", pick.KV, "routing policy: "+strings.Join(pick.Names(), ", "))
	f.Float64Var(&c.Temperature, "temperature", 0, "randomness of the kv policy's picks")
	f.IntVar(&c.Replicas, "replicas", 1, "number of routers, which decide in turn")
	f.DurationVar(&c.PredictFor, "predict-for", 0,
		"how long a pick counts as cached before events confirm it; negative: not at all (default 5s, or 2m with --no-events)")
}

func (s *replaySpec) addQueueFlags(f *cli.Flags) {
	c := &s.cfg
	f.Int64Var(&c.Busy.PrefillTokens, "busy-prefill-tokens", 0,
		"an engine with more prompt tokens to compute is busy and gets no request (default: never)")
	f.IntVar(&s.queue, "queue", 0, "requests that may wait in a router while all engines are busy (default: they are refused)")
	f.StringVar(&s.order, "queue-order", "fcfs", "order of the queue: fcfs or wspt")
	f.DurationVar(&c.MaxWait, "max-wait", 0, "longest wait in the queue (default 30s)")
}

func (s *replaySpec) addEventFlags(f *cli.Flags) {
	c := &s.cfg
	f.DurationVar(&c.EventLag, "event-lag", 0, "delay of KV events")
	f.DurationVar(&c.SignalLag, "signal-lag", 0, "delay until a router sees first and last tokens")
	f.BoolVar(&c.FirstTokens, "first-tokens", false, "routers see first tokens, as Dynamo's router does, and do not infer them from events")
	f.BoolVar(&c.NoEvents, "no-events", false, "routers receive no KV events")
}

// config returns the simulation that the flags describe.
func (s *replaySpec) config() (sim.Config, error) {
	cfg := s.cfg
	if s.rows < 0 || s.jitter < 0 || s.trace.MooncakeBlock < 1 || s.trace.MooncakeBlock > 1<<20 || s.trace.AgentSessions < 0 {
		return cfg, fmt.Errorf("--rows, --jitter, --trace-block-size and --agent-sessions must be at least 0, 0, 1 and 0")
	}

	var err error
	cfg.Engine.Timing, err = parseTiming(s.timing)
	if err != nil {
		return cfg, fmt.Errorf("--timing: %w", err)
	}
	cfg.Cost, err = s.cost.function(s.flags)
	if err != nil {
		return cfg, err
	}
	if s.queue > 0 {
		order, err := queue.ParseOrder(s.order)
		if err != nil {
			return cfg, fmt.Errorf("--queue-order: %w", err)
		}
		cfg.Queue = &queue.Config{Limit: queue.Limit{Requests: s.queue}, Classes: []queue.Class{{Order: order}}}
	}
	cfg.Policy = s.policy
	cfg.Seed = s.seed
	s.trace.Generated.Seed = s.seed
	cfg.Restarts = s.restarts
	cfg.Slow = s.slow
	return cfg, nil
}

// settings returns the flags that were given, sorted by name.
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

// parseTiming returns the model of timing of that name.
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

// restarts is the flag --restart.
type restarts []sim.Restart

// String returns the restarts in the form that Set accepts.
func (r *restarts) String() string {
	var words []string
	for _, x := range *r {
		words = append(words, fmt.Sprintf("%d@%v+%v", x.Worker, x.At, x.After))
	}
	return strings.Join(words, " ")
}

// Set adds one restart, or several that are separated by spaces.
func (r *restarts) Set(text string) error { return forEachWord(text, r.add) }

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

// slowdowns is the flag --slow: a factor for each of some workers.
type slowdowns map[int]float64

// String returns the factors in the form that Set accepts.
func (s *slowdowns) String() string {
	var words []string
	for _, w := range slices.Sorted(maps.Keys(*s)) {
		words = append(words, fmt.Sprintf("%d=%v", w, (*s)[w]))
	}
	return strings.Join(words, " ")
}

// Set adds one factor, or several that are separated by spaces.
func (s *slowdowns) Set(text string) error { return forEachWord(text, s.add) }

// forEachWord adds the words of a flag one by one.
func forEachWord(text string, add func(word string) error) error {
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
