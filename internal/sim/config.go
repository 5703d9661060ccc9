package sim

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/internal/sim/engine"
)

// Config describes a fleet and its router. The zero value is four engines with vLLM's defaults and the
// default policy. Zero fields have their defaults. A run only reads it.
type Config struct {
	// Workers is the number of engines; default 4.
	Workers int
	// Prefill is the number of further engines that only prefill. Workers then only decode. Default 0: all
	// engines do both.
	Prefill int
	// PrefillAt selects the workers that compute prompts with separate roles: auto, remote or local, as in route.ModelConfig.
	// Empty means auto.
	PrefillAt string
	// Pull lets engines that do both fetch the beginning of a prompt from each other's caches, as vLLMs with a p2p tier do.
	Pull bool
	// Transfer sets the speed at which a computed prompt reaches the worker that decodes, or the one that pulls it.
	Transfer Transfer
	// Engine configures each engine. Its default Timing is perfmodel.Polynomial. Its HashSeed is ignored:
	// each engine uses its number, so that hashes differ between engines as they may in a real fleet.
	Engine engine.Config
	// PrefillEngine configures the engines that only prefill; nil means as Engine.
	PrefillEngine *engine.Config
	// GPUs is the number of GPUs of an engine, and PrefillGPUs of one that only prefills; default 1. They multiply the
	// bandwidth of transfers, and do not change Timing.
	GPUs, PrefillGPUs int
	// SharedCache gives all engines one prefix cache, as large as theirs together, and routers the knowledge that
	// each engine has all of it: a bound of the reuse that routing can reach. Running requests still fill each engine,
	// so it bounds times only if memory is no limit. Default false.
	SharedCache bool
	// Noise is the noise of all engines. Its Seed is ignored: each engine's noise has its number and Seed.
	Noise Noise
	// Slow maps a worker's number to the factor by which all its passes take longer. It shows whether a
	// router adapts to slow workers.
	Slow map[int]float64
	// Restarts lists engines that die and start again with empty caches. One has no effect on an engine that is starting, or
	// has left the fleet, at its time.
	Restarts []Restart
	// Planning changes the number of engines during the run. Workers and Prefill are then those at its start, which are ready
	// at once. Nil means that the numbers stay.
	Planning *Planning

	// Policy is the routing policy, as in route.ModelConfig; empty means kv.
	Policy string
	// DecodePolicy is the policy for workers that only decode; empty means Policy.
	DecodePolicy string
	// Chooser returns the policy of a replica, which then chooses for workers of every role instead of Policy and
	// DecodePolicy. It lets other routers be simulated. Prompts are then computed by prefill workers if there are any,
	// because costs are not compared. Nil means the policies by name.
	Chooser func(replica int) pick.Policy
	// Temperature is the randomness of the kv policy's picks; default 0.
	Temperature float64
	// Busy limits an engine's load: above it the engine gets no requests. The zero Busy has no limits.
	Busy serving.Busy
	// Queue configures the router's queue for requests that arrive while all engines are busy; nil means
	// that they are refused. MaxWait bounds the wait; default 30 s.
	Queue   *queue.Config
	MaxWait time.Duration
	// Programs holds back steps of agents' programs for whose contexts the caches have no room: see package route/programs.
	Programs bool
	// Cost is the cost function; nil means cost.Default().
	Cost cost.Function
	// Replicas is the number of routers, which decide in turn; default 1. Each receives the engines' events
	// and reports, and the bookings of the others.
	Replicas int
	// BookLag is the delay of bookings and prompts between replicas; default 10 ms. A negative BookLag means that
	// replicas do not share them.
	BookLag time.Duration
	// EventLag is the delay of KV events; default 0. With a higher delay, routers predict more and see less.
	EventLag time.Duration
	// SignalLag is the delay until a router sees the first and the last token of a request; default 0.
	SignalLag time.Duration
	// FirstTokens lets routers see first tokens in answers, as Dynamo's router does. By default they work
	// as stator extproc does, which reads no answers: every 20 ms they check whether KV events have stored
	// the last block of a prompt.
	FirstTokens bool
	// ReportEvery is the time between reports of the engines' running and waiting requests; default 1 s. A
	// negative ReportEvery means that there are no reports.
	ReportEvery time.Duration
	// PredictFor is the time for which the blocks of a pick count as cached on its rank before events
	// confirm them; default 5 s, and 120 s with NoEvents. A negative PredictFor means that there are no
	// predictions.
	PredictFor time.Duration
	// NoEvents means that routers receive no KV events and have predictions alone.
	NoEvents bool

	// Concurrency is the number of requests that run at a time in a closed loop, which ignores the times of
	// arrivals. 0 means an open loop.
	Concurrency int
	// ProgramRate plays the sessions of a trace as programs of agents, so many of which begin in a minute, by a Poisson process: a request
	// arrives when the answers that it waits for have ended, and its pause is over. Times of arrivals are ignored. 0 plays requests at
	// their times. MaxPause bounds the pauses; default one minute.
	ProgramRate float64
	MaxPause    time.Duration
	// ArrivalSpeedup divides the times between arrivals; default 1.
	ArrivalSpeedup float64
	// Warmup is the time after the first arrival for which requests count as warm-up: they are played and counted,
	// but neither their times nor their tokens are in the result. Default 0.
	Warmup time.Duration
	// SLA bounds the latencies of requests. The zero SLA has no bounds.
	SLA SLA
	// Seed determines ids, random choices and the order of ties.
	Seed uint64
	// Ended is called with the outcome of each request when it ends. It may be nil.
	Ended func(Outcome)
	// Stopped is called every 1,024 events. When it returns true, the run ends with the result so far. It may
	// be nil.
	Stopped func() bool
}

