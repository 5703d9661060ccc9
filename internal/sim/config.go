package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/sim/engine"
)

// Config is a fleet and its router. The zero value is four engines of vLLM's defaults under
// the default policy; see each field.
type Config struct {
	// Workers is how many engines there are; default 4.
	Workers int
	// Prefill is how many more engines there are that only prefill: Workers then only decode. Default 0:
	// all do both.
	Prefill int
	// TransferBase and TransferToken are how long a computed prompt is on its way from a prefill worker
	// to the one that decodes: default 1 ms, and 3 µs a token, which is a 128 KiB a token at 43 GB/s.
	TransferBase, TransferToken time.Duration
	// Engine is what each is started with. Its default Timing is perfmodel.Polynomial, its
	// HashSeed is given by each worker's number.
	Engine engine.Config
	// Slow makes single workers slower: the factor by which all passes of a worker take longer, by
	// its number. Raising it shows whether a router notices.
	Slow map[int]float64
	// Restarts are engines that die and start again, empty.
	Restarts []Restart

	// Policy is the router's, as in route.ModelConfig; empty means kv.
	Policy string
	// DecodePolicy is that of workers that only decode; empty means Policy.
	DecodePolicy string
	// Temperature spreads the kv policy's picks; default 0.
	Temperature float64
	// Busy says when an engine takes no more requests; the zero Busy is never.
	Busy route.Busy
	// Queue is how requests wait in a router while all engines are busy, MaxWait long at most (default
	// 30 s); nil: they are refused.
	Queue   *queue.Config
	MaxWait time.Duration
	// Cost judges candidates; nil means cost.Default().
	Cost cost.Function
	// Replicas is how many routers there are, which take requests in turn; default 1. Each sees the
	// engines' events and reports, and what the others have booked.
	Replicas int
	// BookLag is how long replicas' bookings are under way; default 10 ms, negative: they do not hear
	// of each other.
	BookLag time.Duration
	// BookLoss is the share of messages about bookings that is lost, 0 to 1; default 0.
	BookLoss float64
	// EventLag is how long an engine's cache events are under way; default 0. Raising it makes
	// routers know less.
	EventLag time.Duration
	// SignalLag is how long it takes until a router hears that a request has had its first or last
	// token; default 0.
	SignalLag time.Duration
	// FirstTokens makes routers hear of first tokens, from answers, as Dynamo's does. The default is
	// that of stator extproc, which reads no answers: a prompt is known to be computed when events
	// say that its last block is stored, looked at every 20 ms.
	FirstTokens bool
	// ReportEvery is how often engines' running and waiting counts reach the routers; default 1 s,
	// negative never.
	ReportEvery time.Duration
	// PredictFor is how long a pick is believed to have filled its rank's cache until events say so;
	// default 5 s, negative not at all.
	PredictFor time.Duration
	// NoEvents keeps the engines' events from the routers, which then have predictions of
	// PredictFor alone; default 120 s here.
	NoEvents bool

	// Concurrency makes the run a closed loop of so many requests at a time, whatever the arrivals'
	// times; 0 is an open loop.
	Concurrency int
	// Speed divides the times between arrivals; default 1.
	ArrivalSpeedup float64
	// Seed makes ids, random choices and the order of ties.
	Seed uint64
	// Progress is called now and then with how many requests have ended; nil is not.
	Progress func(done int)
	// Ended is told of each request as it ends; nil is not.
	Ended func(Outcome)
	// Stopped is asked now and then; true ends the run with what has come of it so far. Nil is never.
	Stopped func() bool
}

// Restart is an engine that dies At a time, counted from the first arrival, with all that it was
// doing, and takes requests again, empty, After another.
type Restart struct {
	Worker    int
	At, After time.Duration
}

func (c Config) withDefaults() Config {
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.TransferBase == 0 {
		c.TransferBase = time.Millisecond
	}
	if c.TransferToken == 0 {
		c.TransferToken = 3 * time.Microsecond
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.BookLag == 0 {
		c.BookLag = 10 * time.Millisecond
	}
	if c.ReportEvery == 0 {
		c.ReportEvery = time.Second
	}
	if c.PredictFor == 0 {
		c.PredictFor = 5 * time.Second
		if c.NoEvents {
			c.PredictFor = 120 * time.Second
		}
	}
	if c.ArrivalSpeedup == 0 {
		c.ArrivalSpeedup = 1
	}
	if c.Engine.Timing == nil {
		c.Engine.Timing = perfmodel.Polynomial{}
	}
	if c.Cost == nil {
		c.Cost = cost.Default()
	}
	return c
}

// engines is how many there are in all: those that decode, then those that only prefill.
func (c *Config) engines() int { return c.Workers + c.Prefill }

// role is what an engine does.
func (c *Config) role(number int) fleet.Role {
	switch {
	case c.Prefill == 0:
		return fleet.Aggregated
	case number < c.Workers:
		return fleet.Decode
	}
	return fleet.Prefill
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Workers < 1 || c.Workers > 4096, "%d workers: there must be 1 to 4096", c.Workers)
	bad(c.Prefill < 0 || c.Prefill > 4096, "%d prefill workers: there may be 0 to 4096", c.Prefill)
	bad(c.Prefill == 0 && c.DecodePolicy != "", "a policy for workers that only decode: there are none")
	bad(c.Queue != nil && c.Busy == (route.Busy{}), "a queue in which nobody waits: say when an engine is busy")
	bad(c.MaxWait < 0, "the longest wait is negative")
	bad(c.TransferBase < 0 || c.TransferToken < 0, "a time of transfer is negative")
	bad(c.Replicas < 1 || c.Replicas > 64, "%d replicas: there must be 1 to 64", c.Replicas)
	bad(!(c.BookLoss >= 0 && c.BookLoss <= 1), "the share of lost bookings is %v: it must be 0 to 1", c.BookLoss)
	bad(c.Concurrency < 0, "concurrency %d is negative", c.Concurrency)
	bad(!(c.ArrivalSpeedup > 0 && c.ArrivalSpeedup < 1e9), "arrival speedup %v: it must be positive", c.ArrivalSpeedup)
	bad(c.EventLag < 0 || c.SignalLag < 0, "a lag is negative")
	for w, factor := range c.Slow {
		bad(w < 0 || w >= c.engines(), "slow worker %d: there are %d", w, c.engines())
		bad(!(factor > 0 && factor < 1e6), "slow worker %d: factor %v must be positive", w, factor)
	}
	for _, r := range c.Restarts {
		bad(r.Worker < 0 || r.Worker >= c.engines(), "restart of worker %d: there are %d", r.Worker, c.engines())
		bad(r.At < 0 || r.After < 0, "restart of worker %d: a time is negative", r.Worker)
	}
	return errors.Join(append(errs, c.Engine.Validate(), c.Cost.Validate())...)
}
