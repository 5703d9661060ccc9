package drift

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Config is read by New and not changed later.
type Config struct {
	// Bound is the share of a window's prompt tokens by which promise and report may differ;
	// default 0.25. Lowering it finds smaller errors, and takes the moments between a decision
	// and its execution for errors.
	Bound float64
	// Tokens is how many prompt tokens a window must have; default 1,000,000.
	Tokens int
	// Rest is the least time between two resyncs of one worker; default 5 min.
	Rest time.Duration
}

// The defaults of Config.Bound and Config.Tokens.
const (
	DefaultBound  = 0.25
	DefaultTokens = 1_000_000
)

func (c Config) withDefaults() Config {
	if c.Bound <= 0 {
		c.Bound = DefaultBound
	}
	if c.Tokens <= 0 {
		c.Tokens = DefaultTokens
	}
	if c.Rest <= 0 {
		c.Rest = 5 * time.Minute
	}
	return c
}

// Detector compares what decisions promised to find in workers' caches with what their engines say
// they found. Create it with [New]. It is safe for concurrent use.
//
// An engine counts for everybody who asks it, and at another moment than we do. So only what
// cannot be otherwise is called an error. A window lies between two of the engine's counts, and
// the promises in it are those of requests that began and ended between the two: they are in the
// engine's figures for certain. Whatever else is in these figures is someone else's (or ours,
// from before), and may have been found or not. Promised without error is then anything between
// the engine's hits, and its hits less everything else that was asked.
type Detector struct {
	cfg Config

	mu      sync.Mutex
	workers map[string]*drifting // guarded by mu
}

// drifting is one worker's window.
type drifting struct {
	WorkerStats
	epoch         uint64
	opened        time.Time // when its first count came
	queries, hits uint64    // at that time
	// done are requests that ended before the last count came, and so are in it; late those that
	// ended since.
	done, late tally
	resynced   time.Time
}

// tally sums requests, in tokens.
type tally struct {
	prompt, cached int
	// slack is a block for each request: engines compute the last token of a prompt that they
	// hold whole, and so its last block.
	slack int
}

func (t *tally) add(o tally) {
	t.prompt += o.prompt
	t.cached += o.cached
	t.slack += o.slack
}

// WorkerStats holds the totals of a worker's windows.
type WorkerStats struct {
	Worker string
	// Promised and Found are sums of tokens over all windows: what decisions promised for
	// certain, and what the engine found, whoever asked.
	Promised, Found uint64
	// Ratio is the error in the last window, in shares of its prompt tokens: above 0 where more
	// was promised than can have been found, below where more was found than promised.
	Ratio float64
	// Windows and Resyncs count.
	Windows, Resyncs uint64
}

// New returns a comparison that has seen nothing.
func New(cfg Config) *Detector {
	return &Detector{cfg: cfg.withDefaults(), workers: map[string]*drifting{}}
}

// Served is told of a request that has ended: when it was decided, its prompt's tokens and those
// that the decision took for cached, and the block size.
func (d *Detector) Served(worker string, epoch uint64, decided time.Time, prompt, cached, blockSize int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workers[worker]
	if w == nil || w.epoch != epoch || decided.Before(w.opened) || prompt <= 0 {
		return
	}
	w.late.add(tally{prompt, min(max(cached, 0), prompt), blockSize})
}

// Counted is told an engine's own counts since it started: prompt tokens that it looked up, and
// those it found. It returns true where what is known of the worker should be built up anew.
func (d *Detector) Counted(worker string, epoch uint64, queries, hits uint64, now time.Time) (resync bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workers[worker]
	if w == nil {
		w = &drifting{WorkerStats: WorkerStats{Worker: worker}}
		d.workers[worker] = w
	}
	switch {
	case w.opened.IsZero() || w.epoch != epoch || queries < w.queries || hits < w.hits:
		w.open(epoch, queries, hits, now)
	case w.done.prompt >= d.cfg.Tokens:
		w.judge(int(queries-w.queries), int(hits-w.hits))
		over := w.Ratio > d.cfg.Bound || w.Ratio < -d.cfg.Bound
		resync = over && (w.resynced.IsZero() || now.Sub(w.resynced) >= d.cfg.Rest)
		w.open(epoch, queries, hits, now)
	default:
		w.done.add(w.late)
		w.late = tally{}
	}
	if resync {
		w.resynced = now
		w.Resyncs++
	}
	return resync
}

func (w *drifting) open(epoch, queries, hits uint64, now time.Time) {
	w.epoch, w.opened, w.queries, w.hits = epoch, now, queries, hits
	w.done, w.late = tally{}, tally{}
}

// judge closes the window with what the engine looked up and found in it.
func (w *drifting) judge(queries, hits int) {
	t := w.done
	others := max(0, queries-t.prompt)  // asked by someone else
	missing := max(0, t.prompt-queries) // of ours, never arrived
	promised := max(0, t.cached-missing-t.slack)
	w.Promised += uint64(promised)
	w.Found += uint64(hits)
	w.Windows++
	switch certain := hits - others; {
	case promised > hits:
		w.Ratio = float64(promised-hits) / float64(t.prompt)
	case t.cached < certain:
		w.Ratio = -float64(certain-t.cached) / float64(t.prompt)
	default:
		w.Ratio = 0
	}
}

// Keep forgets the workers for which there is false.
func (d *Detector) Keep(there func(worker string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.workers {
		if !there(name) {
			delete(d.workers, name)
		}
	}
}

// Stats lists what is known, by worker name; those without a whole window are not in it.
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
