package dynamo

import (
	"fmt"
)

// The reasons of load scaling.
const (
	ReasonInProgress   = "scaling_in_progress"
	ReasonNoData       = "no_fpm_data"
	ReasonMismatch     = "worker_count_mismatch"
	ReasonInsufficient = "insufficient_data"
	ReasonUp           = "scale_up"
	ReasonDown         = "scale_down"
	ReasonCapped       = "scale_down_capped_by_throughput"
	ReasonRefused      = "scale_down_refused_consolidation"
	ReasonNoChange     = "no_change"
)

// Engine is the load of one worker. Dynamo's engines report it with every forward pass.
type Engine struct {
	// QueuedPrompt is the prompt tokens that wait.
	QueuedPrompt float64
	// DecodeRequests and DecodeContext are the requests in its batch and the tokens of their contexts: tokens without requests mean
	// that the size of the batch is unknown. QueuedDecode is the tokens of
	// requests that wait for decoding.
	DecodeRequests, DecodeContext, QueuedDecode float64
}

// LoadInput has the observations that load scaling decides from. Decode has aggregated workers, too.
type LoadInput struct {
	Now             Replicas
	Prefill, Decode []Engine
	// PrefillModel, DecodeModel and MixedModel are the regressions. Targets other than sla use none.
	PrefillModel, DecodeModel, MixedModel Regression
	// HitRate and AcceptLength are values of the last interval.
	HitRate, AcceptLength float64
	// ScalingInProgress holds a decision back until the last one is done.
	ScalingInProgress bool
	// LowerBound is the last result of throughput scaling.
	LowerBound Replicas
}

// side is the decision of one role: how many workers, whether there is a decision, and the reason.
type side struct {
	want    int
	decided bool
	reason  string
	detail  string
}

// stop is a side without a decision.
func stop(now int, reason string) side { return side{want: now, reason: reason} }

// to is the side with a decision.
func (s side) to(want int, reason string) side {
	return side{want: want, decided: true, reason: reason, detail: s.detail}
}

// LoadScaling adds or removes one worker of each role, by the engines' queues and caches. Throughput scaling's lower bound, the
// least numbers and the budgets hold. It has no decision if the number of engines that report differs from the number of workers.
func (c *Config) LoadScaling(in LoadInput) Decision {
	d := Decision{Replicas: in.Now}
	d.Reason = c.gate(in)
	if d.Reason != "" {
		return d
	}

	prefill, decode := stop(in.Now.Prefill, ""), stop(in.Now.Decode, "")
	if len(in.Prefill) > 0 && c.Mode != ModeAggregated && c.Mode != ModeDecode {
		prefill = c.prefillSide(in)
	}
	switch {
	case c.Mode == ModeAggregated:
		decode = c.aggregatedSide(in)
	case len(in.Decode) > 0 && c.Mode != ModePrefill:
		decode = c.decodeSide(in)
	}
	if c.Mode != ModeDisaggregated && !prefill.decided && !decode.decided && c.stops(decode) {
		d.Reason = mostTelling(prefill.reason, decode.reason)
		d.Detail = prefill.detail + decode.detail
		return d
	}
	return c.settled(in, prefill, decode)
}

// stops reports whether a fleet of one role without a decision keeps its workers. Aggregated workers with a model obey lower bounds
// and budgets all the same.
func (c *Config) stops(decode side) bool {
	modelled := c.Mode == ModeAggregated && c.Target == TargetSLA
	return !modelled || decode.reason == ReasonInsufficient
}

// gate returns the reason why there can be no decision; empty if there can be one.
func (c *Config) gate(in LoadInput) string {
	prefill, decode := c.Mode == ModeDisaggregated || c.Mode == ModePrefill, c.Mode != ModePrefill
	missing := func(relevant bool, engines []Engine) bool { return !relevant || len(engines) == 0 }
	differ := func(relevant bool, engines []Engine, n int) bool {
		return relevant && len(engines) > 0 && len(engines) != n
	}
	switch {
	case !c.load():
		return ReasonDisabled
	case in.ScalingInProgress:
		return ReasonInProgress
	case missing(prefill, in.Prefill) && missing(decode, in.Decode):
		return ReasonNoData
	case differ(prefill, in.Prefill, in.Now.Prefill), differ(decode, in.Decode, in.Now.Decode):
		return ReasonMismatch
	}
	return ""
}

// settled applies lower bounds and budgets, and names the result.
func (c *Config) settled(in LoadInput, prefill, decode side) Decision {
	wish := Replicas{prefill.want, decode.want}
	bounded := wish
	if c.throughput() {
		bounded = Replicas{max(wish.Prefill, in.LowerBound.Prefill), max(wish.Decode, in.LowerBound.Decode)}
	}
	final := c.withinBudgets(bounded, in.Now)

	d := Decision{Replicas: final, Changed: final != in.Now, Detail: prefill.detail + decode.detail}
	p := change(final.Prefill, wish.Prefill, bounded.Prefill, in.Now.Prefill)
	q := change(final.Decode, wish.Decode, bounded.Decode, in.Now.Decode)
	d.Reason = mostTelling(p, q)
	if d.Changed || d.Reason == ReasonCapped {
		return d
	}
	for _, s := range []side{prefill, decode} {
		if !s.decided && s.reason != "" && s.reason != ReasonNoChange {
			d.Reason = s.reason
			break
		}
	}
	return d
}

// change names what happened to one role. wish is the number of load scaling, and bounded the number with the lower bound of
// throughput.
func change(final, wish, bounded, now int) string {
	capped := bounded > wish && wish < now
	switch {
	case final > now:
		return ReasonUp
	case capped:
		return ReasonCapped
	case final < now:
		return ReasonDown
	}
	return ReasonNoChange
}

// mostTelling returns the reason that matters more to a reader.
func mostTelling(a, b string) string {
	for _, r := range []string{ReasonUp, ReasonCapped, ReasonDown, ReasonRefused, ReasonInsufficient} {
		if a == r || b == r {
			return r
		}
	}
	return ReasonNoChange
}

// judged turns estimates into a decision: up by one if all are over the bound, else down by one if that is safe. refused marks
// that a survivor would be over the bound.
func (c *Config) judged(now, least int, estimates []float64, bound float64, safe, refused bool, name string) side {
	s := stop(now, ReasonNoChange)
	if len(estimates) == 0 {
		s.reason = ReasonInsufficient
		return s
	}
	all := true
	lowest, highest := estimates[0], estimates[0]
	for _, ms := range estimates {
		all = all && ms > bound
		lowest, highest = min(lowest, ms), max(highest, ms)
	}
	s.detail = fmt.Sprintf("%s of %d engines is %.1f to %.1f ms, the bound %.1f ms; ", name, len(estimates), lowest, highest, bound)

	switch {
	case all:
		s = s.to(now+1, ReasonUp)
	case now > 1 && safe:
		s = s.to(max(now-1, least), ReasonDown)
	case refused:
		s.reason = ReasonRefused
	}
	return s
}
