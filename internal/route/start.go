package route

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/serving"
)

// starts returns whether a worker starts for requests for a model that wait.
func (r *Router) starts(m *serving.Model) Start {
	if m.Hold == 0 || r.cfg.Starts == nil {
		return Start{Not: "none starts"}
	}
	return r.cfg.Starts(m.Pool)
}

// hasDecode reports whether requests for a model go to decode workers: those that it has, or those that start, if it has none at all.
func (r *Router) hasDecode(m *serving.Model) bool {
	snap := r.fleet.Snapshot()
	if len(snap.Pool(m.Pool, fleet.Decode)) > 0 {
		return true
	}
	return m.Hold > 0 && len(snap.Pool(m.Pool, fleet.Aggregated)) == 0 && r.starts(m).Decode
}

// lacksWorker reports whether a request in a role cannot be served for want of a ready worker: of its role, or for decode workers of one
// that computes prompts.
func (r *Router) lacksWorker(m *serving.Model, role fleet.Role) bool {
	snap := r.fleet.Snapshot()
	return !eligible.HasReady(m, snap, role) || role == fleet.Decode && !eligible.HasReady(m, snap, fleet.Prefill)
}

// unknownStart is the time to retry after where it is not known when a worker will be ready.
const unknownStart = 10 * time.Second

// startIn returns the time until a worker is expected to be ready. waiting.mu is held.
func (wt *waiting) startIn(s Start, now time.Time) time.Duration {
	rest := s.After - now.Sub(wt.empty)
	if rest <= 0 || !s.ok() {
		return unknownStart // it takes longer than starts do
	}
	return rest
}

// refuseStart is the refusal of a request that has waited for a start for too long. waiting.mu is held.
func (wt *waiting) refuseStart(m *serving.Model, s Start, d *decision.Decision) *decision.Refusal {
	return decision.Refuse(decision.ReasonNoReadyWorker, 0, decision.RoundUp(wt.startIn(s, d.At)), m.Name,
		fmt.Sprintf("none has become ready in %.1f s, while this request waited", d.Wait.Took.Seconds()))
}
