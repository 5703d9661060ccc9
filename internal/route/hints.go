package route

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/pick"
)

// hints are the wishes of a request for its routing: the hints of its body and the hints of trusted headers, as one. Strings
// alias the request; see clone.
type hints struct {
	role          fleet.Role
	allowed       []string // workers, sorted; empty means every worker
	except        []string // workers at which the request has failed
	worker        string   // the only worker; empty means any
	rank          int      // the only rank; -1 means any
	class, tenant string
	strict        int           // strict priority
	headStart     time.Duration // in the queue
	deadline      time.Duration // for the first token, from the request's arrival; 0 means none
	outputTokens  int           // expected length of the answer; 0 is unknown
	required      []string      // taints, sorted
	preferred     []prompt.Preference
	prefillAt     string // openai.PrefillRemote, openai.PrefillLocal, or empty
	// readsNoCache is set for a request whose whole prompt the engine computes, whatever is cached.
	readsNoCache bool

	overlapWeight, prefillLoadScale, temperature prompt.Override
}

// readHints merges the hints of the body with the hints of trusted headers, which take
// precedence. parsed may be nil.
func readHints(req *Request, parsed *prompt.Request) hints {
	h := hints{rank: -1, role: req.Role, except: req.Except, tenant: req.Tenant, readsNoCache: parsed != nil && parsed.PromptLogprobs}
	if parsed != nil && !req.IgnoreBodyHints {
		if h.tenant == "" {
			h.tenant = parsed.User
		}
		h.override(parsed.Hints)
	}
	h.override(req.Hints)
	if req.Local {
		h.prefillAt = openai.PrefillLocal
	}

	if len(h.allowed) > 0 {
		h.allowed = slices.Sorted(slices.Values(h.allowed))
	}
	if len(h.required) > 0 {
		h.required = slices.Sorted(slices.Values(h.required))
	}
	return h
}

// override replaces the hints that are present in given, which may be nil.
func (h *hints) override(given *prompt.Hints) {
	if given == nil {
		return
	}
	overrideIf(&h.overlapWeight, given.OverlapWeight, given.OverlapWeight.Set)
	overrideIf(&h.prefillLoadScale, given.PrefillLoadScale, given.PrefillLoadScale.Set)
	overrideIf(&h.temperature, given.Temperature, given.Temperature.Set)
	overrideIf(&h.allowed, given.Workers, len(given.Workers) > 0)
	overrideIf(&h.worker, given.Worker, given.Worker != "")
	overrideIf(&h.rank, given.Rank, given.Rank >= 0)
	overrideIf(&h.prefillAt, given.Prefill, given.Prefill != "")
	overrideIf(&h.class, given.Class, given.Class != "")
	overrideIf(&h.tenant, given.Tenant, given.Tenant != "")
	overrideIf(&h.deadline, given.Deadline, given.Deadline > 0)
	overrideIf(&h.headStart, given.Priority, given.Priority > 0)
	overrideIf(&h.strict, given.Strict, given.Strict > 0)
	overrideIf(&h.outputTokens, given.OutputTokens, given.OutputTokens > 0)
	overrideIf(&h.required, given.Required, len(given.Required) > 0)
	overrideIf(&h.preferred, given.Preferred, len(given.Preferred) > 0)
}

// overrideIf sets *field to value if present is true.
func overrideIf[T any](field *T, value T, present bool) {
	if present {
		*field = value
	}
}

// policyInput returns the values of the request that a policy compares.
func (h *hints) policyInput(session string) pick.Request {
	return pick.Request{Session: session, Temperature: h.temperature.Value, HasTemperature: h.temperature.Set}
}

// isRestricted reports whether some ready ranks of the pool may be closed to the request.
func (h *hints) isRestricted() bool {
	return len(h.except) > 0 || len(h.allowed) > 0 || h.worker != "" || h.rank >= 0 || len(h.required) > 0
}

// exclusion is the first hint that excludes a rank, in the order in which hints are checked. A later one
// means that the rank came further, so the largest among a pool's ranks is the one to report.
type exclusion int

