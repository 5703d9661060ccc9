package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/pick"
)

// legsSpace is the memory of chooseLegs.
type legsSpace struct {
	asked  asked
	field  field // of prefill workers
	judged judged
}

// reset forgets the request.
func (s *legsSpace) reset() { s.asked = asked{} }

// chooseLegs decides whether a prefill worker computes the prompt of a request for decode workers, whose field is in w. It compares the
// costs of both ways: how long the prompt waits and is computed there, its transfer, and how much that holds up other requests. A decode
// worker that holds much of the prompt, or is idle, computes the rest by itself. It returns a refusal if decode workers compute no
// prompts, and no prefill worker can.
func (r *Router) chooseLegs(w *workspace, q *asked, d *Decision) *refusal {
	q.remote = false
	transfer := w.field.ranks[0].Worker.Transfer
	at := Prefill(q.prefillAt)
	if at == "" {
		at = q.model.Prefill
	}
	free := q.splits && r.freePrefill(w, q, d)

	switch {
	case transfer == fleet.TransferBootstrap:
		q.remote, d.Legs = free, Legs{Why: LegsApart}
		if !free {
			return refuseApart(q)
		}
	case !q.splits, transfer.HasAddress() && !r.cfg.Relayed:
		d.Legs = Legs{Why: LegsNoTransfer}
	case at == PrefillLocal:
		d.Legs = Legs{Why: LegsAsked}
	case !free:
		d.Legs = Legs{Why: LegsNoPrefill}
	case at == PrefillRemote:
		q.remote, d.Legs = true, Legs{Why: LegsAsked}
	case q.tokens == 0 || q.policyName != pick.KV:
		q.remote, d.Legs = true, Legs{Why: LegsByPolicy}
	default:
		d.Legs = r.compareLegs(w, q, d)
		q.remote = d.Legs.Prefill+d.Legs.Decode < d.Legs.Local
	}
	d.Split = q.remote
	return nil
}

// refuseApart refuses a request whose prompt no worker can compute.
func refuseApart(q *asked) *refusal {
	if q.splits {
		return refuse(ReasonNoReadyWorker, 0, 10*time.Second, q.model.name, "no prefill worker is ready and free")
	}
	return refuseError(openai.Invalid("", "not_transferable", "The model's workers compute a prompt on one engine and decode on "+
		"another one. They take one prompt for one answer, without echo and prompt_logprobs, at /v1/chat/completions and /v1/completions."))
}

// freePrefill finds the prefill workers for a request, and reports whether one is ready and free. The request's own hints are
// for the worker that answers.
func (r *Router) freePrefill(w *workspace, q *asked, d *Decision) bool {
	p := &w.legs.asked
	*p = asked{
		hints: hints{role: fleet.Prefill, rank: -1, overlapWeight: q.overlapWeight, prefillLoadScale: q.prefillLoadScale},
		model: q.model, batch: q.batch, tokens: q.tokens, blocks: q.blocks, chain: q.chain,
	}
	return r.finder.find(&w.legs.field, p, d.At).free > 0
}

// compareLegs returns the costs of both ways. freePrefill has found the prefill workers.
func (r *Router) compareLegs(w *workspace, q *asked, d *Decision) Legs {
	s := &w.legs
	legs := Legs{Why: LegsByCost}
	legs.Prefill = r.judge.field(&s.judged, &w.overlap, &s.asked, &s.field, d.At).least()

	q.remote = false
	legs.Local = r.judge.field(&s.judged, &w.overlap, q, &w.field, d.At).leastLocal()
	q.remote = true
	legs.Decode = r.judge.field(&s.judged, &w.overlap, q, &w.field, d.At).least()
	return legs
}
