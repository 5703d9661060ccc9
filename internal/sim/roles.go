package sim

import (
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/sim/engine"
)

// A request for separate roles goes the way that it has in package extproc/exchange. A worker that decodes is picked and
// booked first. If its decision is split, a prefill worker is picked and booked, computes the prompt and one token, and its
// booking ends. Then the decode worker fetches the KV cache, and decodes. A request whose decision is not split, or without a
// usable prefill worker, is computed by the decode worker alone.

// handoff is the part of a job on the worker that only prefills.
//
// Invariants: source is nil while there is no such worker, and none from which a part of the prompt is pulled. The job is in the
// source's jobs from its pick until its KV cache was fetched. transfer is set while that is being fetched.
type handoff struct {
	source   *worker
	id       string         // of the decision about source
	request  engine.Request // its blocks stay in use until the transfer ends
	pulled   int            // tokens that source had in its cache, if it computes nothing: see pull
	tried    []string       // names of workers that were asked
	transfer *transfer
}

// maxPrefills is the greatest number of prefill workers that are asked for one request, as in extproc/exchange.
const maxPrefills = 2

// askPrefill gives the prompt of a picked job to a prefill worker. It returns false if none takes it.
func (r *run) askPrefill(j *job) bool {
	h := &j.handoff
	if len(h.tried) == maxPrefills {
		return false
	}
	d := j.replica.decidePrefill(j, r.clock())
	r.publishBookings(j.replica)
	if d.Outcome != decision.Picked {
		return false
	}

	// The prefill worker computes one token with the prompt, which is not used. It keeps the blocks for the transfer.
	h.id = d.ID
	h.tried = append(h.tried, d.Worker)
	h.source = r.workers[j.replica.number(d.Worker)]
	h.request = engine.Request{Prompt: j.engine.Prompt, MaxTokens: 1, Next: j.answer, Owner: j, Keep: true}
	r.tally.asked(j, d)
	r.demand.promised(d.Cached)

	// A worker that refuses the prompt is not replaced by another one, which would refuse it as well.
	if err := h.source.engine.Submit(&h.request); err != nil {
		r.endPrefill(j)
		h.source = nil
		return false
	}
	h.source.jobs[j] = struct{}{}
	r.beginSoon(h.source)
	return true
}

// endPrefill ends the booking on the prefill worker. It has no lag: stator extproc reads the answer of that worker itself,
// while last tokens of other workers reach it through Envoy's access log.
func (r *run) endPrefill(j *job) {
	j.replica.router.End(j.handoff.id, r.clock())
	r.publishBookings(j.replica)
}

// handOver begins the transfer of a computed prompt to the worker that decodes it.
func (r *run) handOver(j *job, cached int) {
	h := &j.handoff
	r.tally.found(j, h.source, cached)
	r.endPrefill(j)
	j.replica.router.Handed(j.decision, h.source.name, r.clock())

	// The decode worker fetches only the tokens that it does not have.
	tokens := len(j.engine.Prompt) - j.worker.engine.Found(&j.engine)
	h.transfer = &transfer{
		job: j, from: h.source, to: j.worker, began: r.now, left: float64(tokens) * float64(r.cfg.Transfer.TokenBytes),
	}
	r.agenda.add(event{at: r.now + r.cfg.Transfer.Base, kind: transferBegins, job: j})
}

// pull has a job's worker fetch the beginning of its prompt from the worker that the decision names. It returns false where
// that one has no more of it. The source reads blocks that it has cached, and computes nothing, so neither its queue nor its
// passes change; its bandwidth is shared by all that fetch from it. A job joins its engine's queue when the blocks are there: a
// job that comes with the same prompt in between finds nothing of it, as in vLLM.
func (r *run) pull(j *job) bool {
	h := &j.handoff
	source := r.workers[j.replica.number(j.decision.Pull.Worker)]
	// The hashes of a request belong to one engine.
	h.request = engine.Request{Prompt: j.engine.Prompt}
	there, here := source.engine.Found(&h.request), j.worker.engine.Found(&j.engine)
	if there <= here || source.down {
		return false
	}

	h.source, h.pulled = source, there
	source.jobs[j] = struct{}{}
	h.transfer = &transfer{
		job: j, from: source, to: j.worker, began: r.now, left: float64(there-here) * float64(r.cfg.Transfer.TokenBytes),
	}
	r.agenda.add(event{at: r.now + r.cfg.Transfer.Base, kind: transferBegins, job: j})
	return true
}

// transferred has a delivered prompt decoded, or the rest of a pulled one computed.
func (r *run) transferred(j *job) {
	h := &j.handoff
	if h.pulled > 0 {
		r.tally.pulled(j, r.now-h.transfer.began)
		h.transfer = nil
		delete(h.source.jobs, j)
		h.source = nil
		j.engine.Delivered = h.pulled
		r.submit(j)
		return
	}
	r.tally.transferred(j, r.now-h.transfer.began)
	h.transfer = nil
	r.releaseSource(j)

	// The engine allocates the blocks of a delivered prompt, and computes nothing but its last token.
	j.engine.Delivered = len(j.engine.Prompt)
	r.submit(j)
}

// releaseSource frees the blocks of a prompt on the worker that has computed it.
func (r *run) releaseSource(j *job) {
	h := &j.handoff
	delete(h.source.jobs, j)
	h.source.engine.Release(&h.request)
	r.beginSoon(h.source) // requests may wait for these blocks
}

// cancelHandoff ends the work for a job on its prefill worker, and its transfer, because the job fails.
func (r *run) cancelHandoff(j *job) {
	h := &j.handoff
	if h.source == nil {
		return
	}
	_, computing := h.source.jobs[j]
	switch {
	case h.transfer != nil && h.pulled > 0:
		r.cutTransfer(j)
		delete(h.source.jobs, j)
	case h.transfer != nil: // the prompt is computed, and its blocks wait for the transfer
		r.cutTransfer(j)
		r.releaseSource(j)
	case computing: // or in the queue of the prefill worker
		delete(h.source.jobs, j)
		h.source.engine.Cancel(&h.request)
		r.endPrefill(j)
	}
}

// loseSource handles the death of a job's prefill worker. Another one is asked, or the decode worker computes the prompt.
// During the transfer the job fails, as with vLLM's default kv_load_failure_policy.
func (r *run) loseSource(j *job) {
	h := &j.handoff
	delete(h.source.jobs, j)
	h.source = nil
	switch {
	case h.transfer != nil && h.pulled > 0: // vLLM computes the tokens that it cannot pull
		r.cutTransfer(j)
		r.submit(j)
		return
	case h.transfer != nil:
		r.cutTransfer(j)
		r.drop(j)
		return
	}
	r.endPrefill(j)
	if !r.askPrefill(j) {
		r.submit(j)
	}
}
