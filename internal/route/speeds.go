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

// WorkerClass names the workers that share what is learned of their speed.
type WorkerClass struct{ Model, Engine string }

func classOf(w *fleet.Worker) WorkerClass { return WorkerClass{w.Model, w.Engine} }

// speeds is what is learned of how long prefills and decode steps take, per class of workers. It is safe
// for concurrent use.
//
// A prefill is observed without reading an answer. Its tokens are those that the pick left to compute.
// Its time runs from the end of the prefill before it to its own end: the first token, or the event that
// reports the prompt's last block. A decode step is observed in engines' reports: the mean gap between
// tokens since the last report, beside the tokens in the cache. A transfer lasts from the answer of the prefill worker to the
// event by which the decode worker reports the prompt's last block.
type speeds struct {
	start   map[string]perfmodel.Speed               // first estimates by model; read only
	mu      sync.Mutex                               // held to add a class
	byClass atomic.Pointer[map[WorkerClass]*learned] // nil at first; the map never changes once stored
}

// learned is what is learned of one class. prefill is over tokens to compute, decode over tokens in the
// cache, and transfer over tokens that are computed elsewhere.
type learned struct{ prefill, decode, transfer *perfmodel.Learned }

// The spans of tokens over which lines are learned: the lower end separates their two terms.
const (
	prefillSpanFrom, prefillSpanTo = 500, 8_000
	decodeSpanFrom, decodeSpanTo   = 10_000, 400_000
)

// of returns what is learned of a worker's class, and begins a new class with its first estimate.
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
			prefill: perfmodel.NewLearned(start.Prefill, prefillSpanFrom, prefillSpanTo),
			decode:  perfmodel.NewLearned(start.Decode, decodeSpanFrom, decodeSpanTo),

			transfer: perfmodel.NewLearned(start.Transfer, prefillSpanFrom, prefillSpanTo),
		}
		s.byClass.Store(&next)
	}
	return next[class]
}

// observePrefill learns from a prefill that ended: the line of the rank's class, which so becomes that of
// its average rank, and the rank's pace against that line. The pace is learned only from a prefill that
// was alone on its rank. Of several in one pass all but the first seem to need no time, so a busy rank
// would seem fast.
func (s *speeds) observePrefill(k *pick.Booking, p fleet.Ended) {
	if p.Early {
		return
	}
	class, tokens := s.of(k.Rank.Worker).prefill, int(k.Prompt-k.Cached)
	if p.Alone {
		k.Rank.Load.ObservePace(p.Took, class.Line().Prefill(tokens), p.At)
	}
	class.Observe(tokens, p.Took)
}

// observeDecode learns from the gaps between tokens since a rank's last report. The cache's content at
// the end of that time stands for its content during it. A worker whose capacity is unknown gives
// nothing to learn from.
func (s *speeds) observeDecode(w *fleet.Worker, r *fleet.Report, gaps uint64, took time.Duration) {
	context := int(r.KVUsage * float64(w.Blocks) * float64(w.BlockSize))
	if gaps > 0 && context > 0 {
		s.of(w).decode.Observe(context, took/time.Duration(gaps))
	}
}

// Speeds returns what has been learned, per class of workers.
func (r *Router) Speeds() map[WorkerClass]perfmodel.Speed {
	out := map[WorkerClass]perfmodel.Speed{}
	if known := r.speeds.byClass.Load(); known != nil {
		for class, l := range *known {
			out[class] = perfmodel.Speed{Prefill: l.prefill.Line(), Decode: l.decode.Line(), Transfer: l.transfer.Line()}
		}
	}
	return out
}

// RankPace is what is known of the pace of one rank.
type RankPace struct {
	Worker string
	Rank   int
	Class  WorkerClass
	fleet.PaceStats
}

// Paces returns what is known of the pace of each rank, by the names of workers.
func (r *Router) Paces(now time.Time) []RankPace {
	ranks := r.fleet.Snapshot().Ranks
	list := make([]RankPace, len(ranks))
	for i := range ranks {
		w := ranks[i].Worker
		list[i] = RankPace{w.Name, ranks[i].Number, classOf(w), ranks[i].Load.PaceStats(now)}
	}
	return list
}
