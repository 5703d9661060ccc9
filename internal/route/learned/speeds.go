package learned

import (
	"cmp"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/pick"
)

// WorkerClass names the workers that share one learned speed.
type WorkerClass struct{ Model, Engine string }

// ClassOf returns the class of a worker.
func ClassOf(w *fleet.Worker) WorkerClass { return WorkerClass{w.Model, w.Engine} }

// Speeds learns the duration of passes, per class of workers. It is safe for concurrent use.
//
// Two kinds of observations show that, and each has the load under which it was made, so that a busy worker does not look like a
// slow one. For prompts that follow one another on a rank, their tokens are known, the time that all of them take, and the requests
// that the rank decodes beside them. Between two reports of an engine, the mean gap between tokens is known, the tokens in its
// cache, and which prompts were computed. A transfer lasts from the answer of the prefill worker to the event by which the decode
// worker reports the prompt's last block.
type Speeds struct {
	start   map[string]perfmodel.Speed             // first estimates by model; read only
	mu      sync.Mutex                             // held to add a class
	byClass atomic.Pointer[map[WorkerClass]*Class] // nil at first; the map never changes once stored
}

// NewSpeeds returns speeds that begin with these estimates of workers' speeds by model, and with perfmodel.DefaultSpeed() for others.
func NewSpeeds(start map[string]perfmodel.Speed) *Speeds { return &Speeds{start: start} }

// Class has the learned values of one class: the passes of its engines, the transfers over tokens that are computed elsewhere, the
// lengths of its answers, how often computed tokens are used again, and how many passes a prompt adds.
type Class struct {
	Pass      *perfmodel.Learned
	Answers   answerLengths
	Reuse     reuse
	Passes    passes
	transfers transferTimes
	outside   [fleet.Tiers]loadTime // of loads from caches outside engines
}

// Of returns the learned values of a worker's class, and begins a new class with its first estimate.
func (s *Speeds) Of(w *fleet.Worker) *Class {
	class := ClassOf(w)
	if known := s.byClass.Load(); known != nil {
		if l := (*known)[class]; l != nil {
			return l
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[WorkerClass]*Class{}
	if known := s.byClass.Load(); known != nil {
		maps.Copy(next, *known)
	}
	if next[class] == nil { // else another decision has added it since
		start, ok := s.start[w.Model]
		if !ok {
			start = perfmodel.DefaultSpeed()
		}
		learns := &Class{Pass: perfmodel.NewLearned(perfmodel.Pass{Prefill: start.Prefill, Decode: start.Decode})}
		learns.transfers.begin(start.Transfer)
		next[class] = learns
		s.byClass.Store(&next)
	}
	return next[class]
}

// ObservePrefill learns from the prefills of a rank: from all prefills that follow one another, when the last of them has ended.
func (s *Speeds) ObservePrefill(k *pick.Booking, p fleet.Ended) {
	load := k.Rank.Load
	period, ok := load.EndPeriod(int64(k.Prompt-k.Cached), &p)
	// The engine may have computed prompts of clients that do not come through routers in the same time.
	if !ok || load.View(p.At, 0).Untracked > 0 {
		return
	}

	class, w := s.Of(k.Rank.Worker), workOf(k.Rank, &period)
	if k.Outside > 0 { // its time beyond the pass is the load's
		if period.Prompts == 1 {
			class.outside[k.OutsideTier].observe(int(k.Outside), period.Took-class.Pass.Pass().Time(w), p.At)
		}
		return
	}
	pace := load.ObservePace(float64(period.Passes), period.Took, class.Pass.Pass().Time(w), p.At)
	class.Pass.ObserveAt(pace, w, period.Took)
}

// residual is the mean number of passes that a prompt waits for until a pass begins that computes it.
const residual = 0.5

// workOf returns the work of a rank in a period in which it computed prompts. The requests before these decode in all of its passes, and in
// the one that runs when the first prompt comes. Its own requests decode in the passes after the one that ends their prompt.
func workOf(rank fleet.Rank, period *fleet.PrefillPeriod) perfmodel.Work {
	w := perfmodel.Work{Prefills: float64(period.Passes), Tokens: float64(period.Tokens)}
	booked := rank.Load.Booked()
	if booked.Requests <= 0 || rank.Worker.Role == fleet.Prefill {
		return w
	}
	context := float64(booked.DecodeBlocks*int64(blockTokens(rank.Worker))) / float64(booked.Requests)

	own := float64(min(period.Prompts, booked.Requests))
	after := max(0, w.Prefills-max(1, w.Prefills/own)) // passes after the first end of a prompt
	w.Steps = after
	if before := float64(booked.Requests) - own; before > 0 {
		w.Steps = w.Prefills + residual
		w.Context = w.Steps * before * context
	}
	w.Context += after / 2 * own * context
	return w
}

// blockTokens returns the tokens of a block of bookings at a worker. A worker that does not report them has the default of its model.
func blockTokens(w *fleet.Worker) int { return cmp.Or(w.TokensPerBlock(), fleet.DefaultBlockSize) }

// ObserveInterval learns from the work of an engine between two reports.
func (s *Speeds) ObserveInterval(rank fleet.Rank, i *fleet.Interval, now time.Time) {
	took, passes, ok := i.Decoded()
	if !ok {
		return
	}

	class := s.Of(rank.Worker)
	each := i.Blocks*float64(blockTokens(rank.Worker)) + class.Answers.meanOfAll()/2
	w := perfmodel.Work{Steps: 1, Context: i.Running * each, Prefills: min(1, i.Passes/passes), Tokens: i.Tokens / passes}
	expected := float64(class.Pass.Pass().Time(w)) * passes
	pace := rank.Load.ObservePace(1, took, time.Duration(expected), now)
	class.Pass.ObserveAt(pace, w, i.Gap())
}

// ObserveAnswer learns the length of an answer from the end of a request that was served.
func (s *Speeds) ObserveAnswer(k *pick.Booking, session uint64, gap time.Duration, now time.Time) {
	class := s.Of(k.Rank.Worker)
	if gap <= 0 {
		booked := k.Rank.Load.Booked()
		gap = class.Pass.Pass().Decode.Step(int(booked.DecodeBlocks) * blockTokens(k.Rank.Worker))
	}
	class.Answers.observe(answerTokens(now.Sub(k.At.Add(k.FirstToken.Duration())), gap), session)
}

// Transfers returns the learned times of transfers as they are at a moment, per class of workers.
func (s *Speeds) Transfers(now time.Time) map[WorkerClass][fleet.Levels]perfmodel.Line {
	out := map[WorkerClass][fleet.Levels]perfmodel.Line{}
	if known := s.byClass.Load(); known != nil {
		for class, l := range *known {
			out[class] = l.Transfers(now)
		}
	}
	return out
}

// All returns the learned speeds, per class of workers. The time of transfers is that between workers without a common place.
func (s *Speeds) All() map[WorkerClass]perfmodel.Speed {
	out := map[WorkerClass]perfmodel.Speed{}
	if known := s.byClass.Load(); known != nil {
		for class, l := range *known {
			pass := l.Pass.Pass()
			out[class] = perfmodel.Speed{Prefill: pass.Prefill, Decode: pass.Decode, Transfer: l.transfers.lines.Load().by[fleet.Apart]}
		}
	}
	return out
}
