package replay

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// Options describe one simulated run: the fleet, its routers, and how arrivals are changed before they are
// played. Create them with [NewOptions], and add and parse the flags. They belong to one goroutine.
type Options struct {
	// Seed determines all random choices of the run. Generated arrivals must have the same seed.
	Seed uint64
	// Rows is the number of arrivals that are played; 0 means all of them.
	Rows int
	// Jitter is the largest random delay of an arrival.
	Jitter time.Duration

	// tiling repeats the arrivals, and tiled returns the share of the repetitions that were read, once Change was called.
	tiling trace.Tiling
	tiled  func() float64

	flags *flag.FlagSet // with all flags of the command: Settings lists them

	// Flags whose values are words. Simulation parses them.
	policy, timing, order string
	queue                 int
	cfg                   sim.Config
	cost                  costFlags
	restarts              several[sim.Restart]
	tiers                 several[engine.Tier]
	slow                  perWorker[float64]
	slowStarts            perWorker[int]
	slowSpells            several[sim.SlowSpell]
	planning              planningFlags
}

// NewOptions returns options whose flags are to be added to f.
func NewOptions(f *flag.FlagSet) *Options {
	return &Options{
		flags: f, restarts: newRestarts(), tiers: newTiers(),
		slow: newSlowdowns(), slowStarts: newSlowStarts(), slowSpells: newSlowSpells(),
	}
}

// AddArrivalFlags adds the flags that change the arrivals of any trace.
func (o *Options) AddArrivalFlags() {
	f := o.flags
	f.IntVar(&o.Rows, "rows", 0, "play only the first `n` rows")
	f.IntVar(&o.tiling.Times, "tile", 1, "play the trace this many times, one after the other; 24 makes a day of an hour")
	f.Float64Var(&o.tiling.Swing, "day-curve", 0,
		"vary the number of requests over the whole time: by this share less at its beginning and end, and more in its middle; 0 to 1")
	f.Float64Var(&o.cfg.ArrivalSpeedup, "arrival-speedup", 1,
		"divides the times between arrivals; 3 is three times as many requests a second")
	f.IntVar(&o.cfg.Concurrency, "concurrency", 0, "closed loop: this many requests at a time, whatever the trace's times")
	f.Float64Var(&o.cfg.ProgramRate, "program-rate", 0,
		"play sessions as programs, so many of which begin in a minute: a request waits for the answer before, and its pause")
	f.DurationVar(&o.cfg.MaxPause, "max-pause", time.Minute, "longest pause of a program")
	f.DurationVar(&o.cfg.Warmup, "warmup", 0, "leave the times and tokens of requests out that arrive so soon after the first")
	f.DurationVar(&o.Jitter, "jitter", 0, "delay each arrival by a random time up to this, for traces whose times were rounded")
	f.Uint64Var(&o.Seed, "seed", 0, "determines all random choices: ties, random policies, generated arrivals")
}

// AddFleetFlags adds the flags of engines and routers. group puts the flags that define adds under a heading.
func (o *Options) AddFleetFlags(group func(title string, define func())) {
	f := o.flags
	group("Engines", func() { o.addEngineFlags(f) })
	group("Noise of engines", func() { o.addNoiseFlags(f) })
	group("Workers that only prefill or only decode", func() { o.addRoleFlags(f) })
	group("Router", func() { o.addRouterFlags(f) })
	group("Cost function", func() { o.cost.addFlags(f) })
	group("Queue of the router", func() { o.addQueueFlags(f) })
	group("What routers receive", func() { o.addEventFlags(f) })
	group("Latency bounds, whose misses are counted", func() { o.addSLAFlags(f) })
	group("Planner", func() { o.planning.addFlags(f) })
}

// AddCoreFlags adds those of [Options.AddFleetFlags] that suit a log: engines that both prefill and decode, and routers without a queue.
func (o *Options) AddCoreFlags(group func(title string, define func())) {
	f := o.flags
	group("Engines", func() { o.addEngineFlags(f) })
	group("Router", func() { o.addRouterFlags(f) })
	group("Cost function", func() { o.cost.addFlags(f) })
	group("What routers receive", func() { o.addEventFlags(f) })
}

