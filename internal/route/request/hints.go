package request

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/serving"
)

// Hints are the wishes of a request for its routing: the hints of its body and the hints of trusted headers, as one. Strings
// alias the request; see ForQueue.
type Hints struct {
	Workers
	Allowed       []string // workers, sorted; empty means every worker
	Worker        string   // the only worker; empty means any
	Rank          int      // the only rank; -1 means any
	Class, Tenant string
	Strict        int           // strict priority
	HeadStart     time.Duration // in the queue
	Deadline      time.Duration // for the first token, from the request's arrival; 0 means none
	OutputTokens  int           // expected length of the answer; 0 is unknown
	Pin           time.Duration // of the prompt's blocks in the store of KV blocks; 0 is none
	Required      []string      // taints, sorted
	Speculates    bool          // the prefix of the next turn is wanted in a cache
	Preferred     []prompt.Preference
	PrefillAt     string // openai.PrefillRemote, openai.PrefillLocal, or empty
	// ReadsNoCache is set for a request whose whole prompt the engine computes, whatever is cached.
	ReadsNoCache bool

	OverlapWeight, PrefillLoadScale, temperature prompt.Override
}

// ReadHints merges the hints of the body with the hints of trusted headers, which take
// precedence. parsed may be nil.
func ReadHints(req *Request, parsed *prompt.Request) Hints {
	h := Hints{Workers: req.Workers, Rank: -1, Tenant: req.Tenant}
	h.ReadsNoCache = parsed != nil && parsed.PromptLogprobs
	if parsed != nil && !req.IgnoreBodyHints {
		if h.Tenant == "" {
			h.Tenant = parsed.User
		}
		h.override(parsed.Hints)
	}
	h.override(req.Hints)
	if h.Local {
		h.PrefillAt = openai.PrefillLocal
	}

	if len(h.Allowed) > 0 {
		h.Allowed = slices.Sorted(slices.Values(h.Allowed))
	}
	if len(h.Required) > 0 {
		h.Required = slices.Sorted(slices.Values(h.Required))
	}
	return h
}

// override replaces the hints that are present in given, which may be nil.
func (h *Hints) override(given *prompt.Hints) {
	if given == nil {
		return
	}
	OverrideIf(&h.OverlapWeight, given.OverlapWeight, given.OverlapWeight.Set)
	OverrideIf(&h.PrefillLoadScale, given.PrefillLoadScale, given.PrefillLoadScale.Set)
	OverrideIf(&h.temperature, given.Temperature, given.Temperature.Set)
	OverrideIf(&h.Allowed, given.Workers, len(given.Workers) > 0)
	OverrideIf(&h.Worker, given.Worker, given.Worker != "")
	OverrideIf(&h.Rank, given.Rank, given.Rank >= 0)
	OverrideIf(&h.PrefillAt, given.Prefill, given.Prefill != "")
	OverrideIf(&h.Class, given.Class, given.Class != "")
	OverrideIf(&h.Tenant, given.Tenant, given.Tenant != "")
	OverrideIf(&h.Deadline, given.Deadline, given.Deadline > 0)
	OverrideIf(&h.HeadStart, given.Priority, given.Priority > 0)
	OverrideIf(&h.Strict, given.Strict, given.Strict > 0)
	OverrideIf(&h.OutputTokens, given.OutputTokens, given.OutputTokens > 0)
	OverrideIf(&h.Pin, given.Pin, given.Pin > 0)
	OverrideIf(&h.Speculates, given.SpeculativePrefill.Value > 0, given.SpeculativePrefill.Set)
	OverrideIf(&h.Required, given.Required, len(given.Required) > 0)
	OverrideIf(&h.Preferred, given.Preferred, len(given.Preferred) > 0)
}

// OverrideIf sets *field to value if present is true.
func OverrideIf[T any](field *T, value T, present bool) {
	if present {
		*field = value
	}
}

// PolicyInput returns the values of the request that a policy compares.
func (h *Hints) PolicyInput(session string) pick.Request {
	return pick.Request{Session: session, Temperature: h.temperature.Value, HasTemperature: h.temperature.Set}
}

// IsRestricted reports whether some ready ranks of the pool may be closed to the request.
func (h *Hints) IsRestricted() bool {
	return len(h.Except) > 0 || h.Only != nil || h.Revision != "" ||
		len(h.Allowed) > 0 || h.Worker != "" || h.Rank >= 0 || len(h.Required) > 0
}

// Exclusion is the first hint that excludes a rank, in the order in which hints are checked. A later one
// means that the rank came further, so the largest among a pool's ranks is the one to report.
type Exclusion int

const (
	ExcludedByFailure Exclusion = iota // the request has failed at the worker, or another part of it is at another revision
	ExcludedBySubset                   // the gateway does not allow its endpoint
	ExcludedByAllowed                  // the worker is not among the allowed workers
	ExcludedByWorker                   // another worker is named
	ExcludedByRank                     // another rank is named
	excludedByTaints                   // a required taint is missing
	NotExcluded
)