// The limits of Validate are far above useful values. They keep a wrong digit from using all memory.

// Restart makes an engine die with all its requests At a time, counted from the first arrival. After another
// time it accepts requests again, with an empty cache.
type Restart struct {
	Worker    int
	At, After time.Duration
}

func (c Config) withDefaults() Config {
	c.Workers = cmp.Or(c.Workers, 4)
	c.GPUs = cmp.Or(c.GPUs, 1)
	c.PrefillGPUs = cmp.Or(c.PrefillGPUs, 1)
	c.Transfer = c.Transfer.withDefaults()
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.BookLag = cmp.Or(c.BookLag, 10*time.Millisecond)
	c.ReportEvery = cmp.Or(c.ReportEvery, time.Second)
	c.ArrivalSpeedup = cmp.Or(c.ArrivalSpeedup, 1)
	c.MaxWait = cmp.Or(c.MaxWait, 30*time.Second)
	c.MaxPause = cmp.Or(c.MaxPause, time.Minute)

	predictFor := 5 * time.Second
	if c.NoEvents {
		predictFor = 120 * time.Second
	}
	if c.SharedCache {
		predictFor = -1 // every engine has the computed blocks, and no others
	}
	c.PredictFor = cmp.Or(c.PredictFor, predictFor)

	if c.Engine.Timing == nil {
		c.Engine.Timing = perfmodel.Polynomial{}
	}
	if c.PrefillEngine != nil && c.PrefillEngine.Timing == nil {
		prefill := *c.PrefillEngine
		prefill.Timing = c.Engine.Timing
		c.PrefillEngine = &prefill
	}
	if c.Cost == nil {
		c.Cost = cost.Default()
	}
	if c.Planning != nil {
		planning := c.Planning.withDefaults()
		c.Planning = &planning
	}
	return c
}

// engines returns the number of engines at the start. Engines that only prefill have the highest numbers.
func (c *Config) engines() int { return c.Workers + c.Prefill }

// role returns the role of an engine that runs from the start.
func (c *Config) role(number int) fleet.Role {
	switch {
	case c.Prefill == 0:
		return fleet.Aggregated
	case number < c.Workers:
		return fleet.Decode
	}
	return fleet.Prefill
}