func (o *Options) addEngineFlags(f *flag.FlagSet) {
	c := &o.cfg
	f.IntVar(&c.Workers, "workers", 4, "number of engines; they schedule as vLLM does")
	f.IntVar(&c.Engine.BlockSize, "block-size", 64, "tokens of a block")
	f.IntVar(&c.Engine.Blocks, "blocks", 16384, "KV capacity of an engine, in blocks")
	f.IntVar(&c.Engine.MaxNumSeqs, "max-num-seqs", 256, "requests that run at once on an engine")
	f.IntVar(&c.Engine.MaxModelLen, "max-model-len", 131072, "tokens of a prompt and its answer")
	f.IntVar(&c.Engine.MaxNumBatchedTokens, "max-num-batched-tokens", 8192, "tokens of one pass of an engine")
	f.StringVar(&o.timing, "timing", "polynomial", "duration of passes: polynomial, fixed:PREFILL,DECODE or profile:DIR")
	f.Var(&o.tiers, "tier", "`tier=blocks,read,write,latency`: a cache behind that of each engine, with the times of a block; "+
		"host=20000,60us,60us,1ms. May be given for host, disk and external, in this order")
	f.BoolVar(&c.Engine.LoadAll, "load-all", false, "load blocks from tiers also where it is faster to compute them")
	f.BoolVar(&c.SharedCache, "shared-cache", false, "all engines have one cache: a bound of what routing can reach")
	f.Var(&o.restarts, "restart",
		"`worker@at+after`: the engine dies at a time and is back, empty, after another; 2@10m+30s. May be given more than once")
	f.Var(&o.slow, "slow", "`worker=factor`: the engine's passes take this many times as long; 0=3. May be given more than once")
}

func (o *Options) addNoiseFlags(f *flag.FlagSet) {
	n := &o.cfg.Noise
	f.Float64Var(&n.Sigma, "noise", 0, "σ of the log-normal factor of each pass, whose mean is 1; 0.6 is very much")
	f.BoolVar(&n.Stalls, "stalls", false, "engines stall for 100 to 300 ms, every 15 s of work")
	f.BoolVar(&n.Neighbours, "neighbours", false,
		"engines 0 and 1, 2 and 3, … share hardware: while one computes, the other prefills 1.4 % and decodes 19.5 % slower")
	f.Var(&o.slowStarts, "slow-start",
		"`worker=prompts`: so many of the engine's first prompts take 1.5 s longer each; 0=3. May be given more than once")
	f.Var(&o.slowSpells, "slow-spell",
		"`worker=factor@at+span`: the engine is slower for a time; 3=1.5@5m+10m. May be given more than once")
}

func (o *Options) addRoleFlags(f *flag.FlagSet) {
	c := &o.cfg
	f.IntVar(&c.Prefill, "prefill-workers", 0, "number of further engines, which only prefill; --workers then only decode")
	f.StringVar(&c.DecodePolicy, "decode-policy", "", "routing policy for workers that only decode (default: --policy)")
	f.BoolVar(&c.Pull, "pull", false, "engines without separate roles fetch the beginning of prompts from each other's caches")
	f.StringVar(&c.PrefillAt, "prefill-at", "auto", "where prompts are computed: auto (where it costs less), remote or local")
	f.IntVar(&c.GPUs, "gpus", 1, "GPUs of an engine: they multiply the bandwidth of transfers, and leave --timing as it is")
	f.IntVar(&c.PrefillGPUs, "prefill-gpus", 1, "GPUs of an engine that only prefills")
	x := &c.Transfer
	f.DurationVar(&x.Base, "transfer-base", 3*time.Millisecond, "time from the end of a prefill until data flow")
	f.IntVar(&x.TokenBytes, "kv-bytes-per-token", 131072, "size of the KV cache of a token, which is transferred")
	f.Float64Var(&x.NodeBandwidth, "node-bandwidth", 80e9, "bytes/s of a GPU in transfers within its node, which its engine's share")
	f.Float64Var(&x.NetworkBandwidth, "network-bandwidth", 42.6e9, "bytes/s of a GPU in transfers between nodes, which its engine's share")
	f.IntVar(&x.Nodes, "nodes", 1, "nodes over which the engines of each role are spread")
	f.BoolVar(&x.Zones, "zones", false, "routers know the node of each engine, as its zone")
}

func (o *Options) addRouterFlags(f *flag.FlagSet) {
	c := &o.cfg
	f.StringVar(&o.policy, "policy", pick.KV, "routing policy: "+strings.Join(pick.Names(), ", "))
	f.Float64Var(&c.Temperature, "temperature", 0, "randomness of the kv policy's picks")
	f.IntVar(&c.Replicas, "replicas", 1, "number of routers, which decide in turn")
	f.DurationVar(&c.PredictFor, "predict-for", 0,
		"how long a pick counts as cached before events confirm it; negative: not at all (default 5s, or 2m with --no-events)")
}

func (o *Options) addQueueFlags(f *flag.FlagSet) {
	c := &o.cfg
	f.Int64Var(&c.Busy.PrefillTokens, "busy-prefill-tokens", 0,
		"an engine with more prompt tokens to compute is busy and gets no request (default: never)")
	f.BoolVar(&c.Programs, "hold-programs", false, "the queue holds back steps of programs whose contexts are in no cache and have no room")
	f.IntVar(&o.queue, "queue", 0, "requests that may wait in a router while all engines are busy (default: they are refused)")
	f.StringVar(&o.order, "queue-order", "fcfs", "order of the queue: fcfs, lcfs or wspt")
	f.DurationVar(&c.MaxWait, "max-wait", 0, "longest wait in the queue (default 30s)")
}

