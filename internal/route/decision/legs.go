package decision

import "fmt"

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
	LegsNoPartner  LegsReason = "no_partner"        // none of a free decode worker's revision is ready and free: one leg
	LegsNoTransfer LegsReason = "no_transfer"       // engines cannot transfer this prompt: one leg
	LegsApart      LegsReason = "apart"             // decode workers compute no prompts, as SGLang's: two legs
)

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
	case LegsNoPartner:
		return where + ": no prefill worker of the same revision is ready and free"
	case LegsApart:
		return where + ": decode workers compute no prompts"
	default:
		return where + ": engines cannot transfer this prompt"
	}
}
