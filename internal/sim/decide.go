package sim

import (
	"fmt"

	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/trace"
)

// dequeuedJob is a job whose wait in a router's queue is over, with its decision.
type dequeuedJob struct {
	job *job
	d   *decision.Decision
}

// arrive makes a job of the pending arrival and submits it. Then it reads the next arrival.
func (r *run) arrive() error {
	a := *r.pending
	r.pending = nil
	if err := r.submitArrival(a, nil); err != nil {
		return err
	}
	return r.readArrival()
}

// submitArrival makes a job of an arrival, which may be a step of a program, and has it decided.
func (r *run) submitArrival(a trace.Arrival, s *step) error {
	// Replicas decide in turn, as behind a load balancer that does not see their load.
	j := &job{at: r.now, number: r.tally.arrived, replica: r.replicas[r.turn], step: s}
	r.turn = (r.turn + 1) % len(r.replicas)
	j.engine.Prompt = a.Prompt.Append(r.buffer())
	if len(j.engine.Prompt) == 0 || a.Output < 1 {
		return fmt.Errorf("simulate: request %d has %d prompt tokens and %d of output: it needs one of each", r.tally.arrived,
			len(j.engine.Prompt), a.Output)
	}
	r.tally.arrived++
	r.demand.arrived(j)
	j.seed = uint64(r.tally.arrived)
	j.session = a.Session
	j.engine.MaxTokens = a.Output
	j.engine.Next = j.answer
	j.engine.Owner = j

	r.decide(j)
	return nil
}

// decide lets the job's replica choose an engine. The decision may be delayed by the replica's queue.
func (r *run) decide(j *job) {
	var ready func(*decision.Decision)
	if r.cfg.Queue != nil {
		ready = func(d *decision.Decision) { r.dequeued = append(r.dequeued, dequeuedJob{j, d}) }
	}
	d, ticket := j.replica.decide(j, ready, r.clock())
	if d.Outcome == decision.Queued {
		r.tally.queued++
		r.demand.waits(j, 1)
		r.inFlight++
		r.agenda.add(event{at: ticket.Until().Sub(epoch), kind: wakes, job: j})
		return
	}
	r.decided(j, d)
}

// resume submits the jobs that left a router's queue. A router decides about them while it handles the event
// that freed an engine, so they are collected and submitted after that event.
func (r *run) resume() error {
	for len(r.dequeued) > 0 {
		next := r.dequeued[0]
		r.dequeued = r.dequeued[1:]
		r.inFlight--
		r.demand.waits(next.job, -1)
		r.decided(next.job, next.d)
		if r.cfg.Concurrency > 0 {
			if err := r.admit(); err != nil { // a refused request makes room for another
				return err
			}
		}
	}
	return nil
}

// decided gives a request to the engine that was picked for it, or its prompt to a prefill worker first.
func (r *run) decided(j *job, d *decision.Decision) {
	// A decision books load, which the other replicas need, and may make a prompt ready to be settled.
	r.publishBookings(j.replica)
	r.settleSoon()
	if d.Outcome != decision.Picked {
		r.fail(j)
		return
	}

	r.settlesAlways = r.settlesAlways || d.Cached >= d.PromptTokens
	j.decision = d
	j.left = r.now
	j.worker = r.workers[j.replica.number(d.Worker)]
	j.worker.jobs[j] = struct{}{}
	r.inFlight++
	if d.Split && r.askPrefill(j) {
		r.tally.decided(j, nil)
		return
	}
	r.tally.decided(j, d)
	r.demand.promised(d.Cached)
	if d.Pull.Tokens > 0 && r.pull(j) {
		return
	}
	r.submit(j)
}

// submit adds a request to the queue of the engine that decodes it.
func (r *run) submit(j *job) {
	if err := j.worker.engine.Submit(&j.engine); err != nil {
		r.drop(j)
		return
	}
	r.beginSoon(j.worker)
}

// drop fails a request that was decided. Its tokens are not used again, because events about them may be on their way.
func (r *run) drop(j *job) {
	r.inFlight--
	delete(j.worker.jobs, j)
	r.tally.fail(j)
	r.endStep(j, 0, true)
	r.reportOutcome(j, Outcome{End: r.now, Failed: true})
	j.replica.router.End(j.decision.ID, r.clock())
}

// fail counts a request that no engine accepted.
func (r *run) fail(j *job) {
	r.tally.fail(j)
	r.endStep(j, 0, true)
	r.reportOutcome(j, Outcome{End: r.now, Failed: true})
	r.prompts = append(r.prompts, j.engine.Prompt)
}
