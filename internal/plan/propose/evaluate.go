package propose

import (
	"cmp"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// quantile returns the share of requests that are to be within the targets.
func (q *Question) quantile() float64 { return cmp.Or(q.Targets.Quantile, 0.9) }

// latency returns the latencies of whole requests at a rate. The first token of separate roles comes from the engine that decodes, after
// the transfer.
func (p *Proposal) latency(q *Question, rate float64) capacity.Latency {
	first := &p.Pools[0]
	l := first.Engine.Latency(first.Role, first.Replicas, rate, q.Shape, q.quantile())
	if len(p.Pools) == 1 {
		return l
	}

	second := &p.Pools[1]
	d := second.Engine.Latency(second.Role, second.Replicas, rate, q.Shape, q.quantile())
	out := capacity.Latency{TTFT: capacity.Never, ITL: d.ITL, E2E: capacity.Never, Load: max(l.Load, d.Load)}
	if l.TTFT < capacity.Never && d.ITL < capacity.Never && d.E2E < capacity.Never {
		out.TTFT = l.TTFT + q.transfer(&first.Engine, &second.Engine) + d.ITL
		out.E2E = out.TTFT + d.E2E
	}
	return out
}

// transfer returns the time until a prompt is on the engine that decodes it. Engines with more GPUs have more bandwidth.
func (q *Question) transfer(from, to *Engine) time.Duration {
	return q.TransferBase + time.Duration(q.Shape.Prompt*float64(q.TransferToken)/float64(max(1, min(from.GPUs, to.GPUs))))
}

// meets reports whether the latencies at a rate are within the targets.
func (p *Proposal) meets(q *Question, rate float64) bool { return q.Targets.Met(p.latency(q, rate)) }

// leastRate is the rate at which engines are idle.
const leastRate = 1e-6

// most returns the most requests per second within the targets, 0 if there is none.
func (p *Proposal) most(q *Question) float64 {
	high := 1e9
	for i := range p.Pools {
		pool := &p.Pools[i]
		high = min(high, pool.Engine.Most(pool.Role, pool.Replicas, q.Shape))
	}
	if !p.meets(q, leastRate) {
		return 0
	}
	low := leastRate
	for range 30 {
		if mid := (low + high) / 2; p.meets(q, mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// complete computes the fleet's GPUs, power, rate and latency; false if its engines are unusable.
func (p *Proposal) complete(q *Question) bool {
	for _, pool := range p.Pools {
		p.GPUs += pool.Replicas * pool.Engine.GPUs
		p.Watts += float64(pool.Replicas) * pool.Engine.Watts
	}
	p.Rate = p.most(q)
	at := cmp.Or(q.Rate, p.Rate, leastRate)
	p.Latency = p.latency(q, at)
	p.Met = p.Rate > 0 && p.Rate >= q.Rate
	p.Limit = p.limit(q)

	slow := Proposal{}
	for _, pool := range p.Pools {
		factor := 1 + pool.Engine.Doubt
		pool.Engine.Timing = perfmodel.Corrected{Timing: pool.Engine.Timing, PrefillBy: factor, DecodeBy: factor}
		slow.Pools = append(slow.Pools, pool)
	}
	p.SlowRate = slow.most(q)
	return p.GPUs <= q.GPUs
}

// limit names what bounds the rate: the latency that exceeds its target with a little more.
func (p *Proposal) limit(q *Question) string {
	l := p.latency(q, max(p.Rate*1.01, leastRate))
	switch {
	case q.Targets.ITL > 0 && l.ITL > q.Targets.ITL && l.ITL < capacity.Never:
		return "ITL"
	case q.Targets.TTFT > 0 && l.TTFT > q.Targets.TTFT && l.TTFT < capacity.Never:
		return "TTFT"
	case q.Targets.E2E > 0 && l.E2E > q.Targets.E2E && l.E2E < capacity.Never:
		return "E2E"
	}
	return "load"
}

// aggregated returns how many engines that do both are to be compared.
func (q *Question) aggregated(e Engine) int {
	most := q.GPUs / max(1, e.GPUs)
	if q.Rate == 0 || most == 0 {
		return most
	}
	return e.Need(fleet.Aggregated, q.Rate, q.Shape, q.Targets, most).Replicas
}

// separate returns how many engines of both roles are to be compared; 0 if there is no room for both.
func (q *Question) separate(a, b Engine) (prefill, decode int) {
	if a.GPUs+b.GPUs > q.GPUs {
		return 0, 0
	}
	first, second := q.roleTargets(&a, &b)
	if q.Rate == 0 {
		return q.split(a, b, first, second)
	}

	most := func(e *Engine) int { return q.GPUs / e.GPUs }
	fleetOf := Proposal{Pools: []Pool{
		{fleet.Prefill, a.Need(fleet.Prefill, q.Rate, q.Shape, first, most(&a)).Replicas, a},
		{fleet.Decode, b.Need(fleet.Decode, q.Rate, q.Shape, second, most(&b)).Replicas, b},
	}}
	p, d := &fleetOf.Pools[0], &fleetOf.Pools[1]
	for p.Replicas*a.GPUs+d.Replicas*b.GPUs < q.GPUs && !fleetOf.meets(q, q.Rate) {
		if l := fleetOf.latency(q, q.Rate); l.ITL <= q.Targets.ITL || q.Targets.ITL == 0 {
			p.Replicas++
		} else {
			d.Replicas++
		}
	}
	return p.Replicas, d.Replicas
}

// roleTargets divides the targets among separate roles.
func (q *Question) roleTargets(a, b *Engine) (prefill, decode capacity.Targets) {
	t := q.Targets
	prefill = capacity.Targets{Quantile: t.Quantile}
	decode = capacity.Targets{ITL: t.ITL, Quantile: t.Quantile}
	if t.TTFT > 0 {
		prefill.TTFT = max(1, t.TTFT-q.transfer(a, b)-t.ITL)
	}
	if t.E2E > 0 {
		decode.E2E = max(1, t.E2E-t.TTFT)
	}
	return prefill, decode
}

// split returns the division of all GPUs that serves the most. More prefill engines serve more prompts, and leave fewer engines that
// decode, so in the best division both serve about as much.
func (q *Question) split(a, b Engine, first, second capacity.Targets) (prefill, decode int) {
	decodeBeside := func(p int) int { return (q.GPUs - p*a.GPUs) / b.GPUs }
	one := func(r fleet.Role, e Engine, n int, t capacity.Targets) float64 {
		alone := *q
		alone.Targets = t
		return (&Proposal{Pools: []Pool{{r, n, e}}}).most(&alone)
	}

	low, high := 1, (q.GPUs-b.GPUs)/a.GPUs
	for low < high {
		mid := (low + high) / 2
		if one(fleet.Prefill, a, mid, first) >= one(fleet.Decode, b, decodeBeside(mid), second) {
			high = mid
		} else {
			low = mid + 1
		}
	}

	best := -1.0
	for p := max(1, low-2); p <= low+1; p++ {
		d := decodeBeside(p)
		if d < 1 {
			break
		}
		if rate := (&Proposal{Pools: []Pool{{fleet.Prefill, p, a}, {fleet.Decode, d, b}}}).most(q); rate > best {
			best = rate
			prefill, decode = p, d
		}
	}
	return prefill, decode
}
