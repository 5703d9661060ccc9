package route

import (
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

func classOf(w *fleet.Worker) WorkerClass { return WorkerClass{w.Model, w.Engine} }

// speeds learns the duration of passes, per class of workers. It is safe for concurrent use.
//
// Two kinds of observations show that, and each has the load under which it was made, so that a busy worker does not look like a
// slow one. For prompts that follow one another on a rank, their tokens are known, the time that all of them take, and the requests
// that the rank decodes beside them. Between two reports of an engine, the mean gap between tokens is known, the tokens in its
// cache, and which prompts were computed. A transfer lasts from the answer of the prefill worker to the event by which the decode
// worker reports the prompt's last block.
type speeds struct {
	start   map[string]perfmodel.Speed               // first estimates by model; read only
	mu      sync.Mutex                               // held to add a class
	byClass atomic.Pointer[map[WorkerClass]*learned] // nil at first; the map never changes once stored
}

// learned has the learned values of one class: the passes of its engines, the transfers over tokens that are computed elsewhere, the
// lengths of its answers, and how often computed tokens are used again.
type learned struct {
	pass, transfer *perfmodel.Learned
	answers        answerLengths
	reuse          reuse
}

// of returns the learned values of a worker's class, and begins a new class with its first estimate.
func (s *speeds) of(w *fleet.Worker) *learned {
	class := classOf(w)
	if known := s.byClass.Load(); known != nil {
		if l := (*known)[class]; l != nil {
			return l
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[WorkerClass]*learned{}
	if known := s.byClass.Load(); known != nil {
		maps.Copy(next, *known)
	}
	if next[class] == nil { // else another decision has added it since
		start, ok := s.start[w.Model]
		if !ok {
			start = perfmodel.DefaultSpeed()
		}
		next[class] = &learned{
			pass:     perfmodel.NewLearned(perfmodel.Pass{Prefill: start.Prefill, Decode: start.Decode}),
			transfer: perfmodel.NewLearned(perfmodel.Pass{Prefill: start.Transfer}),
		}
		s.byClass.Store(&next)
	}
	return next[class]
}

// observePrefill learns from the prefills of a rank: from all prefills that follow one another, when the last of them has ended.
func (s *speeds) observePrefill(k *pick.Booking, p fleet.Ended) {
	load := k.Rank.Load
	period, ok := load.EndPeriod(int64(k.Prompt-k.Cached), &p)
	// While requests wait in the engine's queue, the time until a prompt is computed is mostly spent in the queue.
	if !ok || load.View(p.At, fleet.MaxReportAge).Queued {
		return
	}

	class, w := s.of(k.Rank.Worker), workOf(k.Rank, &period)
	load.ObservePace(period.Took, class.pass.Pass().Time(w), p.At)
	class.pass.Observe(w, period.Took)
}

// residual is the mean number of passes that a prompt waits for until a pass begins that computes it.
const residual = 0.5

// workOf returns the work of a rank in a period in which it computed prompts.
func workOf(rank fleet.Rank, period *fleet.PrefillPeriod) perfmodel.Work {
	w := perfmodel.Work{Prefills: float64(period.Passes), Tokens: float64(period.Tokens)}
	booked := rank.Load.Booked()
	if decoding := booked.Requests - period.Prompts; decoding > 0 {
		w.Steps = w.Prefills + residual
		tokens := float64(booked.DecodeBlocks) * float64(rank.Worker.BlockSize)
		w.Context = w.Steps * tokens * float64(decoding) / float64(booked.Requests)
	}
	return w
}

// observeInterval learns from the work of an engine between two reports.
func (s *speeds) observeInterval(rank fleet.Rank, i *fleet.Interval, now time.Time) {
	took, passes, ok := i.Decoded()
	if !ok {
		return
	}

	class := s.of(rank.Worker)
	each := i.Blocks*float64(rank.Worker.BlockSize) + class.answers.all()/2
	w := perfmodel.Work{Steps: 1, Context: i.Running * each, Prefills: min(1, i.Passes/passes), Tokens: i.Tokens / passes}
	expected := float64(class.pass.Pass().Time(w)) * passes
	rank.Load.ObservePace(took, time.Duration(expected), now)
	class.pass.Observe(w, i.Gap())
}

// observeAnswer learns the length of an answer from the end of a request that was served.
func (s *speeds) observeAnswer(k *pick.Booking, session uint64, gap time.Duration, now time.Time) {
	class := s.of(k.Rank.Worker)
	if gap <= 0 {
		booked := k.Rank.Load.Booked()
		gap = class.pass.Pass().Decode.Step(int(booked.DecodeBlocks) * k.Rank.Worker.BlockSize)
	}
	class.answers.observe(answerTokens(now.Sub(k.At.Add(k.FirstToken.Duration())), gap), session)
}

// all returns the learned speeds, per class of workers.
func (s *speeds) all() map[WorkerClass]perfmodel.Speed {
	out := map[WorkerClass]perfmodel.Speed{}
	if known := s.byClass.Load(); known != nil {
		for class, l := range *known {
			pass := l.pass.Pass()
			out[class] = perfmodel.Speed{Prefill: pass.Prefill, Decode: pass.Decode, Transfer: l.transfer.Pass().Prefill}
		}
	}
	return out
}
