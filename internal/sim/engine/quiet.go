package engine

// Most passes are quiet: every running request decodes one token, as in the pass before, and no request waits. If no request
// needs a block, fills one or ends, then the plan of the pass before is the plan, and the cache does not change. Such passes are
// known beforehand, and are most of a simulation's time.

// Quiet reports whether the pass that [Engine.Plan] has planned, and the one after it, are quiet: its only effect is one token for
// each running request.
func (e *Engine) Quiet() bool { return e.isQuiet && e.quiet > 0 }

// quietPasses returns how many quiet passes follow the one that has ended. Submit and Cancel end them.
func (e *Engine) quietPasses() int {
	if len(e.waiting)+len(e.loading) > 0 || len(e.running) == 0 || len(e.plan) != len(e.running) {
		return 0
	}

	passes := e.cfg.BlockSize
	for i, r := range e.running {
		if e.plan[i].r != r || e.plan[i].prefill {
			return 0
		}
		// The next token needs a block after the last place of one. It fills one in the last place. In the place before, the
		// emitted token makes a block's hash known.
		place := r.computed % e.cfg.BlockSize
		if place == 0 || r.known()-r.computed != 1 {
			return 0
		}
		passes = min(passes, e.cfg.BlockSize-2-place, r.MaxTokens-len(r.answer)-1)
	}
	return max(0, passes)
}

// beginQuiet plans a quiet pass: the plan stays.
func (e *Engine) beginQuiet() {
	e.quiet--
	e.isQuiet = true
	e.clearResult()
	for i := range e.plan {
		e.plan[i].r.work = i
	}
}

// endQuiet ends a quiet pass, of which requests may have been cancelled. One that ends here ends the quiet.
func (e *Engine) endQuiet() {
	for i := range e.plan {
		r := e.plan[i].r
		if r == nil {
			continue
		}
		r.work = -1
		r.computed++
		e.emit(r)
		if r.state == done {
			e.quiet = 0
		}
	}
	e.isQuiet = false
}