const (
	excludedByFailure exclusion = iota // the request has failed at the worker
	excludedByAllowed                  // the worker is not among the allowed workers
	excludedByWorker                   // another worker is named
	excludedByRank                     // another rank is named
	excludedByTaints                   // a required taint is missing
	notExcluded
)

// excludes returns the first hint that closes a rank to the request.
func (h *hints) excludes(r *fleet.Rank) exclusion {
	if slices.Contains(h.except, r.Worker.Name) {
		return excludedByFailure
	}
	if len(h.allowed) > 0 {
		if _, ok := slices.BinarySearch(h.allowed, r.Worker.Name); !ok {
			return excludedByAllowed
		}
	}
	switch {
	case h.worker != "" && h.worker != r.Worker.Name:
		return excludedByWorker
	case h.rank >= 0 && h.rank != r.Number:
		return excludedByRank
	case slices.ContainsFunc(h.required, func(t string) bool { return !r.Worker.Taints.Has(t) }):
		return excludedByTaints
	}
	return notExcluded
}

// preference is the factor on a worker's cost for the taints that the request prefers. It is Dynamo's: 1 if no preferred taint matches,
// and 0.37 to 2.72 if some do.
func (h *hints) preference(w *fleet.Worker) float64 {
	sum := 0.0
	for i := range h.preferred {
		if p := &h.preferred[i]; w.Taints.Has(p.Taint) {
			sum += p.Weight
		}
	}
	return math.Exp(-math.Tanh(sum))
}

// forQueue returns a copy for a request that waits, whose memory is bounded and which does not alias the request's body. It leaves
// out allowed workers and preferred taints that no rank of the pool has, because clients may invent such names. The other names have
// been found in the pool already.
func (h *hints) forQueue(pool []fleet.Rank) hints {
	kept := *h
	kept.worker = strings.Clone(h.worker)
	kept.class = strings.Clone(keptLabel(h.class))
	kept.tenant = strings.Clone(keptLabel(h.tenant))
	kept.prefillAt = strings.Clone(h.prefillAt)
	kept.required = slices.Compact(cloneStrings(h.required))

	kept.allowed, kept.preferred = nil, nil
	if len(h.allowed) > 0 {
		for i := range pool {
			name := pool[i].Worker.Name
			if _, ok := slices.BinarySearch(h.allowed, name); ok && pool[i].Number == 0 {
				kept.allowed = append(kept.allowed, name)
			}
		}
		if len(kept.allowed) == 0 { // they have just left, and an empty list would allow every worker
			kept.allowed = []string{clip(h.allowed[0])}
		}
	}
	for _, p := range h.preferred {
		if slices.ContainsFunc(pool, func(r fleet.Rank) bool { return r.Worker.Taints.Has(p.Taint) }) {
			p.Taint = strings.Clone(p.Taint)
			kept.preferred = append(kept.preferred, p)
		}
	}
	return kept
}

// cloneStrings copies a list and the memory of its strings.
func cloneStrings(list []string) []string {
	list = slices.Clone(list)
	for i := range list {
		list[i] = strings.Clone(list[i])
	}
	return list
}

// lane names the set of ranks that may take the request: requests with the same lane may go to the same
// ranks. Names of workers cannot hold a comma, so lanes of different sets differ.
func (h *hints) lane() string {
	if !h.isRestricted() {
		if h.role == fleet.Aggregated {
			return ""
		}
		return h.role.String()
	}

	workers := strings.Join(h.allowed, ",")
	if h.worker != "" {
		workers = h.worker
	}
	lane := strings.Join(append([]string{h.role.String(), workers + "/" + strconv.Itoa(h.rank)}, h.required...), ",")
	return keptLabel(lane)
}

// laneFor names the set of ranks that may take a request for the model; see [hints.lane]. Names of adapters and of workers
// cannot hold a line break, so lanes of different sets differ.
func (h *hints) laneFor(m *model) string {
	if m.Adapter == "" {
		return h.lane()
	}
	return keptLabel(h.lane() + "\n" + m.name)
}
