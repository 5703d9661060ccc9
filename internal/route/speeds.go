package route

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/pick"
)

// Kind is a sort of worker, whose prompts are taken to run alike.
type Kind struct{ Model, Engine string }

// speeds is what is learned of how long prefills take, per kind of worker.
//
// What is observed is exact in its own way: how many tokens the pick left to compute, and the time
// from the prefill before to the first token, or to the event that says the prompt's last block
// is stored. No answer is read for it.
type speeds struct {
	start  perfmodel.Line // believed of a kind that nobody has seen
	mu     sync.Mutex
	byKind atomic.Pointer[map[Kind]*perfmodel.Learned] // never changed once stored; nil at first
}

func (s *speeds) of(w *fleet.Worker) *perfmodel.Learned {
	kind := Kind{w.Model, w.Engine}
	if known := s.byKind.Load(); known != nil {
		if l := (*known)[kind]; l != nil {
			return l
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[Kind]*perfmodel.Learned{}
	if known := s.byKind.Load(); known != nil {
		maps.Copy(next, *known)
	}
	if next[kind] == nil {
		next[kind] = perfmodel.NewLearned(s.start)
		s.byKind.Store(&next)
	}
	return next[kind]
}

// prefilled is told of a prefill that ended. It teaches the kind's line, which so is that of its
// average rank, and, where it was alone, the rank's own pace against it: of several in one pass all
// but the first seem to take no time, and a busy rank would seem fast.
func (s *speeds) prefilled(k *pick.Booking, p fleet.Ended) {
	kind, tokens := s.of(k.Rank.Worker), int(k.Prompt-k.Cached)
	if p.Alone {
		k.Rank.Load.ObservePace(p.Took, kind.Line().Prefill(tokens))
	}
	kind.Observe(tokens, p.Took)
}

// Speeds is what has been learned of how long prompts take, per kind of worker.
func (r *Router) Speeds() map[Kind]perfmodel.Line {
	out := map[Kind]perfmodel.Line{}
	if known := r.speeds.byKind.Load(); known != nil {
		for kind, l := range *known {
			out[kind] = l.Line()
		}
	}
	return out
}
