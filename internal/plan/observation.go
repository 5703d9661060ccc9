package plan

import (
	"cmp"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/reactive"
)

// Observation has everything that is known at a moment. Unknown values are absent.
type Observation struct {
	At       time.Time
	Settings *Settings
	// Between means that it was made because something changed, between two regular ones: no demand is due, and Demand has only the
	// requests that wait.
	Between bool
	// Demand has at most one entry for each model. A model without one has no known demand, or between two regular observations no
	// request that waits.
	Demand []Demand
	// Workers are all workers of the fleet, those included that are starting or draining.
	Workers []Worker
	// Held and Waits have at most one entry for each pool.
	Held  []Held `json:",omitempty"`
	Waits []Wait `json:",omitempty"`
}

// Held is a pool whose number the planner does not set now, or does not lower: a person or an autoscaler has set it, it cannot be set, or a
// rollout replaces the workers. The plan keeps to it, and drains no worker.
type Held struct {
	Model string
	Role  fleet.Role
	// Replicas is that number, and Why the reason, as a sentence has it after "because".
	Replicas int
	Why      string
	// Always means that the plan keeps to it as long as it is observed. Otherwise it does until its own number has been as great: from
	// then on the two agree, and the plan goes on.
	Always bool
	// MayRise means that the plan may ask for more as long as it is observed, and never for less. Always is false.
	MayRise bool `json:",omitempty"`
}

// Wait is why the last plan of a pool is not carried out yet, as a sentence has it.
type Wait struct {
	Model string
	Role  fleet.Role
	Why   string
}

// Settings are the configuration of a cluster.
type Settings struct {
	Budget Budget
	Models []Model
}

// Budget bounds all models together. 0 is no bound.
type Budget struct {
	// MinGPUs and MaxGPUs bound the GPUs of all workers.
	MinGPUs, MaxGPUs int
	// MaxWatts bounds the power of all workers.
	MaxWatts float64
}

// Model is the settings of one model.
type Model struct {
	Name string
	// Algorithm is the name of the one that decides; empty means that the configured replicas are the plan.
	Algorithm string
	Targets   capacity.Targets
	Tuning    Tuning
	// Pools are the model's workers by role: aggregated, or prefill and decode.
	Pools []Configured
	// Every is the time between two plans; 0 means 5 s.
	Every time.Duration
	// UpOnly adds workers and ends none.
	UpOnly bool `json:",omitempty"`
	// IdleAfter is the time without a request after which pools whose Min is 0 have no worker, until requests wait. 0 keeps the number
	// of the algorithm.
	IdleAfter time.Duration `json:",omitempty"`
	// Reactive configures the algorithm of that name. nil is its defaults with the bounds of the pools.
	Reactive *reactive.Config
	// Rule decides in place of a named algorithm, and Algorithm is only its name; nil is none. Logs of plans leave it out.
	Rule Rule `json:"-"`
}

// Tuning sets how the algorithm "sla" weighs misses against GPUs. Zero fields have their defaults.
type Tuning struct {
	// Mode selects the need that counts: ModeThroughput is the forecast demand, ModeLoad the engines' present work, and ModeBoth,
	// the default, the greater need of the two.
	Mode string
	// Forecast is the model of the forecast, as in forecast.Names; the default is auto.
	Forecast string
	// Headroom is the quantile of the forecast that must be served: 0.5 is the expected demand. The default is 0.6. Targets of a quantile
	// above 0.9 raise it.
	Headroom float64
	// DownAfter is the time for which a pool keeps the most workers that it needed; default 2 minutes. A shorter time saves GPUs
	// and starts workers more often.
	DownAfter time.Duration
	// Clear is in which time requests that wait are to be served; default 10 s.
	Clear time.Duration
}

// The modes of Tuning.
const (
	ModeBoth       = "both"
	ModeThroughput = "throughput"
	ModeLoad       = "load"
)

// The algorithms of Model. The configured replicas are the plan with AlgorithmConfigured, which the empty name means too.
const (
	AlgorithmConfigured = "configured"
	AlgorithmSLA        = "sla"
	// AlgorithmReactive is the algorithm of package reactive: the rule of Kubernetes' autoscaler.
	AlgorithmReactive = "reactive"
)

// The defaults of Tuning and Model.
const (
	DefaultHeadroom  = 0.6
	DefaultDownAfter = 2 * time.Minute
	DefaultClear     = 10 * time.Second
	DefaultEvery     = 5 * time.Second
)

