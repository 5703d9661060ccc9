package top

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/doctor"
	"github.com/stator-project/stator/internal/decisionlog"
)

// maxAsked bounds the routers that are asked at one time.
const maxAsked = 16

// Readers reads routers of one fleet as one. It belongs to one goroutine, apart from Explain.
type Readers []*Reader

// Read returns the state of all routers that answer: the sums of what each of them has decided, and the fleet as the first one knows it. A
// router that does not answer is named in Ready. It is an error if none does.
func (all Readers) Read(ctx context.Context, now time.Time) (Data, error) {
	data, errs := make([]Data, len(all)), make([]error, len(all))
	doctor.AskEach(len(all), maxAsked, func(i int) { data[i], errs[i] = all[i].Read(ctx, now) })
	if len(all) == 1 {
		return data[0], errs[0]
	}

	merged := Data{At: now, Ready: "ready"}
	counts := map[string]sums{}
	hasRates, answered := true, false
	for i, r := range all {
		state := data[i].Ready
		if errs[i] != nil {
			state = errs[i].Error()
		}
		if state != "ready" && merged.Ready == "ready" {
			merged.Ready = r.Port.Address + ": " + state
		}
		if errs[i] != nil {
			continue
		}

		answered = true
		hasRates = hasRates && r.hasRates
		for worker, s := range r.ended {
			counts[worker] = counts[worker].plus(s)
		}
		merged.add(&data[i])
	}
	if !answered {
		return Data{}, errors.Join(errs...)
	}

	merged.setFigures(counts, hasRates)
	slices.SortStableFunc(merged.Decisions, func(a, b decisionlog.Decision) int { return b.At.Compare(a.At) })
	merged.Decisions = merged.Decisions[:min(len(merged.Decisions), maxDecisions)]
	return merged, nil
}

// add adds the reading of a router, apart from figures. Routers publish their bookings to each other, so that those of a rank are no sum.
func (d *Data) add(from *Data) {
	for _, r := range from.Ranks {
		same := func(have Rank) bool { return have.Worker == r.Worker && have.Rank.Rank == r.Rank.Rank }
		i := slices.IndexFunc(d.Ranks, same)
		if i < 0 {
			d.Ranks = append(d.Ranks, r)
			continue
		}
		have := &d.Ranks[i]
		have.Booked = max(have.Booked, r.Booked)
		if have.Cache == "exact" {
			have.Cache, have.CacheReason = r.Cache, r.CacheReason
		}
	}

	for _, q := range from.Queue {
		i := slices.IndexFunc(d.Queue, func(have Waiting) bool { return have.Model == q.Model && have.Class == q.Class })
		if i < 0 {
			d.Queue = append(d.Queue, q)
			continue
		}
		d.Queue[i].Requests += q.Requests
		d.Queue[i].Tokens += q.Tokens
		d.Queue[i].Cached += q.Cached
	}

	d.Decisions = append(d.Decisions, from.Decisions...)
	d.Last = together(d.Last, from.Last)
}

// together returns the rates of two routers, and the times of the slower one: quantiles have no sum.
func together(a, b *history.Point) *history.Point {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := *a
	sum.Picked += b.Picked
	sum.Refused += b.Refused
	sum.Failed += b.Failed
	sum.Retried += b.Retried
	sum.Prompt += b.Prompt
	sum.Cached += b.Cached
	sum.Answer += b.Answer
	sum.First50, sum.First95 = max(a.First50, b.First50), max(a.First95, b.First95)
	return &sum
}

// Explain returns the text of a decision of any router, or why there is none. It may run beside Read.
func (all Readers) Explain(ctx context.Context, id string) (text string) {
	for _, r := range all {
		var status int
		text, status = r.explain(ctx, id)
		if status == http.StatusOK {
			break
		}
	}
	return text
}
