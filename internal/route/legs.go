package route

import (
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// chooseLegs decides whether a prefill worker computes the prompt of a request for decode workers, whose field is in w. It compares the
// costs of both ways: how long the prompt waits and is computed there, its transfer, and how much that holds up other requests. A decode
// worker that holds much of the prompt, or is idle, computes the rest by itself. It returns a refusal if decode workers compute no
// prompts, and no prefill worker can.
func (r *Router) chooseLegs(w *workspace, q *request.Prepared, d *decision.Decision) *decision.Refusal {
	q.Remote, q.Prefills = false, q.Prefills[:0]
	transfer := w.field.Ranks[0].Worker.Transfer
	at := serving.Prefill(q.PrefillAt)
	if at == "" {
		at = q.Model.Prefill
	}
	free := q.Splits && r.freePrefill(w, q, d)

	switch {
	case transfer == fleet.TransferBootstrap:
		q.Remote, d.Legs = free, decision.Legs{Why: decision.LegsApart}
		if !free {
			return refuseApart(q)
		}
	case !q.Splits, transfer.HasAddress() && !r.cfg.Relayed:
		d.Legs = decision.Legs{Why: decision.LegsNoTransfer}
	case at == serving.PrefillLocal:
		d.Legs = decision.Legs{Why: decision.LegsAsked}
	case !free:
		d.Legs = decision.Legs{Why: decision.LegsNoPrefill}
	case at == serving.PrefillRemote:
		q.Remote, d.Legs = true, decision.Legs{Why: decision.LegsAsked}
	case q.Tokens == 0 || q.PolicyName != pick.KV:
		q.Remote, d.Legs = true, decision.Legs{Why: decision.LegsByPolicy}
	default:
		d.Legs = r.compareLegs(w, q, d)
		q.Remote = d.Legs.Prefill+d.Legs.Decode < d.Legs.Local
	}
	if q.Remote && !keepPartners(w) {
		q.Remote, d.Legs = false, decision.Legs{Why: decision.LegsNoPartner}
		if transfer == fleet.TransferBootstrap {
			return decision.Refuse(decision.ReasonNoReadyWorker, 0, 10*time.Second, q.Model.Name,
				"no prefill worker of a decode worker's revision is ready and free")
		}
	}
	if q.Remote {
		r.findPrefillSites(w, q, d, false)
	}
	d.Split = q.Remote
	return nil
}

// findPrefillSites finds the least cost of a prefill worker for each site, if places are known, or workers are of several revisions or
// slices: which decode worker is best depends on them. The prefill worker itself is chosen later, when the request is booked on its decode
// worker. Between both choices others may be booked, so these costs are an estimate.
//
// judged means that the costs of the prefill workers are known already, because both ways were compared.
func (r *Router) findPrefillSites(w *workspace, q *request.Prepared, d *decision.Decision, judged bool) {
	s := &w.legs
	if len(q.Prefills) > 0 || !s.field.SitesMatter() || !w.field.SitesMatter() {
		return
	}
	if !judged {
		r.judge.Field(&s.judged, &w.overlap, &s.asked, &s.field, d.At)
	}
	q.Prefills = s.judged.AppendSites(q.Prefills, &s.field)
}

// keepPartners leaves the decode workers that a free prefill worker can serve: one of the same revision, or of none. During a rollout a
// revision may have no prefill worker yet, or none any more. False means that no free decode worker has a partner; all of them stay then.
func keepPartners(w *workspace) bool {
	// All revisions but a few are equal, and mostly there is none.
	var few [4]string
	revisions := few[:0]
	for i := range w.legs.field.Free {
		revision := w.legs.field.Ranks[i].Worker.Revision
		if revision == "" {
			return true
		}
		if !slices.Contains(revisions, revision) {
			revisions = append(revisions, revision)
		}
	}

	fits := func(rank *fleet.Rank) bool {
		return rank.Worker.Revision == "" || slices.Contains(revisions, rank.Worker.Revision)
	}
	for i := range w.field.Free {
		if fits(&w.field.Ranks[i]) {
			w.field.Keep(fits)
			return true
		}
	}
	return false
}

// refuseApart refuses a request whose prompt no worker can compute.
func refuseApart(q *request.Prepared) *decision.Refusal {
	if q.Splits {
		return decision.Refuse(decision.ReasonNoReadyWorker, 0, 10*time.Second, q.Model.Name, "no prefill worker is ready and free")
	}
	return decision.RefuseError(openai.Invalid("", "not_transferable", "The model's workers compute a prompt on one engine and decode on "+
		"another one. They take one prompt for one answer, without echo and prompt_logprobs, at /v1/chat/completions and /v1/completions."))
}

// freePrefill finds the prefill workers for a request, and reports whether one is ready and free. The request's own hints are
// for the worker that answers.
func (r *Router) freePrefill(w *workspace, q *request.Prepared, d *decision.Decision) bool {
	p := &w.legs.asked
	*p = request.Prepared{
		Asked: request.Asked{Batch: q.Batch, Hints: request.Hints{
			Workers: request.Workers{Role: fleet.Prefill}, Rank: -1, OverlapWeight: q.OverlapWeight, PrefillLoadScale: q.PrefillLoadScale,
		}},
		Model: q.Model, Tokens: q.Tokens, Blocks: q.Blocks, Chain: q.Chain, Coarse: q.Coarse,
	}
	return r.finder.Find(&w.legs.field, p, d.At).Free > 0
}

// compareLegs returns the costs of both ways. freePrefill has found the prefill workers.
func (r *Router) compareLegs(w *workspace, q *request.Prepared, d *decision.Decision) decision.Legs {
	s := &w.legs
	legs := decision.Legs{Why: decision.LegsByCost}
	var computed time.Duration
	var others, hidden float64
	legs.Prefill, computed, others = r.judge.Field(&s.judged, &w.overlap, &s.asked, &s.field, d.At).LeastPrefill()

	q.Remote = false
	legs.Local = r.judge.Field(&s.judged, &w.overlap, q, &w.field, d.At).LeastLocal()
	q.Remote = true
	r.findPrefillSites(w, q, d, true)
	legs.Decode, hidden = r.judge.Field(&s.judged, &w.overlap, q, &w.field, d.At).LeastDecode(computed)
	legs.Prefill -= hidden * others
	return legs
}

// onward returns the transfer to the decode worker of a decision; the zero value if the worker's place is not known, or the decision has no
// booking (any more). Its tokens are those that the worker did not hold when it was picked: by now the index expects all of them there.
func (r *Router) onward(id string) (o request.Onward) {
	k, ok := r.bookings.Get(id)
	if !ok {
		return o
	}
	if place := k.Rank.Worker.Place(); place.IsKnown() {
		return request.Onward{Worker: k.Rank.Worker.Name, Place: place, Tokens: max(0, int(k.Prompt-k.Cached))}
	}
	return o
}
