package sim

import "time"

// Outcome is what came of one request. Times count from the first arrival.
type Outcome struct {
	// Number is the request's in the order of arrivals, from 0.
	Number int
	// Worker is the engine that had it, or -1 where none was picked.
	Worker int
	// At is its arrival, First its first token, End its last one or its failure.
	At, First, End time.Duration
	// Prompt and Output are tokens, Cached those of the prompt that were found in the cache.
	Prompt, Cached, Output int
	// Failed says that no engine took it, or that the one that did died.
	Failed bool
}

// ended completes o by what its job tells and hands it on.
func (r *run) ended(j *job, o Outcome) {
	if r.cfg.Ended == nil {
		return
	}
	o.Number, o.At, o.Prompt, o.Worker = j.number, j.at, len(j.engine.Prompt), -1
	if j.worker != nil {
		o.Worker = j.worker.number
	}
	r.cfg.Ended(o)
}
