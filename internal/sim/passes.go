package sim

import (
	"time"

	"github.com/stator-project/stator/internal/sim/engine"
)

// beginSoon lets an idle engine begin a pass after all other events of this time. So requests that arrive at the
// same time are admitted in the same pass, as they are by an engine whose loop is busy for a moment.
func (r *run) beginSoon(w *worker) {
	if !w.inPass && !w.down {
		r.agenda.begin(w.number, r.now)
	}
}

// begin begins a pass of an idle engine.
func (r *run) begin(w *worker) {
	if w.inPass || w.down {
		return
	}
	took, ok := w.engine.Plan(r.clock())
	if !ok {
		if at, waits := w.engine.Wake(); waits {
			r.agenda.add(event{at: r.now + at.Sub(r.clock()), kind: passBegins, worker: w.number})
		}
		return
	}
	end := r.now + took
	if r.runsAhead {
		end = r.runAhead(w, end)
	}
	w.inPass = true
	w.pass = r.agenda.endPass(w.number, end)
}

// endPass ends a pass: events of the cache are published, and tokens are emitted.
func (r *run) endPass(w *worker, life uint64) error {
	if life != w.pass {
		return nil // a pass of a process that has died
	}
	w.inPass = false
	result := w.engine.End()

	// Events leave before tokens, as in vLLM: a client that has an answer finds its blocks in the index.
	if len(result.Events) > 0 && !r.cfg.NoEvents {
		r.publish(w, result)
	}

	ended := false
	for i := range result.Outputs {
		out := &result.Outputs[i]
		j := out.Request.Owner.(*job)
		if out.Request == &j.handoff.request {
			r.handOver(j, out.Cached)
			continue
		}
		r.emit(j, out)
		ended = ended || out.Done != engine.NotDone
	}

	r.beginSoon(w)
	if ended && r.cfg.Concurrency > 0 {
		return r.admit()
	}
	return nil
}

// emit counts a token. The router sees the first token and the last one.
func (r *run) emit(j *job, out *engine.Output) {
	if out.Index == 0 {
		r.demand.figures.Generated++
		r.tally.first(j, r.now)
		if j.handoff.source == nil {
			r.tally.found(j, j.worker, out.Cached)
		}
		if r.cfg.FirstTokens {
			r.signal(event{kind: firstToken, job: j, id: j.decision.ID})
		}
	} else {
		r.countGap(j, r.now)
	}
	j.last = r.now

	if out.Done == engine.NotDone {
		return
	}
	r.tally.countEnd(j, r.now, out.Index+1)
	late, slow := SLA{TTFT: r.cfg.SLA.TTFT}, SLA{ITL: r.cfg.SLA.ITL}
	misses := func(s SLA) bool { return s.Misses(j.at, j.first, r.now, out.Index+1) }
	r.demand.ended(out.Index+1, misses(late), misses(slow))
	r.endStep(j, out.Index+1, false)
	r.reportOutcome(j, Outcome{First: j.first, End: r.now, Cached: out.Cached, Output: out.Index + 1})
	r.inFlight--
	delete(j.worker.jobs, j)
	r.prompts = append(r.prompts, j.engine.Prompt)
	r.signal(event{kind: lastToken, job: j, id: j.decision.ID})
}

// countGap counts the time until a further token of a job.
func (r *run) countGap(j *job, now time.Duration) {
	took := now - j.last
	r.tally.countGap(j, took)
	j.worker.gaps++
	j.worker.gapTime += took
	r.demand.figures.Generated++
	j.last = now
}