func (o *Options) addEventFlags(f *flag.FlagSet) {
	c := &o.cfg
	f.DurationVar(&c.EventLag, "event-lag", 0, "delay of KV events")
	f.DurationVar(&c.SignalLag, "signal-lag", 0, "delay until a router sees first and last tokens")
	f.BoolVar(&c.FirstTokens, "first-tokens", false, "routers see first tokens, as Dynamo's router does, and do not infer them from events")
	f.BoolVar(&c.NoEvents, "no-events", false, "routers receive no KV events")
}

func (o *Options) addSLAFlags(f *flag.FlagSet) {
	s := &o.cfg.SLA
	f.DurationVar(&s.TTFT, "sla-ttft", 0, "bound of the time to first token (default: none)")
	f.DurationVar(&s.ITL, "sla-itl", 0, "bound of the mean time between the tokens of a request (default: none)")
	f.DurationVar(&s.E2E, "sla-e2e", 0, "bound of the time of a whole request (default: none)")
}

// Simulation returns the simulation that the flags describe. openDir opens the folder of a measured profile.
func (o *Options) Simulation(openDir func(path string) fs.FS) (sim.Config, error) {
	cfg := o.cfg
	if o.Rows < 0 || o.Jitter < 0 {
		return cfg, errors.New("--rows and --jitter must be at least 0")
	}
	if err := o.tiling.Validate(); err != nil {
		return cfg, fmt.Errorf("--tile and --day-curve: %w", err)
	}

	var err error
	cfg.Engine.Timing, err = parseTiming(o.timing, openDir)
	if err != nil {
		return cfg, fmt.Errorf("--timing: %w", err)
	}
	cfg.Cost, err = o.cost.function(o.flags)
	if err != nil {
		return cfg, err
	}
	if o.queue > 0 {
		order, err := queue.ParseOrder(o.order)
		if err != nil {
			return cfg, fmt.Errorf("--queue-order: %w", err)
		}
		cfg.Queue = &queue.Config{Limit: queue.Limit{Requests: o.queue}, Classes: []queue.Class{{Order: order}}}
	}

	cfg.Policy = o.policy
	cfg.Seed = o.Seed
	cfg.Restarts = o.restarts.values
	cfg.Engine.Tiers = o.tiers.values
	cfg.Slow = o.slow.numbers
	cfg.Noise.SlowStarts = o.slowStarts.numbers
	cfg.Noise.SlowSpells = o.slowSpells.values
	if err := o.planning.apply(&cfg); err != nil {
		return cfg, err
	}
	return cfg, nil
}

// TakeFleet sets the number of engines of each role, their blocks and the tokens of a block in cfg, except for those whose flags were
// given. 0 leaves the default. It returns the settings of the run.
func (o *Options) TakeFleet(cfg *sim.Config, f trace.Fleet) string {
	text := o.Settings()
	for _, take := range []struct {
		flag  string
		into  *int
		value int
	}{
		{"workers", &cfg.Workers, f.Workers}, {"prefill-workers", &cfg.Prefill, f.Prefill}, {"blocks", &cfg.Engine.Blocks, f.Blocks},
		{"block-size", &cfg.Engine.BlockSize, f.BlockSize},
	} {
		given := false
		o.flags.Visit(func(f *flag.Flag) { given = given || f.Name == take.flag })
		if !given && take.value > 0 {
			*take.into = take.value
			text += fmt.Sprintf(" --%s %d", take.flag, take.value)
		}
	}
	return strings.TrimSpace(text)
}

// Change returns the arrivals that are played: the first rows, repeated, and with jitter.
func (o *Options) Change(next trace.Source) trace.Source {
	if o.Rows > 0 {
		next = trace.Take(o.Rows, next)
	}
	o.tiling.Seed = o.Seed
	next, o.tiled = trace.Tile(o.tiling, next)
	if o.Jitter > 0 {
		next = trace.Jitter(o.Jitter, o.Seed, next)
	}
	return next
}

// Done returns the share of the arrivals that was read, of which the trace itself has read a share.
func (o *Options) Done(ofTrace float64) float64 {
	if o.tiling.Times <= 1 {
		return ofTrace
	}
	return o.tiled()
}

// notSettings are the flags of the commands that do not change the figures of a run.
var notSettings = []string{"json", "html", "jobs", "run"}

// Settings returns the flags that were given, sorted by name, in the form in which they can be given again.
// Paths of traces are shortened to the names of their files.
func (o *Options) Settings() string {
	var words []string
	o.flags.Visit(func(f *flag.Flag) {
		if slices.Contains(notSettings, f.Name) {
			return
		}

		value := f.Value.String()
		if f.Name == "trace" || f.Name == "decisions" || f.Name == "decision-log" {
			value = path.Base(value)
		}
		if value == "true" {
			words = append(words, "--"+f.Name)
			return
		}
		words = append(words, "--"+f.Name+" "+value)
	})
	return strings.Join(words, " ")
}
