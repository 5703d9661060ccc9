package route

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
)

// asks is what a request asks of its routing.
type asks struct {
	role           fleet.Role
	allowed        []string // sorted; empty means every worker
	worker         string   // empty means any
	rank           int      // -1 means any
	class, tenant  string
	strict         int
	jump, deadline time.Duration
	answer         int // tokens; 0 is unknown
	required       []string
	preferred      []prompt.Preference

	overlap, scale, temperature prompt.Override
}

// hear takes in the hints of the body, then those of trusted headers, which go before.
func (s *scratch) hear(req *Request) {
	a := &s.asks
	a.tenant = req.Tenant
	if s.parsed != nil && !req.Deaf {
		if a.tenant == "" {
			a.tenant = s.parsed.User
		}
		a.add(s.parsed.Hints)
	}
	a.add(req.Hints)
	if len(a.allowed) > 0 {
		a.allowed = slices.Sorted(slices.Values(a.allowed))
	}
	if len(a.required) > 0 {
		a.required = slices.Sorted(slices.Values(a.required))
	}
}

func (a *asks) add(h *prompt.Hints) {
	if h == nil {
		return
	}
	either(&a.overlap, h.OverlapWeight, h.OverlapWeight.Set)
	either(&a.scale, h.PrefillScale, h.PrefillScale.Set)
	either(&a.temperature, h.Temperature, h.Temperature.Set)
	either(&a.allowed, h.Workers, len(h.Workers) > 0)
	either(&a.worker, h.Worker, h.Worker != "")
	either(&a.rank, h.Rank, h.Rank >= 0)
	either(&a.class, h.Class, h.Class != "")
	either(&a.deadline, h.Deadline, h.Deadline > 0)
	either(&a.jump, h.Priority, h.Priority > 0)
	either(&a.strict, h.Strict, h.Strict > 0)
	either(&a.answer, h.OutputTokens, h.OutputTokens > 0)
	either(&a.required, h.Required, len(h.Required) > 0)
	either(&a.preferred, h.Preferred, len(h.Preferred) > 0)
}

func either[T any](have *T, given T, is bool) {
	if is {
		*have = given
	}
}

// restricted says whether the request may not go everywhere.
func (a *asks) restricted() bool {
	return len(a.allowed) > 0 || a.worker != "" || a.rank >= 0 || len(a.required) > 0
}

// bar is what keeps a request from a rank: the first that does, in this order.
type bar int

const (
	notAllowed bar = iota // its allowed workers
	notPinned             // its worker
	notRanked             // its rank
	notTainted            // the taints it requires
	nothing
)

func (a *asks) bars(r *fleet.Rank) bar {
	if len(a.allowed) > 0 {
		if _, ok := slices.BinarySearch(a.allowed, r.Worker.Name); !ok {
			return notAllowed
		}
	}
	switch {
	case a.worker != "" && a.worker != r.Worker.Name:
		return notPinned
	case a.rank >= 0 && a.rank != r.Number:
		return notRanked
	case slices.ContainsFunc(a.required, func(t string) bool { return !r.Worker.Taints.Has(t) }):
		return notTainted
	}
	return nothing
}

// preference is what the cost of a worker is multiplied by for the taints that the request prefers,
// as Dynamo does it: 1 where none matches, 0.37 to 2.72 where some do.
func (a *asks) preference(w *fleet.Worker) float64 {
	sum := 0.0
	for i := range a.preferred {
		if p := &a.preferred[i]; w.Taints.Has(p.Taint) {
			sum += p.Weight
		}
	}
	return math.Exp(-math.Tanh(sum))
}

// lane names the set of ranks that may take the request. Names of workers cannot hold a comma.
func (a *asks) lane() string {
	if !a.restricted() {
		if a.role == fleet.Aggregated {
			return ""
		}
		return a.role.String()
	}
	lane := strings.Join(a.allowed, ",")
	if a.worker != "" {
		lane = a.worker
	}
	return strings.Join(append([]string{a.role.String(), lane + "/" + strconv.Itoa(a.rank)}, a.required...), ",")
}

// kept is a copy whose strings outlive the request's body.
func (a *asks) kept() asks {
	k := *a
	k.allowed, k.required, k.preferred = slices.Clone(a.allowed), slices.Clone(a.required), slices.Clone(a.preferred)
	for _, names := range [][]string{k.allowed, k.required} {
		for i := range names {
			names[i] = strings.Clone(names[i])
		}
	}
	for i := range k.preferred {
		k.preferred[i].Taint = strings.Clone(k.preferred[i].Taint)
	}
	k.worker, k.class, k.tenant = strings.Clone(a.worker), strings.Clone(a.class), strings.Clone(a.tenant)
	return k
}

// answerBlocks is what an answer whose length is known occupies: half of its blocks, its mean over
// the time that it grows. An answer of unknown length adds nothing, as everybody's does.
func (a *asks) answerBlocks(blockSize int) int { return a.answer / (2 * blockSize) }

// judge is the model's cost function with what the request overrides. Of [cost.Delay] that is the
// worth of cached tokens alone: what it weighs prefill by is learned.
func (s *scratch) judge(m *model) cost.Function {
	a := &s.asks
	by := m.choice(a.role).Cost
	if !a.overlap.Set && !a.scale.Set {
		return by
	}
	switch f := by.(type) {
	case *cost.Weights:
		s.weights = *f
		either(&s.weights.Overlap, a.overlap.Value, a.overlap.Set)
		either(&s.weights.PrefillScale, a.scale.Value, a.scale.Set)
		return &s.weights
	case *cost.Delay:
		s.delay = *f
		for t := range s.delay.Tier {
			if a.overlap.Set {
				s.delay.Tier[t] *= a.overlap.Value
			}
		}
		return &s.delay
	}
	return by
}
