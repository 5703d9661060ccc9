package plan

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/forecast"
	"github.com/stator-project/stator/internal/plan/reactive"
)

// State is the memory that plans have of earlier observations: forecasts, lengths of requests, how fast engines are. It is a
// value: Next does not change its argument. The zero State remembers nothing. Its size is bounded by the number of models and
// workers.
type State struct {
	models []*memory // sorted by name; a memory does not change once it is in a State
}

// memory is the memory of one model.
type memory struct {
	name  string
	model string              // of the forecast
	rate  forecast.Forecaster // requests per second; nil until there was demand
	shape shape
	// arrivals has the bursts of recent requests.
	arrivals arrivals
	// demandAt is when demand was observed last; zero for never.
	demandAt time.Time
	pools    []poolMemory // by role
	idle     idleness
	// algorithm is the one that planned last. rule is the state of the model's Rule.
	algorithm string
	rule      any
}

// poolMemory is the memory of one pool.
type poolMemory struct {
	role fleet.Role
	// replicas is the number of workers in the last plan; -1 before the first one.
	replicas int
	// needs are the needs of the last DownAfter, the newest last, of which each is less than the one before.
	needs []neededAt
	// prefill and decode correct the engine's timing by observed times.
	prefill, decode perfmodel.Factor
	// prefills is the number of prefills that the routers had observed at the last correction.
	prefills int
	// startUp is the time that recent starts took; 0 is unknown. seen has the workers of the last plan, sorted by name.
	startUp time.Duration
	seen    []seenWorker
	// drained are the workers that the last plan drained, sorted by name. Their agents may report them as ready for a while.
	drained []string
	// late are the workers of the last plan that start and do not count as coming, sorted by name.
	late []string
	// held is the number of a person or an autoscaler that the last plans have seen.
	held heldSince
	// weights are the weights in the last plan.
	weights []Planned
	// misses is the share of requests for which there were too few workers. bursts explains the misses of others.
	misses misses
	bursts bursts
	// ready is the number of workers that were ready in the last plan, since readyAt.
	ready   int
	readyAt time.Time
	// shortAt is when there were fewer workers last than the rate needed; zero for never.
	shortAt time.Time
	// demandSince is the time of the first demand; zero for none.
	demandSince time.Time
	// asked is the last decision of an algorithm that decides at intervals.
	asked asked
	// reactive is the memory of the algorithm of that name.
	reactive reactive.State
}

// asked is a decision that holds until the next one. The zero value is none.
type asked struct {
	at       time.Time
	replicas int
	reason   string
}

// heldSince is a number that a person or an autoscaler has set. The zero value is none.
type heldSince struct {
	Held
	below bool // the plan's own number was less at first
	over  bool // it has been as great since, so the plan goes on by itself
}

// neededAt is the number of workers that were needed at a moment.
type neededAt struct {
	at time.Time
	n  int
}

// seenWorker is the state of a worker, and since when it has it.
type seenWorker struct {
	name  string
	state fleet.State
	since time.Time
	// gap is the mean time between tokens of the requests that end now; 0 is unknown.
	gap time.Duration
}

// memoryOf returns a copy of the memory of a model, which its caller may change. Slices in it are replaced, and not changed.
func (s State) memoryOf(m *Model) *memory {
	out := &memory{name: m.Name}
	if i, ok := s.find(m.Name); ok {
		*out = *s.models[i]
		out.pools = slices.Clone(out.pools)
	}

	tuning := m.Tuning.withDefaults()
	if out.model != tuning.Forecast {
		out.model, out.rate = tuning.Forecast, newForecaster(m, tuning.Forecast)
	}
	for _, c := range m.Pools {
		if !slices.ContainsFunc(out.pools, func(p poolMemory) bool { return p.role == c.Role }) {
			out.pools = append(out.pools, poolMemory{role: c.Role, replicas: -1, prefill: perfmodel.NewFactor(c.Doubt),
				decode: perfmodel.NewFactor(c.Doubt)})
		}
	}
	if out.algorithm != m.Algorithm {
		out.algorithm, out.rule = m.Algorithm, nil
		for i := range out.pools {
			out.pools[i].asked, out.pools[i].reactive = asked{}, reactive.State{}
		}
	}
	return out
}

// newForecaster returns the forecaster of a model's rate. One that is unknown was refused with the configuration.
func newForecaster(m *Model, name string) forecast.Forecaster {
	const day = 24 * time.Hour
	f, err := forecast.New(name, forecast.Options{Season: int(day / cmp.Or(m.Every, DefaultEvery))})
	if err != nil {
		f, _ = forecast.New("constant", forecast.Options{})
	}
	return f
}

