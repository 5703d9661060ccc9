package dynamo

import (
	"fmt"
	"math"
	"time"
)

// The reasons of throughput scaling.
const (
	ReasonScale           = "scale"
	ReasonLowerBound      = "set_lower_bound"
	ReasonDisabled        = "disabled"
	ReasonModelNotReady   = "model_not_ready"
	ReasonPartnerNotReady = "partner_not_ready"
	ReasonNoTraffic       = "no_traffic_data"
)

// Traffic is the expected traffic of the next interval.
type Traffic struct {
	// Requests arrive in Interval. ISL and OSL are the mean tokens of their prompts and answers.
	Requests, ISL, OSL float64
	Interval           time.Duration
	// HitRate and AcceptLength are values of the last interval: see [Asked].
	HitRate, AcceptLength float64
}

// rps returns the arrivals in a second.
func (t Traffic) rps() float64 { return t.Requests / t.Interval.Seconds() }

// ok reports whether the forecasts are usable.
func (t Traffic) ok() bool {
	return t.Interval > 0 && t.Requests >= 0 && t.ISL > 0 && t.OSL > 0 && finite(t.Requests) && t.ISL < 1e9 && t.OSL < 1e9
}

// Passes are the timing models of a fleet's workers. A nil one is not ready. Aggregated fleets have Mixed alone.
type Passes struct{ Prefill, Decode, Mixed Pass }

// Throughput returns the workers that expected traffic needs: for each role, the arrivals divided by the capacity of an engine. With
// load scaling enabled, the replicas are a lower bound for it, before budgets, and no decision. A role whose model is not ready stops both.
func (c *Config) Throughput(now Replicas, t Traffic, p Passes) Decision {
	d := Decision{Replicas: now}
	switch {
	case !c.throughput():
		d.Reason = ReasonDisabled
		return d
	case !t.ok():
		d.Reason = ReasonNoTraffic
		return d
	}

	want, detail, reason := c.needed(now, t, p)
	d.Detail = detail
	if reason != "" {
		d.Reason = reason
		return d
	}
	if c.load() {
		d.Replicas, d.Reason = want, ReasonLowerBound
		return d
	}
	d.Replicas = c.withinBudgets(want, now)
	d.Reason, d.Changed = ReasonScale, d.Replicas != now
	return d
}

// needed returns the workers that traffic needs before budgets, or the reason why that is unknown.
func (c *Config) needed(now Replicas, t Traffic, p Passes) (want Replicas, detail, reason string) {
	want = now
	decode := p.Decode
	if c.Mode == ModeAggregated {
		decode = p.Mixed
	}
	needsPrefill, needsDecode := c.Mode == ModeDisaggregated || c.Mode == ModePrefill, c.Mode != ModePrefill
	prefill, prefillReady := c.Capacity(PrefillPass, p.Prefill, t)
	second, decodeReady := c.Capacity(c.decodeKind(), decode, t)
	prefillReady, decodeReady = prefillReady || !needsPrefill, decodeReady || !needsDecode

	switch {
	case !prefillReady && !decodeReady, c.Mode != ModeDisaggregated && !(prefillReady && decodeReady):
		return want, "", ReasonModelNotReady
	case !prefillReady || !decodeReady:
		return want, "", ReasonPartnerNotReady
	}

	least := c.least()
	if needsPrefill {
		want.Prefill = max(replicas(t.rps(), prefill.RPS), least.Prefill)
		detail = fmt.Sprintf("prefill: %.2f of %.2f rps at TTFT %.1f ms; ", t.rps(), prefill.RPS, prefill.TTFT)
	}
	if needsDecode {
		want.Decode = max(replicas(t.rps(), second.RPS), least.Decode)
		detail += fmt.Sprintf("decode: %.2f of %.2f rps at ITL %.1f ms", t.rps(), second.RPS, second.ITL)
	}
	return want, detail, ""
}

// decodeKind returns the kind of passes of the workers that decode.
func (c *Config) decodeKind() Kind {
	if c.Mode == ModeAggregated {
		return MixedPass
	}
	return DecodePass
}

// mostReplicas bounds the replicas that a formula may ask for, so that a tiny capacity does not overflow.
const mostReplicas = 1 << 20

// replicas divides demand by capacity.
func replicas(demand, capacity float64) int {
	return int(min(math.Ceil(demand/capacity), mostReplicas))
}

// Capacity returns the load that one engine of a kind serves within the latencies of the configuration, of requests
// like the traffic's; false if its model is not ready.
func (c *Config) Capacity(kind Kind, pass Pass, t Traffic) (Capacity, bool) {
	if pass == nil {
		return Capacity{}, false
	}
	a := Asked{ISL: int(t.ISL), OSL: int(t.OSL), HitRate: t.HitRate, AcceptLength: t.AcceptLength}

	var got Capacity
	var ok bool
	switch {
	case kind == MixedPass:
		a.TTFT, a.ITL = c.TTFT, c.ITL
		got, ok = c.Limits.Aggregated(pass, a)
	case kind == PrefillPass && c.Release:
		a.TTFT = c.TTFT
		one := c.Limits
		one.MaxSeqs = 1
		got, ok = one.Prefill(pass, a)
	case kind == PrefillPass:
		a.TTFT = c.TTFT
		got, ok = c.Limits.Prefill(pass, a)
	case c.Release:
		a.ITL, a.halves = c.ITL, true
		got, ok = c.Limits.decode(pass, a, upTo(c.Limits.decodeBatch(a)))
	default:
		a.ITL = c.ITL
		got, ok = c.Limits.Decode(pass, a)
	}
	return got, ok && got.RPS > 0
}

// upTo returns 1 to n, at most a bound on the sizes of batches.
func upTo(n int) []int {
	const most = 1 << 16
	out := make([]int, 0, min(n, most))
	for i := range min(n, most) {
		out = append(out, i+1)
	}
	return out
}

// withinBudgets applies the least numbers, the GPUs and the power. Roles that the mode does not have stay as they are.
func (c *Config) withinBudgets(want, now Replicas) Replicas {
	least, gpus := c.least(), Replicas{c.PrefillGPUs, c.DecodeGPUs}
	budget := Budget{c.MinGPUs, c.MaxGPUs}
	switch c.Mode {
	case ModePrefill:
		n := budget.Single(max(want.Prefill, least.Prefill), gpus.Prefill, least.Prefill)
		return Replicas{powered(n, now.Prefill, c.PrefillWatts, least.Prefill, c.MaxWatts), now.Decode}
	case ModeDecode, ModeAggregated:
		n := budget.Single(max(want.Decode, least.Decode), gpus.Decode, least.Decode)
		return Replicas{now.Prefill, powered(n, now.Decode, c.DecodeWatts, least.Decode, c.MaxWatts)}
	}

	want = Replicas{max(want.Prefill, least.Prefill), max(want.Decode, least.Decode)}
	want = budget.Pair(want, gpus, least)
	if c.MaxWatts > 0 {
		want, _ = Power(want, now, Replicas{c.PrefillWatts, c.DecodeWatts}, least, c.MaxWatts)
	}
	return want
}
