package drift

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// Config is read by New and not changed later.
type Config struct {
	// Tokens is the number of prompt tokens that a window must have; default 1,000,000.
	Tokens int
	// Rest is the least time between two rebuilds of one worker; default 5 min.
	Rest time.Duration
}

// bound is the largest difference of promised and found tokens, as a share of a window's prompt tokens. A
// lower one would find smaller errors, and also report the normal changes of a cache between a decision and
// its execution.
const bound = 0.25

// The defaults of Config.
const (
	DefaultTokens = 1_000_000
	defaultRest   = 5 * time.Minute
)

func (c Config) withDefaults() Config {
	if c.Tokens <= 0 {
		c.Tokens = DefaultTokens
	}
	if c.Rest <= 0 {
		c.Rest = defaultRest
	}
	return c
}

// Detector compares promises with reports, per worker. Create it with [New]. It is safe for concurrent
// use.
type Detector struct {
	cfg Config

	mu      sync.Mutex
	workers map[string]*window // guarded by mu
}

// window is one worker's present window, and its totals.
type window struct {
	WorkerStats
	epoch  uint64
	opened time.Time // when the report arrived that opened it
	// queries and hits are the engine's counters in that report.
	queries, hits uint64
	// counted are the requests that ended before the last report: its counters include them.
	counted tally
	// ended are the requests that have ended since.
	ended tally
	// rebuilt is when the worker's cache state was rebuilt last; zero before the first time.
	rebuilt time.Time
	short   shortWindow
}

// shortWindow is the time since an engine has last found a token.
type shortWindow struct {
	reported      time.Time // when the last report arrived
	opened        time.Time // when the report arrived that opened it
	queries, hits uint64    // the engine's counters in that report
	counted       tally     // the requests that were decided since and ended before the last report, which may not include all of them
	ended         tally     // the requests that have ended since the last report
}

// leastMissed is the least number of promised tokens of a short window that an engine must have found something of.
const leastMissed = 256

// leastApart is the least time between two reports of an engine, which come every 500 ms. Reports that were held up on their way, by a bus
// that stood still, come at once.
const leastApart = 250 * time.Millisecond

// observe counts a report in. It returns when the first request of the window was decided if all promises of the window were missed, and
// zero otherwise.
func (s *shortWindow) observe(c Counters, now time.Time) (missed time.Time) {
	isHeldUp := now.Sub(s.reported) < leastApart
	s.reported = now
	if isHeldUp {
		return time.Time{} // it may be older than requests that ended before the last report
	}
	if !s.opened.IsZero() && c.Queries >= s.queries && c.Hits == s.hits {
		t := &s.counted
		if t.certain-t.slack < leastMissed || c.Queries-s.queries < uint64(t.certain) {
			t.add(s.ended)
			s.ended = tally{}
			return time.Time{}
		}
		missed = t.first
	}
	*s = shortWindow{reported: now, opened: now, queries: c.Queries, hits: c.Hits}
	return missed
}

// Verdict is the result of a report.
type Verdict struct {
	// Rebuild means that the worker's cache state should be rebuilt.
	Rebuild bool
	// Missed is set if the engine has found none of the promised tokens: it is when the first such request was decided.
	Missed time.Time
}

// tally is a sum of requests, in tokens.
type tally struct {
	prompt, cached, certain int
	first                   time.Time // when the first request with promised tokens was decided
	// slack has one block per request. An engine that has a whole prompt cached still computes its
	// last token, and so does not count the last block as found.
	slack int
}

func (t *tally) add(o tally) {
	t.prompt += o.prompt
	t.cached += o.cached
	t.certain += o.certain
	t.slack += o.slack
	if t.first.IsZero() || !o.first.IsZero() && o.first.Before(t.first) {
		t.first = o.first
	}
}

// WorkerStats are the totals of a worker's windows.
type WorkerStats struct {
	Worker string
	// Promised and Found are tokens of all windows: promised by decisions, less the tokens that the engine may not count, and found by
	// the engine for all its clients.
	Promised, Found uint64
	// Ratio is the drift of the last window as a share of its prompt tokens: above 0 if more was
	// promised than can have been found, below 0 if more was found than promised.
	Ratio float64
	// Windows and Resyncs count judged windows and rebuilds.
	Windows, Resyncs uint64
}

// New returns a detector without any window.
func New(cfg Config) *Detector {
	return &Detector{cfg: cfg.withDefaults(), workers: map[string]*window{}}
}