// find returns the place of a model.
func (s State) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.models, name, func(m *memory, name string) int { return strings.Compare(m.name, name) })
}

// pool returns the memory of a role.
func (m *memory) pool(r fleet.Role) *poolMemory {
	i := slices.IndexFunc(m.pools, func(p poolMemory) bool { return p.role == r })
	return &m.pools[i]
}

// Warm returns the state after rates of a model, in requests per second, one for each step of Model.Every, the newest last. A
// planner that begins with the rates of the last day knows its season.
func (s State) Warm(m *Model, rates []float64) State {
	warm := s.memoryOf(m)
	warm.rate = forecast.Warm(warm.rate, rates)
	return s.with(warm)
}

// with returns a state with another memory of one model.
func (s State) with(m *memory) State {
	i, found := s.find(m.name)
	models := slices.Clone(s.models)
	if found {
		models[i] = m
	} else {
		models = slices.Insert(models, i, m)
	}
	return State{models: models}
}

// shape is the size of recent requests: sums in which older requests count less.
type shape struct {
	prompts, answers moments
	cached           float64 // tokens
	// generated is the tokens that engines made while the answers ended, also of answers that have not ended: long answers count from
	// their first token on, and not only when they have ended. 0 is unknown.
	generated float64
}

// moments are weighted sums of lengths.
type moments struct{ weight, sum, squares float64 }

// The weight of a request falls to 0.37 in shapeFor, or while shapeOf others come, if that takes longer: from a few requests, one long one
// more or less would change the mean.
const (
	shapeFor = 2 * time.Minute
	shapeOf  = 200
)

// keeps returns the weight that earlier requests keep after n more in some time.
func keeps(n int, over time.Duration) float64 {
	return math.Exp(-min(float64(over)/float64(shapeFor), float64(n)/shapeOf))
}

// after returns the shape after some demand.
func (s shape) after(d *Demand) shape {
	if d.Prompt.Count > 0 {
		keep := keeps(d.Prompt.Count, d.Over)
		s.prompts = s.prompts.after(d.Prompt, keep)
		s.cached = s.cached*keep + max(0, d.CachedTokens)
	}
	keep := keeps(d.Answer.Count, d.Over)
	s.generated = s.generated*keep + max(0, d.Generated)
	if d.Answer.Count > 0 {
		s.answers = s.answers.after(d.Answer, keep)
	}
	return s
}

// meanAnswer returns the mean length of an answer: the tokens that were made for each answer that ended.
func (s *shape) meanAnswer() float64 {
	if s.generated > 0 {
		return s.generated / s.answers.weight
	}
	return s.answers.mean()
}

// after returns the moments after further lengths.
func (m moments) after(l Lengths, keep float64) moments {
	return moments{m.weight*keep + float64(l.Count), m.sum*keep + l.Sum, m.squares*keep + l.Squares}
}

// mean and spread return the mean of the lengths, and their standard deviation divided by it.
func (m moments) mean() float64 { return m.sum / m.weight }

func (m moments) spread() float64 {
	mean := m.mean()
	return math.Sqrt(max(0, m.squares/m.weight-mean*mean)) / max(1, mean)
}

// isKnown reports whether both lengths were observed.
func (s *shape) isKnown() bool { return s.prompts.weight > 0 && s.answers.weight > 0 }

// longest bounds the mean lengths of prompts and answers in tokens, and widest their spread, whatever was reported: the time of a plan
// grows with the passes of a prompt.
const (
	longest = 1 << 18
	widest  = 10
)

// The lengths that are assumed while none were observed: the lengths of ShareGPT's conversations, which benchmarks of engines
// use.
const (
	assumedPrompt = 220
	assumedAnswer = 200
)

// capacity returns the shape as package capacity has it.
func (s *shape) capacity() capacity.Shape {
	out := capacity.Shape{Prompt: assumedPrompt, Answer: assumedAnswer, PromptSpread: 1, AnswerSpread: 1}
	if s.prompts.weight > 0 {
		out.Prompt, out.PromptSpread = min(max(1, s.prompts.mean()), longest), min(s.prompts.spread(), widest)
		out.Cached = min(s.cached/max(1, s.prompts.sum), 1)
	}
	if s.answers.weight > 0 {
		out.Answer, out.AnswerSpread = min(max(1, s.meanAnswer()), longest), min(s.answers.spread(), widest)
	}
	return out
}
