package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/predict"
	"github.com/stator-project/stator/internal/route/programs"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// isHeldBack reports whether a step of a program is held back: the caches have no room for its context beside the contexts of the programs
// that are there. All steps of a program together are held back for at most half of the longest wait, and for less if programs are short.
func (r *Router) isHeldBack(m *serving.Model, role fleet.Role, step programs.Step, now time.Time) bool {
	if !m.Programs || step.Session == 0 {
		return false
	}
	capacity := 0
	ranks := eligible.RanksFor(m, r.fleet.Snapshot(), role)
	for i := range ranks {
		blocks := ranks[i].Worker.Blocks
		if blocks == 0 {
			return false // it is not known
		}
		capacity += blocks * m.BlocksIn(ranks[i].Worker) * m.BlockSize
	}
	return !r.queues.of(m).programs.Admits(step, capacity, m.MaxWait/2, now)
}

// endHold records that a request is not held back any more.
func (wt *waiting) endHold(t *ticket, now time.Time) {
	if t.held {
		t.held = false
		wt.programs.EndHold(t.asked.Session, now.Sub(t.wait.Since), now)
	}
}

// step returns the request as a step of its program. What is cached matters for models that hold programs back alone.
func (w *workspace) step(q *request.Prepared) programs.Step {
	s := programs.Step{Session: q.Session, Tokens: q.Tokens}
	if q.Model.Programs && s.Session != 0 {
		s.Cached = w.mostCached(q.Model.BlockSize)
	}
	return s
}

// endProgramStep records that a step of a program has ended, if its pool holds programs back.
func (r *Router) endProgramStep(k *pick.Booking, made *predict.Promise, now time.Time) {
	if m := r.model(k.Rank.Worker.Model); m != nil && m.Programs && made != nil && made.Session != 0 {
		r.queues.of(m).programs.Ended(made.Session, now)
	}
}
