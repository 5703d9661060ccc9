package eligible

import (
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
)

// Refusal returns the reason why no rank can take a request; nil if a rank is free. Hints are checked before
// states, and states before load.
func (f *Field) Refusal(q *request.Prepared, now time.Time) *decision.Refusal {
	switch {
	case f.Free > 0:
		return nil
	case len(f.Ranks) > 0:
		return f.refuseBusy(q, now)
	case f.pool > 0 && f.hint != request.NotExcluded && f.hint > request.ExcludedBySubset:
		return f.refuseExcluded(q)
	}

	retryAfter := 10 * time.Second
	if f.pool > 0 && f.hint == request.ExcludedBySubset {
		return decision.Refuse(decision.ReasonNoReadyWorker, 0, retryAfter, q.Model.Name, "the gateway allows none of its endpoints")
	}
	if f.states[fleet.Starting] > 0 || q.Model.Loadable {
		retryAfter = 2 * time.Second
	}
	states := f.stateSummary()
	switch {
	case states == "" && q.Model.Loadable:
		states = "none of its workers has this adapter loaded, and one is asked to load it"
	case states == "" && q.Model.Adapter != "":
		states = "none of its workers has this adapter loaded"
	case states == "":
		states = "it has none"
	case q.IsRestricted():
		states = "of those that may take this request " + states
	}
	return decision.Refuse(decision.ReasonNoReadyWorker, 0, retryAfter, q.Model.Name, states)
}

// refuseBusy refuses a request whose ranks are all busy.
func (f *Field) refuseBusy(q *request.Prepared, now time.Time) *decision.Refusal {
	retryAfter, status := decision.WholeSeconds(f.leastWait(now)), q.Model.Busy.RefusalStatus()
	if q.Worker != "" {
		return decision.Refuse(decision.ReasonPinnedBusy, status, retryAfter, decision.Clip(q.Worker))
	}
	ranks := "The only rank that may take this request is"
	if n := len(f.Ranks); n > 1 {
		ranks = fmt.Sprintf("All %d ranks that may take this request are", n)
	}
	return decision.Refuse(decision.ReasonBusy, status, retryAfter, ranks)
}

// refuseExcluded refuses a request whose hints exclude every rank of its pool.
func (f *Field) refuseExcluded(q *request.Prepared) *decision.Refusal {
	model := q.Model.Name
	switch f.hint {
	case request.ExcludedByAllowed:
		return decision.Refuse(decision.ReasonNoAllowedWorker, 0, 0, decision.Clip(strings.Join(q.Allowed, ", ")), model)
	case request.ExcludedByWorker:
		if len(q.Allowed) > 0 {
			return decision.Refuse(decision.ReasonWorkerNotFound, 0, 0,
				decision.Clip(q.Worker), "is not among the allowed workers that serve", model, "allow it")
		}
		return decision.Refuse(decision.ReasonWorkerNotFound, 0, 0, decision.Clip(q.Worker), "does not serve", model, "none")
	case request.ExcludedByRank:
		return decision.Refuse(decision.ReasonRankNotFound, 0, 0, q.Rank)
	default:
		return decision.Refuse(decision.ReasonNoTaintedWorker, 0, 0, decision.Clip(strings.Join(q.Required, ", ")))
	}
}