// Excludes returns the first hint that closes a rank to the request.
func (h *Hints) Excludes(r *fleet.Rank) Exclusion {
	if slices.Contains(h.Except, r.Worker.Name) {
		return ExcludedByFailure
	}
	if !r.Worker.ExchangesCaches(h.Revision) {
		return ExcludedByFailure
	}
	if h.Only != nil && !h.isInSubset(r.Worker.Address) {
		return ExcludedBySubset
	}
	if len(h.Allowed) > 0 {
		if _, ok := slices.BinarySearch(h.Allowed, r.Worker.Name); !ok {
			return ExcludedByAllowed
		}
	}
	switch {
	case h.Worker != "" && h.Worker != r.Worker.Name:
		return ExcludedByWorker
	case h.Rank >= 0 && h.Rank != r.Number:
		return ExcludedByRank
	case slices.ContainsFunc(h.Required, func(t string) bool { return !r.Worker.Taints.Has(t) }):
		return excludedByTaints
	}
	return NotExcluded
}

// isInSubset reports whether the endpoints that may take the request contain an address, or its IP.
func (h *Hints) isInSubset(address string) bool {
	if _, ok := slices.BinarySearch(h.Only, address); ok {
		return true
	}
	ip := address[:max(0, strings.LastIndexByte(address, ':'))]
	if _, ok := slices.BinarySearch(h.Only, ip); ok {
		return true
	}
	_, ok := slices.BinarySearch(h.Only, strings.Trim(ip, "[]"))
	return ok
}

// Preference is the factor on a worker's cost for the taints that the request prefers. It is Dynamo's: 1 if no preferred taint matches,
// and 0.37 to 2.72 if some do.
func (h *Hints) Preference(w *fleet.Worker) float64 {
	sum := 0.0
	for i := range h.Preferred {
		if p := &h.Preferred[i]; w.Taints.Has(p.Taint) {
			sum += p.Weight
		}
	}
	return math.Exp(-math.Tanh(sum))
}

// ForQueue returns a copy for a request that waits, whose memory is bounded and which does not alias the request's body. It leaves
// out allowed workers, endpoints and preferred taints that no rank of the pool has, because clients may invent such names. The other names
// have been found in the pool already.
func (h *Hints) ForQueue(pool []fleet.Rank) Hints {
	kept := *h
	kept.Worker = strings.Clone(h.Worker)
	kept.Class = strings.Clone(decision.Label(h.Class))
	kept.Tenant = strings.Clone(decision.Label(h.Tenant))
	kept.PrefillAt = strings.Clone(h.PrefillAt)
	kept.Required = slices.Compact(cloneStrings(h.Required))

	kept.Allowed, kept.Preferred = nil, nil
	if len(h.Allowed) > 0 {
		for i := range pool {
			name := pool[i].Worker.Name
			if _, ok := slices.BinarySearch(h.Allowed, name); ok && pool[i].Number == 0 {
				kept.Allowed = append(kept.Allowed, name)
			}
		}
		if len(kept.Allowed) == 0 { // they have just left, and an empty list would allow every worker
			kept.Allowed = []string{decision.Clip(h.Allowed[0])}
		}
	}
	if h.Only != nil {
		kept.Only = []string{}
		for i := range pool {
			if address := pool[i].Worker.Address; pool[i].Number == 0 && h.isInSubset(address) {
				kept.Only = append(kept.Only, address)
			}
		}
		slices.Sort(kept.Only)
	}
	for _, p := range h.Preferred {
		if slices.ContainsFunc(pool, func(r fleet.Rank) bool { return r.Worker.Taints.Has(p.Taint) }) {
			p.Taint = strings.Clone(p.Taint)
			kept.Preferred = append(kept.Preferred, p)
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
// ranks. Names of workers cannot hold a comma or a
// semicolon, so lanes of different sets differ.
func (h *Hints) lane() string {
	if !h.IsRestricted() {
		if h.Role == fleet.Aggregated {
			return ""
		}
		return h.Role.String()
	}

	workers := strings.Join(h.Allowed, ",")
	if h.Worker != "" {
		workers = h.Worker
	}
	lane := strings.Join(append([]string{h.Role.String(), workers + "/" + strconv.Itoa(h.Rank)}, h.Required...), ",")
	if h.Only != nil {
		lane += ";" + strings.Join(h.Only, ",")
	}
	return decision.Label(lane)
}

// LaneFor names the set of ranks that may take a request for the model; see [Hints.lane]. Names of adapters and of workers
// cannot hold a line break, so lanes of different sets differ.
func (h *Hints) LaneFor(m *serving.Model) string {
	if m.Adapter == "" {
		return h.lane()
	}
	return decision.Label(h.lane() + "\n" + m.Name)
}
