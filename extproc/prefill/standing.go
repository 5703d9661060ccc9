package prefill

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
)

// standings collect the evidence of requests about prefill workers: how long prompts take, and which workers fail.
//
// A worker whose answer does not come within [standings.wait] gets no request for a pause, which doubles with each further one. Its health
// page may answer all the time, so only a prompt that it computes ends that. After a pause one request tries the worker. If all prefill
// workers pause, decode workers compute the prompts.
//
// All methods are safe for concurrent use.
type standings struct {
	log *slog.Logger

	mu       sync.Mutex
	slowness map[string]float64   // by pool: the time of prompts, as a multiple of the estimate; guarded by mu
	failing  map[string]*standing // workers that have failed since they served last, by name; guarded by mu
}

// standing is a worker that fails.
type standing struct {
	failures int           // since it served last
	pause    time.Duration // 0 for a worker that has answered each request in time
	until    time.Time     // the end of the pause
	last     time.Time     // when it failed last
}

const (
	// waitFactor and waitFloor bound the time of an answer: it is the factor times the time that prompts of that pool have
	// taken lately, and the floor.
	waitFactor = 4
	waitFloor  = 2 * time.Second
	// firstSlowness is the slowness of a pool of which nothing is known, as a multiple of the first estimate for a GPU. It
	// suits engines on processors.
	firstSlowness = 100
	// slownessDecay is the share of its distance by which the slowness of a pool falls towards the slowness of a
	// quicker prompt. It rises at once.
	slownessDecay = 0.05

	firstPause = 5 * time.Second
	maxPause   = time.Minute
	// keepFailing is the time for which a worker is kept that has failed and got no further request.
	keepFailing = time.Hour
)

func newStandings(log *slog.Logger) *standings {
	return &standings{log: log, slowness: map[string]float64{}, failing: map[string]*standing{}}
}

// estimate returns the first estimate of the time for the given number of prompt tokens.
func estimate(tokens int) time.Duration {
	line := perfmodel.DefaultSpeed().Prefill
	return line.Base + time.Duration(float64(tokens)*line.Token)
}

// wait returns the time that a worker of a pool may take for the given number of prompt tokens, which includes
// tokens before the request's own.
func (s *standings) wait(pool string, tokens int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	slowness, ok := s.slowness[pool]
	if !ok {
		slowness = firstSlowness
	}
	return waitFloor + time.Duration(waitFactor*slowness*float64(estimate(tokens)))
}

// paused returns the workers that get no request now.
func (s *standings) paused(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.failing)) {
		if now.Before(s.failing[name].until) {
			names = append(names, name)
		}
	}
	return names
}

// sent records that a worker gets a request that may take that long. One that had a pause gets no other one meanwhile.
func (s *standings) sent(worker string, wait time.Duration, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.failing[worker]; f != nil && f.pause > 0 {
		f.until = now.Add(wait)
	}
}

// served records that a worker of a pool has computed a prompt. tokens includes the tokens before it.
func (s *standings) served(worker, pool string, tokens int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := float64(took) / float64(estimate(tokens))
	slowness, ok := s.slowness[pool]
	if !ok {
		slowness = firstSlowness
	}
	s.slowness[pool] = max(now, slowness+slownessDecay*(now-slowness))

	if f := s.failing[worker]; f != nil {
		delete(s.failing, worker)
		s.log.Info("a prefill worker serves again", "worker", worker, "failures", f.failures)
	}
}

// failed records that a worker did not serve a request, and logs the first failure of several in a row. err may be nil.
func (s *standings) failed(worker string, o Outcome, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failing[worker]
	if f == nil {
		maps.DeleteFunc(s.failing, func(_ string, f *standing) bool { return now.Sub(f.last) > keepFailing })
		f = &standing{}
		s.failing[worker] = f
		s.log.Warn("a prefill worker does not compute prompts: no further line until it does", "worker", worker, "outcome", string(o),
			"error", err)
	}

	f.failures++
	f.last = now
	if o == TimedOut {
		f.pause = min(max(firstPause, 2*f.pause), maxPause)
		f.until = now.Add(f.pause)
	}
}
