package prefill

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// pairs collect the evidence of answers about pairs of a prefill and a decode worker. A transfer may fail without an error: the decode
// worker then answers with 200 and without a token, with some transports only after minutes. Both workers may serve well with others.
//
//	answer after a transfer            effect on the pair
//	---------------------------------  -----------------------------------------------------------------
//	200 without a token                paused for firstPairPause, and for twice as long with each further one
//	200 with tokens                    no failure counts any more
//	an error, or one that breaks off   none: it counts for the decode worker
//
// During a pause the prompts of that decode worker go to other prefill workers, or it computes them. After the pause one request tries the
// pair.
//
// All methods are safe for concurrent use.
type pairs struct {
	log   *slog.Logger
	empty prometheus.Counter

	mu      sync.Mutex
	failing map[pair]*standing // guarded by mu
	// fresh and old have the pairs of the requests whose answers have not ended, by the ids of their decisions. When fresh is full it
	// becomes old, so that an end that never comes leaves no entry for ever.
	fresh, old map[string]pair // guarded by mu
}

// pair is a transfer's workers by name.
type pair struct{ prefill, decode string }

const (
	firstPairPause = time.Minute
	maxPairPause   = 16 * time.Minute
	// maxUnanswered bounds each of fresh and old, and maxFailing the pairs that fail.
	maxUnanswered = 4096
	maxFailing    = 1024
)

func newPairs(log *slog.Logger, empty prometheus.Counter) *pairs {
	return &pairs{log: log, empty: empty, failing: map[pair]*standing{}, fresh: map[string]pair{}}
}

// transferred records that the prompt of a request was computed by one worker for the other.
func (s *pairs) transferred(id string, p pair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fresh) >= maxUnanswered {
		s.old, s.fresh = s.fresh, map[string]pair{}
	}
	s.fresh[id] = p
}

// answered records that the answer to a request has ended: with tokens, or without any.
func (s *pairs) answered(id string, isEmpty bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.takeLocked(id)
	if !known {
		return
	}
	f := s.failing[p]
	switch {
	case !isEmpty && f != nil:
		delete(s.failing, p)
		s.log.Info("transfers between two workers work again", "prefill", p.prefill, "decode", p.decode, "failures", f.failures)
		return
	case !isEmpty:
		return
	}

	s.empty.Inc()
	if f == nil && len(s.failing) >= maxFailing {
		maps.DeleteFunc(s.failing, func(_ pair, f *standing) bool { return now.After(f.until) })
		if len(s.failing) >= maxFailing {
			return
		}
	}
	if f == nil {
		f = &standing{}
		s.failing[p] = f
		s.log.Warn("an answer after a transfer has no token; these two workers get no request together for a while: "+
			"look at the transport between them", "prefill", p.prefill, "decode", p.decode, "pause", firstPairPause)
	}
	f.failures++
	f.last = now
	f.pause = min(max(firstPairPause, 2*f.pause), maxPairPause)
	f.until = now.Add(f.pause)
}

// takeLocked returns the pair of a request and forgets it. mu is held.
func (s *pairs) takeLocked(id string) (p pair, known bool) {
	p, known = s.fresh[id]
	if !known {
		p, known = s.old[id]
	}
	delete(s.fresh, id)
	delete(s.old, id)
	return p, known
}

// paused returns the prefill workers that get no request together with a decode worker now.
func (s *pairs) paused(decode string, now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for p, f := range s.failing {
		if p.decode == decode && now.Before(f.until) {
			names = append(names, p.prefill)
		}
	}
	slices.Sort(names)
	return names
}

// chosen records that a request tries a pair. One that fails gets no other request until the next pause is over.
func (s *pairs) chosen(p pair, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.failing[p]; f != nil {
		f.until = now.Add(f.pause)
	}
}