func (t Tuning) withDefaults() Tuning {
	t.Mode = cmp.Or(t.Mode, ModeBoth)
	t.Forecast = cmp.Or(t.Forecast, "auto")
	t.Headroom = cmp.Or(t.Headroom, DefaultHeadroom)
	t.DownAfter = cmp.Or(t.DownAfter, DefaultDownAfter)
	t.Clear = cmp.Or(t.Clear, DefaultClear)
	return t
}

// Configured is the settings of a pool: one model's workers in one role.
type Configured struct {
	Role fleet.Role
	// Replicas is the number of workers that the configuration sets. Min and Max bound a plan; Max 0 means 1,024.
	Replicas, Min, Max int
	// GPUs and Watts are the cost of one worker.
	GPUs  int
	Watts float64
	// StartUp is the time from a worker's start until it is ready, as first assumed: starts that are observed replace it.
	StartUp time.Duration
	// Engine is the capacity of a worker, as first assumed, and Doubt how far it may be off: see perfmodel.NewFactor. 0 is not at
	// all, and nothing is learned.
	Engine capacity.Engine
	Doubt  float64
}

// Demand has the requests and tokens that clients asked of one model since the last observation of its demand.
type Demand struct {
	Model string
	// Over is the time that the figures cover.
	Over time.Duration
	// Requests counts arrivals.
	Requests int
	// Prompt and Answer are tokens of requests that arrived, and of requests that ended.
	Prompt, Answer Lengths
	// Generated is the number of tokens that engines made, also of answers that have not ended; 0 is unknown.
	Generated float64 `json:",omitempty"`
	// Streams counts streams that ended, and Late those among them whose first token came later than the target of the TTFT.
	Streams, Late int
	// Timed counts the streams whose mean time between tokens is known too, and Slow those among them whose mean was longer than the
	// target of the ITL.
	Timed, Slow int
	// CachedTokens is the number of prompt tokens that were found in caches.
	CachedTokens float64
	// Waiting and WaitingTokens are the requests in routers' queues now, and their prompt tokens.
	Waiting, WaitingTokens int
	// Prefill is the duration of prefills, as routers have learned it; without observations it is unknown.
	Prefill perfmodel.Line
}

// Lengths summarizes numbers of tokens. The zero Lengths has none.
type Lengths struct {
	Count        int
	Sum, Squares float64
}

// Worker is one worker as it was observed.
type Worker struct {
	Name, Model string
	Role        fleet.Role
	State       fleet.State
	// Weight is the configured share of traffic without a decision.
	Weight uint32
	// Since is when its state changed last; zero is unknown.
	Since time.Time
	// Order is its place among the workers that can only end from the highest place on, from 1; 0 for one that can end at any time.
	Order int `json:",omitempty"`
	// Place is its place in the network, as far as it is known.
	Place fleet.Place `json:",omitzero"`
	// Trouble is why it does not start, if that is known.
	Trouble string `json:",omitempty"`
	// Booked is the number of requests that routers have booked there.
	Booked int `json:",omitempty"`
	// Load is nil if the worker has not reported lately.
	Load *Load
}

// Load is the present work of a worker.
type Load struct {
	// Running and Waiting count requests in its batch and in its queue.
	Running, Waiting int
	// QueuedTokens is the prompt tokens that it has still to compute.
	QueuedTokens int
	// KVUsage is the share of its KV cache in use, 0 to 1.
	KVUsage float64
	// ITL is the mean time between tokens since the last report; 0 is unknown.
	ITL time.Duration
	// StepTokens is the number of an answer's tokens that a decode step makes; 0 is unknown.
	StepTokens float64
	// Found is the prompt tokens per second that it found in its cache: without it they would be computed again elsewhere.
	Found float64
}

// WorkersOf returns the workers of a fleet, without their load. Their weights and states leave out the last plan, so that a plan
// depends on the workers, and not on itself.
func WorkersOf(s *fleet.Snapshot) []Worker {
	out := make([]Worker, 0, len(s.Workers))
	for _, w := range s.Workers {
		booked := 0
		for number := range w.Ranks {
			if rank, ok := s.Rank(w.Name, number); ok {
				booked += int(max(0, rank.Load.Booked().Requests))
			}
		}
		out = append(out, Worker{
			Name: w.Name, Model: w.Model, Role: w.Role, State: w.StateWithoutPlan(), Weight: w.ConfiguredWeight(), Booked: booked,
			Place: w.Place(),
		})
	}
	return out
}

// Algorithms returns the names of all algorithms.
func Algorithms() []string {
	return []string{AlgorithmConfigured, AlgorithmSLA, AlgorithmReactive}
}
