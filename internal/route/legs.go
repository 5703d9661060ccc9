package route

import (
	"fmt"
	"math"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
)

// Legs are the two ways to serve a request if prefill and decode workers serve a model, with their costs. A request has
// either one leg, whose worker computes the prompt and decodes, or two.
//
// The costs come from the candidates' cost function: in milliseconds by cost.Delay. They are 0 if Why is not by cost.
type Legs struct {
	// Local is the least cost of a decode worker that computes the prompt, too.
	Local float64
	// Prefill is the least cost of a prefill worker that computes the prompt, and Decode the least cost of a decode worker that
	// receives it, its transfer included.
	Prefill, Decode float64
	Why             LegsReason
}

// LegsReason names the reason why a request has one leg or two.
type LegsReason string

// The reasons.
const (
	LegsByCost     LegsReason = "cost"              // the way with the lower cost
	LegsAsked      LegsReason = "asked"             // the request names the way, or the model's settings do
	LegsByPolicy   LegsReason = "policy"            // the policy does not compare costs, or the prompt is not read: two legs
	LegsNoPrefill  LegsReason = "no_prefill_worker" // none is ready and free: one leg
	LegsNoTransfer LegsReason = "no_transfer"       // engines cannot transfer this prompt: one leg
	LegsApart      LegsReason = "apart"             // decode workers compute no prompts, as SGLang's: two legs
)

// Prefill sets the workers that compute the prompts of a model with prefill and decode workers.
type Prefill string

// The values. A request may ask for one of the last two.
const (
	PrefillAuto   Prefill = "auto"               // by the way that costs less
	PrefillRemote Prefill = openai.PrefillRemote // on a prefill worker, if one is ready and free
	PrefillLocal  Prefill = openai.PrefillLocal  // on the decode worker
)

// Prefills are the names of all values.
func Prefills() []string {
	return []string{string(PrefillAuto), string(PrefillRemote), string(PrefillLocal)}
}

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
		return refuse(ReasonNoReadyWorker, nil, 10*time.Second, q.model.name, "no prefill worker is ready and free")
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
	return r.eligibleIn(&w.legs.field, p, d.At).free > 0
}

// compareLegs returns the costs of both ways. freePrefill has found the prefill workers.
func (r *Router) compareLegs(w *workspace, q *asked, d *Decision) Legs {
	s := &w.legs
	legs := Legs{Why: LegsByCost}
	legs.Prefill = r.judgeIn(&s.judged, w, &s.asked, &s.field, d.At).least()

	q.remote = false
	legs.Local = r.judgeIn(&s.judged, w, q, &w.field, d.At).leastLocal()
	q.remote = true
	legs.Decode = r.judgeIn(&s.judged, w, q, &w.field, d.At).least()
	return legs
}

// least is the lowest cost of the candidates. There must be one.
func (j *judged) least() float64 {
	least := j.candidates[0].Total
	for i := range j.candidates {
		least = min(least, j.candidates[i].Total)
	}
	return least
}

// leastLocal is the lowest cost of a decode worker that computes the prompt, too. By cost.Delay a worker that is idle for a moment counts
// as the mean of all: the next request may come to it during the prompt.
func (j *judged) leastLocal() float64 {
	delay, ok := j.function.(*cost.Delay)
	if !ok {
		return j.least()
	}
	running := int64(0)
	for i := range j.candidates {
		running += max(0, j.candidates[i].Facts.Booked.Requests)
	}
	mean := float64(running) / float64(len(j.candidates))

	least := math.Inf(1)
	for i := range j.candidates {
		c := &j.candidates[i]
		more := max(0, mean-float64(c.Facts.Booked.Requests))
		least = min(least, c.Total+delay.Interference*more*float64(j.expect(c).prefill)/1e6)
	}
	return least
}

// describe returns one sentence about the worker that computes the prompt; empty if there is no choice.
func (l *Legs) describe(d *Decision) string {
	where := d.Worker + " computes the prompt, too"
	if d.Split {
		where = "a prefill worker computes the prompt first: see decision " + d.PrefillID(0)
	}

	switch l.Why {
	case "":
		return ""
	case LegsByCost:
		less, more := l.Prefill+l.Decode, l.Local
		if !d.Split {
			less, more = more, less
		}
		return fmt.Sprintf("%s, at cost %s against %s (one worker %s; prefill worker %s and decode worker %s)",
			where, tenths(less), tenths(more), tenths(l.Local), tenths(l.Prefill), tenths(l.Decode))
	case LegsAsked:
		return where + ": the request asks for it, or the model's router.prefill"
	case LegsByPolicy:
		return where + ": costs are not compared"
	case LegsNoPrefill:
		return where + ": no prefill worker is ready and free"
	case LegsApart:
		return where + ": decode workers compute no prompts"
	default:
		return where + ": engines cannot transfer this prompt"
	}
}