// node returns the node of an engine that runs from the start. The engines of each role are spread evenly over the nodes.
func (c *Config) node(number int) int {
	if number < c.Workers {
		return number * c.Transfer.Nodes / c.Workers
	}
	return (number - c.Workers) * c.Transfer.Nodes / c.Prefill
}

// sharesBookings reports whether replicas send each other their bookings and prompts.
func (c *Config) sharesBookings() bool { return c.Replicas > 1 && c.BookLag >= 0 }

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	refuse(c.Workers < 1 || c.Workers > 4096, "%d workers: there must be 1 to 4096", c.Workers)
	refuse(c.Prefill < 0 || c.Prefill > 4096, "%d prefill workers: there may be 0 to 4096", c.Prefill)
	refuse(c.Prefill == 0 && c.DecodePolicy != "", "a policy for workers that only decode needs prefill workers")
	refuse(c.Queue != nil && c.Busy == (serving.Busy{}) && !c.Programs,
		"a queue without a limit of busy engines never has requests: set a limit")
	refuse(c.Programs && c.Queue == nil, "programs are held back in a queue: set one")
	refuse(c.MaxWait < 0, "the longest wait is negative")
	refuse(c.GPUs < 1 || c.PrefillGPUs < 1 || c.GPUs > 4096 || c.PrefillGPUs > 4096, "%d and %d GPUs of an engine: there must be 1 to 4096",
		c.GPUs, c.PrefillGPUs)
	refuse(c.PrefillEngine != nil && c.Prefill == 0, "a configuration of engines that only prefill needs prefill workers")
	refuse(c.PrefillEngine != nil && c.SharedCache, "a shared cache needs equal engines: leave out that of engines that only prefill")
	refuse(c.Replicas < 1 || c.Replicas > 64, "%d replicas: there must be 1 to 64", c.Replicas)
	refuse(c.Concurrency < 0, "concurrency %d is negative", c.Concurrency)
	refuse(!(c.ArrivalSpeedup > 0 && c.ArrivalSpeedup < 1e9), "arrival speedup %v: it must be positive", c.ArrivalSpeedup)
	refuse(!(c.ProgramRate >= 0 && c.ProgramRate < 1e9), "program rate %v: it must be at least 0", c.ProgramRate)
	refuse(c.ProgramRate > 0 && c.Concurrency > 0, "programs begin at a rate, and requests do not in a closed loop: leave one of them out")
	refuse(c.MaxPause < 0, "the longest pause is negative")
	refuse(c.Warmup < 0, "the warm-up is negative")
	refuse(c.SLA.TTFT < 0 || c.SLA.ITL < 0 || c.SLA.E2E < 0, "a latency of the SLA is negative")
	refuse(c.EventLag < 0 || c.SignalLag < 0, "a lag is negative")

	for w, factor := range c.Slow {
		refuse(w < 0 || w >= c.engines(), "slow worker %d: there are %d", w, c.engines())
		refuse(!(factor > 0 && factor < 1e6), "slow worker %d: factor %v must be positive", w, factor)
	}
	for _, r := range c.Restarts {
		refuse(r.Worker < 0 || r.Worker >= c.engines(), "restart of worker %d: there are %d", r.Worker, c.engines())
		refuse(r.At < 0 || r.After < 0, "restart of worker %d: a time is negative", r.Worker)
	}
	if c.PrefillEngine != nil {
		refuse(c.PrefillEngine.BlockSize != c.Engine.BlockSize, "blocks have %d tokens on engines that only prefill, and %d on others: "+
			"they must be equal", c.PrefillEngine.BlockSize, c.Engine.BlockSize)
		errs = append(errs, c.PrefillEngine.Validate())
	}
	if c.Planning != nil {
		errs = append(errs, c.Planning.validate(&c))
	}
	errs = append(errs, c.Transfer.validate(), c.Engine.Validate(), c.Cost.Validate(), c.Noise.validate(c.engines()))
	return errors.Join(errs...)
}
