package sim

import "time"

// Outcome is the result of one request. Times count from the first arrival.
type Outcome struct {
	// Number is the request's number in order of arrival, from 0.
	Number int
	// Worker is the engine that computed it, or -1 if none was picked.
	Worker int
	// At is its arrival, First its first token, End its last token or its failure.
	At, First, End time.Duration
	// Prompt and Output are tokens. Cached is the tokens of the prompt that were found in the cache.
	Prompt, Cached, Output int
	// Failed means that no engine accepted the request, or that its engine died.
	Failed bool
}

// reportOutcome passes on the outcome of a job, with the fields that the job has.
func (r *run) reportOutcome(j *job, o Outcome) {
	if r.cfg.Ended == nil {
		return
	}

	o.Number = j.number
	o.At = j.at
	o.Prompt = len(j.engine.Prompt)
	o.Worker = -1
	if j.worker != nil {
		o.Worker = j.worker.number
	}
	r.cfg.Ended(o)
}
