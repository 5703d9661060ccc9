package sim

import (
	"time"

	"github.com/stator-project/stator/internal/route/decision"
)

// tally has the counts of a run so far. Times and tokens count only requests that arrived after the warm-up.
type tally struct {
	warmup                     time.Duration
	arrived, completed, errors int
	queued                     int
	ttft, e2e                  []float64
	gaps                       histogram
	transfers, pulls           []float64 // milliseconds
	crossed                    int       // of the transfers
	reuse                      reuse
	output                     int
	workers                    []WorkerShare
	lastEnd                    time.Duration
	interrupted                bool
	sla                        SLA
	misses                     int
}

// reuse counts how much of the prompts was cached.
type reuse struct {
	prompts                  int // that engines have begun
	prompt, cached           int // tokens, as engines counted them
	promptDecided, predicted int // tokens, as routers decided
}

func (t *tally) init(cfg *Config) {
	t.workers = make([]WorkerShare, cfg.engines())
	t.warmup = cfg.Warmup
	t.sla = cfg.SLA
}

// isMeasured reports whether a job's times and tokens count.
func (t *tally) isMeasured(j *job) bool { return j.at >= t.warmup }

// decided counts a request on the worker that decodes it. d is the decision about its prompt; nil if asked counts that.
func (t *tally) decided(j *job, d *decision.Decision) {
	t.workers[j.worker.number].Requests++
	t.predict(j, d)
}

// asked counts a prompt on a worker that only prefills.
func (t *tally) asked(j *job, d *decision.Decision) {
	t.workers[j.handoff.source.number].Requests++
	t.predict(j, d)
}

// predict counts how much of a prompt is cached by the decision about it.
func (t *tally) predict(j *job, d *decision.Decision) {
	if d == nil || !t.isMeasured(j) {
		return
	}
	t.reuse.promptDecided += d.PromptTokens
	t.reuse.predicted += d.Cached
}

// first counts a first token.
func (t *tally) first(j *job, now time.Duration) {
	j.first = now
	if t.isMeasured(j) {
		t.ttft = append(t.ttft, ms(now-j.at))
	}
}

// found counts a prompt, and its cached tokens, on the worker that computed it.
func (t *tally) found(j *job, on *worker, cached int) {
	if !t.isMeasured(j) {
		return
	}
	t.reuse.prompts++
	n := len(j.engine.Prompt)
	t.reuse.prompt += n
	t.reuse.cached += cached
	w := &t.workers[on.number]
	w.PromptTokens += n
	w.CachedTokens += cached
}

// transferred counts a prompt that reached the worker that decodes it, some time after its prefill ended.
func (t *tally) transferred(j *job, took time.Duration) {
	if t.isMeasured(j) {
		t.transfers = append(t.transfers, ms(took))
		if !j.handoff.transfer.inNode() {
			t.crossed++
		}
	}
}

// pulled counts a prompt whose beginning was fetched from another worker's cache.
func (t *tally) pulled(j *job, took time.Duration) {
	if t.isMeasured(j) {
		t.pulls = append(t.pulls, ms(took))
	}
}

// countGap counts the time between two tokens.
func (t *tally) countGap(j *job, d time.Duration) {
	if t.isMeasured(j) {
		t.gaps.add(ms(d))
	}
}

// countEnd counts a completed request.
func (t *tally) countEnd(j *job, now time.Duration, tokens int) {
	t.completed++
	t.lastEnd = now
	if t.isMeasured(j) {
		t.e2e = append(t.e2e, ms(now-j.at))
		t.output += tokens
		t.workers[j.worker.number].OutputTokens += tokens
		if t.sla.Misses(j.at, j.first, now, tokens) {
			t.misses++
		}
	}
}

// fail counts a request that failed.
func (t *tally) fail(j *job) {
	t.errors++
	if t.isMeasured(j) {
		t.misses++
	}
}
