// Package propose finds the fleet that serves requests within latency targets on some GPUs.
//
// [Propose] compares all fleets of a [Question]: engines that prefill and decode, and separate ones in every split, for every size of
// engines. Without a rate it looks for the fleet that serves the most requests, and with one for the fleet with the fewest GPUs. The
// latencies come from package capacity, so a proposal is as good as the timing of its engines: see [Proposal.SlowRate]. All functions
// are pure.
package propose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// Engine is one kind of engine that a fleet may have.
type Engine struct {
	capacity.Engine
	// GPUs and Watts count one engine.
	GPUs  int
	Watts float64
	// Doubt is by how much its passes may take longer than Timing has it, as a share.
	Doubt float64
	// SmallKV means that the KV cache has 8 bits for each number instead of 16. Answers may differ a little, so a fleet with it must be
	// better by smallKVGain.
	SmallKV bool
}

// Question describes the demand for a fleet.
type Question struct {
	Shape   capacity.Shape
	Targets capacity.Targets
	// Rate is in requests per second. 0 asks for the fleet that serves the most.
	Rate float64
	// GPUs is the number of GPUs.
	GPUs    int
	Engines []Engine
	// TransferBase and TransferToken are the time until a computed prompt is on the engine that decodes it: of each prompt, and of each
	// of its tokens on an engine with one GPU.
	TransferBase, TransferToken time.Duration
}

// Pool is the engines of one role.
type Pool struct {
	Role     fleet.Role
	Replicas int
	Engine   Engine
}

// Proposal is a fleet and its expected performance.
type Proposal struct {
	// Pools are one of aggregated workers, or one of prefill and one of decode workers.
	Pools []Pool
	// GPUs and Watts count the fleet.
	GPUs  int
	Watts float64
	// Rate is the most requests per second within the targets, 0 if there is none. Limit names what bounds it.
	Rate  float64
	Limit string
	// Latency is the latency of whole requests at the asked rate, or at Rate. Met reports whether it is within the
	// targets.
	Latency capacity.Latency
	Met     bool
	// SlowRate is Rate if all passes take longer by the doubt of their engines.
	SlowRate float64
}

// String names the fleet.
func (p *Proposal) String() string {
	var parts []string
	for _, pool := range p.Pools {
		text := fmt.Sprintf("%d × TP %d %s", pool.Replicas, pool.Engine.GPUs, pool.Role)
		if pool.Engine.SmallKV {
			text += " with 8-bit KV"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " + ")
}

// smallKVGain is by which factor a fleet with a KV cache of 8 bits must serve more. plainLoss is the share of the rate that a fleet
// without separate roles may lack and still comes first, because it is simpler.
const (
	smallKVGain = 1.1
	plainLoss   = 0.03
)

// Propose returns fleets for a question, the best first: one for each combination of engines. Fleets that do not meet the targets come
// last. There are none if no engine fits.
func Propose(q Question) []Proposal {
	var out []Proposal
	add := func(pools ...Pool) {
		p := Proposal{Pools: pools}
		if p.complete(&q) {
			out = append(out, p)
		}
	}
	for _, e := range q.Engines {
		if n := q.aggregated(e); n > 0 {
			add(Pool{fleet.Aggregated, n, e})
		}
		for _, d := range q.Engines {
			if e.SmallKV != d.SmallKV {
				continue // both hold the same blocks
			}
			prefill, decode := q.separate(e, d)
			if prefill > 0 && decode > 0 {
				add(Pool{fleet.Prefill, prefill, e}, Pool{fleet.Decode, decode, d})
			}
		}
	}

	slices.SortStableFunc(out, func(a, b Proposal) int { return q.compare(&a, &b) })
	if q.Rate == 0 {
		preferPlain(out)
	}
	return out
}

// compare orders proposals: fleets that meet the targets first, then by GPUs and rate.
func (q *Question) compare(a, b *Proposal) int {
	if a.Met != b.Met {
		if a.Met {
			return -1
		}
		return 1
	}
	if !a.Met {
		return cmp.Compare(q.excess(a.Latency), q.excess(b.Latency))
	}
	byRate := cmp.Compare(b.worth(), a.worth())
	if q.Rate == 0 {
		return cmp.Or(byRate, len(a.Pools)-len(b.Pools))
	}
	return cmp.Or(a.GPUs-b.GPUs, len(a.Pools)-len(b.Pools), byRate)
}

// worth returns the rate as it counts in comparisons.
func (p *Proposal) worth() float64 {
	if p.Pools[0].Engine.SmallKV {
		return p.Rate / smallKVGain
	}
	return p.Rate
}

// excess returns how many times its target the worst latency is.
func (q *Question) excess(l capacity.Latency) float64 {
	worst := 0.0
	for _, x := range []struct{ v, target time.Duration }{{l.TTFT, q.Targets.TTFT}, {l.ITL, q.Targets.ITL}, {l.E2E, q.Targets.E2E}} {
		if x.target > 0 {
			worst = max(worst, float64(x.v)/float64(x.target))
		}
	}
	return worst
}

// preferPlain moves the best fleet without separate roles to the front if it is nearly as good.
func preferPlain(list []Proposal) {
	plain := slices.IndexFunc(list, func(p Proposal) bool { return len(p.Pools) == 1 })
	if plain <= 0 || !list[plain].Met || list[plain].worth() < (1-plainLoss)*list[0].worth() {
		return
	}
	best := list[plain]
	copy(list[1:plain+1], list[:plain])
	list[0] = best
}
