package route

import (
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// refusal returns the reason why no rank can take a request; nil if a rank is free. Hints are checked before
// states, and states before load.
func (f *field) refusal(q *asked, now time.Time) *refusal {
	switch {
	case f.free > 0:
		return nil
	case len(f.ranks) > 0:
		return f.refuseBusy(q, now)
	case f.pool > 0 && f.hint != notExcluded && f.hint != excludedByFailure:
		return f.refuseExcluded(q)
	}

	retryAfter := 10 * time.Second
	if f.states[fleet.Starting] > 0 || q.model.Loadable {
		retryAfter = 2 * time.Second
	}
	states := f.stateSummary()
	switch {
	case states == "" && q.model.Loadable:
		states = "none of its workers has this adapter loaded, and one is asked to load it"
	case states == "" && q.model.Adapter != "":
		states = "none of its workers has this adapter loaded"
	case states == "":
		states = "it has none"
	case q.isRestricted():
		states = "of those that may take this request " + states
	}
	return refuse(ReasonNoReadyWorker, 0, retryAfter, q.model.name, states)
}

// refuseBusy refuses a request whose ranks are all busy.
func (f *field) refuseBusy(q *asked, now time.Time) *refusal {
	retryAfter, status := wholeSeconds(f.leastWait(now)), q.model.Busy.status()
	if q.worker != "" {
		return refuse(ReasonPinnedBusy, status, retryAfter, clip(q.worker))
	}
	ranks := "The only rank that may take this request is"
	if n := len(f.ranks); n > 1 {
		ranks = fmt.Sprintf("All %d ranks that may take this request are", n)
	}
	return refuse(ReasonBusy, status, retryAfter, ranks)
}

// refuseExcluded refuses a request whose hints exclude every rank of its pool.
func (f *field) refuseExcluded(q *asked) *refusal {
	model := q.model.name
	switch f.hint {
	case excludedByAllowed:
		return refuse(ReasonNoAllowedWorker, 0, 0, clip(strings.Join(q.allowed, ", ")), model)
	case excludedByWorker:
		if len(q.allowed) > 0 {
			return refuse(ReasonWorkerNotFound, 0, 0, clip(q.worker), "is not among the allowed workers that serve", model, "allow it")
		}
		return refuse(ReasonWorkerNotFound, 0, 0, clip(q.worker), "does not serve", model, "none")
	case excludedByRank:
		return refuse(ReasonRankNotFound, 0, 0, q.rank)
	default:
		return refuse(ReasonNoTaintedWorker, 0, 0, clip(strings.Join(q.required, ", ")))
	}
}