// Request is a request that has ended regularly.
type Request struct {
	Worker  string
	Epoch   uint64
	Decided time.Time
	// PromptTokens is the length of its prompt, and CachedTokens the part of it that the decision took for cached. CertainTokens is the
	// promised part of that, on the rank's device: an engine loads other blocks only where that is faster than to compute them.
	PromptTokens, CachedTokens, CertainTokens int
	// BlockSize is in tokens.
	BlockSize int
}

// Served adds a request to its worker's window, unless it was decided before the window opened.
func (d *Detector) Served(r Request) {
	d.mu.Lock()
	defer d.mu.Unlock()

	w := d.workers[r.Worker]
	if w == nil || w.epoch != r.Epoch || r.Decided.Before(w.opened) || r.PromptTokens <= 0 {
		return
	}
	cached := min(max(r.CachedTokens, 0), r.PromptTokens)
	certain := min(max(r.CertainTokens, 0), cached)
	t := tally{prompt: r.PromptTokens, cached: cached, certain: certain, slack: r.BlockSize}
	if certain > 0 {
		t.first = r.Decided
	}
	w.ended.add(t)
	if !r.Decided.Before(w.short.opened) {
		w.short.ended.add(t)
	}
}

// Counters are an engine's counters since it started, of all its ranks together.
type Counters struct {
	Worker string
	Epoch  uint64
	// Queries are the prompt tokens that the engine looked up in its cache, Hits those it found.
	Queries, Hits uint64
}

// Counted compares a report of an engine with the promises.
func (d *Detector) Counted(c Counters, now time.Time) Verdict {
	d.mu.Lock()
	defer d.mu.Unlock()

	w := d.workers[c.Worker]
	if w == nil {
		w = &window{WorkerStats: WorkerStats{Worker: c.Worker}}
		d.workers[c.Worker] = w
	}

	if w.epoch != c.Epoch {
		w.short = shortWindow{}
	}
	v := Verdict{Missed: w.short.observe(c, now)}
	switch {
	case w.opened.IsZero() || w.epoch != c.Epoch || c.Queries < w.queries || c.Hits < w.hits:
		w.open(c, now)
		return v
	case w.counted.prompt < d.cfg.Tokens:
		w.counted.add(w.ended)
		w.ended = tally{}
		return v
	}

	w.judge(int(c.Queries-w.queries), int(c.Hits-w.hits))
	w.open(c, now)

	drifts := math.Abs(w.Ratio) > bound
	if !drifts || !w.rebuilt.IsZero() && now.Sub(w.rebuilt) < d.cfg.Rest {
		return v
	}
	w.rebuilt = now
	w.Resyncs++
	v.Rebuild = true
	return v
}

// open begins a window with a report.
func (w *window) open(c Counters, now time.Time) {
	w.epoch = c.Epoch
	w.opened = now
	w.queries = c.Queries
	w.hits = c.Hits
	w.counted = tally{}
	w.ended = tally{}
}

// judge computes the ratio of a window in which the engine looked up and found so many tokens. The
// package comment has an example.
func (w *window) judge(queries, hits int) {
	t := w.counted
	others := max(0, queries-t.prompt)  // tokens of other clients' requests
	missing := max(0, t.prompt-queries) // promised, but never looked up: the request did not arrive
	promised := max(0, t.certain-missing-t.slack)
	least := hits - others // found for the window's requests

	w.Promised += uint64(promised)
	w.Found += uint64(hits)
	w.Windows++
	switch {
	case promised > hits:
		w.Ratio = float64(promised-hits) / float64(t.prompt)
	case t.cached < least:
		w.Ratio = -float64(least-t.cached) / float64(t.prompt)
	default:
		w.Ratio = 0
	}
}

// Keep drops the workers for which keep returns false.
func (d *Detector) Keep(keep func(worker string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()

	for name := range d.workers {
		if !keep(name) {
			delete(d.workers, name)
		}
	}
}

// Stats returns the totals of every worker that has had a whole window, sorted by name.
func (d *Detector) Stats() []WorkerStats {
	d.mu.Lock()
	defer d.mu.Unlock()

	var list []WorkerStats
	for _, w := range d.workers {
		if w.Windows > 0 {
			list = append(list, w.WorkerStats)
		}
	}
	slices.SortFunc(list, func(a, b WorkerStats) int { return cmp.Compare(a.Worker, b.Worker) })
	return list
}
