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

// Kind is a sort of worker, whose prompts are taken to run alike.
type Kind struct{ Model, Engine string }

// speeds is what is learned of how long prefills and decode steps take, per kind of worker.
//
// What is observed of prefills is exact in its own way: how many tokens the pick left to compute, and
// the time from the prefill before to the first token, or to the event that says the prompt's last
// block is stored. No answer is read for it. What is observed of steps is what engines say of
// themselves: the mean gap between tokens since their report before, beside what the cache holds.
type speeds struct {
	start  map[string]perfmodel.Speed // believed of a model's workers at first, where something is
	mu     sync.Mutex
	byKind atomic.Pointer[map[Kind]*learned] // never changed once stored; nil at first
}

// learned is what is learned of one kind.
type learned struct{ prefill, decode *perfmodel.Learned }

func (s *speeds) of(w *fleet.Worker) *learned {
	kind := Kind{w.Model, w.Engine}
	if known := s.byKind.Load(); known != nil {
		if l := (*known)[kind]; l != nil {
			return l
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[Kind]*learned{}
	if known := s.byKind.Load(); known != nil {
		maps.Copy(next, *known)
	}
	if next[kind] == nil {
		start, ok := s.start[w.Model]
		if !ok {
			start = perfmodel.DefaultSpeed()
		}
		next[kind] = &learned{perfmodel.NewLearned(start.Prefill, 500, 8_000), perfmodel.NewLearned(start.Decode, 10_000, 400_000)}
		s.byKind.Store(&next)
	}
	return next[kind]
}

// prefilled is told of a prefill that ended. It teaches the kind's line, which so is that of its
// average rank, and, where it was alone, the rank's own pace against it: of several in one pass all
// but the first seem to take no time, and a busy rank would seem fast.
func (s *speeds) prefilled(k *pick.Booking, p fleet.Ended) {
	kind, tokens := s.of(k.Rank.Worker).prefill, int(k.Prompt-k.Cached)
	if p.Alone {
		k.Rank.Load.ObservePace(p.Took, kind.Line().Prefill(tokens))
	}
	kind.Observe(tokens, p.Took)
}

// decoded is told of the gaps between tokens since a rank's report before, and what its cache held at
// the end of that time: about what it held in it. A worker whose cache is of unknown size teaches
// nothing.
func (s *speeds) decoded(w *fleet.Worker, r *fleet.Report, gaps uint64, took time.Duration) {
	if context := int(r.KVUsage * float64(w.Blocks) * float64(w.BlockSize)); gaps > 0 && context > 0 {
		s.of(w).decode.Observe(context, took/time.Duration(gaps))
	}
}

// Speeds is what has been learned, per kind of worker.
func (r *Router) Speeds() map[Kind]perfmodel.Speed {
	out := map[Kind]perfmodel.Speed{}
	if known := r.speeds.byKind.Load(); known != nil {
		for kind, l := range *known {
			out[kind] = perfmodel.Speed{Prefill: l.prefill.Line(), Decode: l.decode.Line()}
		}
	}
	return out
}
