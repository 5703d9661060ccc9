package plan

import (
	"fmt"
	"math"
)

// fit reduces the replicas of all pools so that their cost fits into a budget, and raises them if the cost is below another one.
// Costs are GPUs or watts. Pools that need more get more of it: replicas are taken from the pool that keeps the greatest share of
// its need, so that shortage is spread evenly. A pool keeps its least number as long as others have more, and one worker as long
// as the budget has room for one of each: an empty pool serves nothing.
//
// Budgets do not bound the numbers that the configuration sets. The numbers of a person or an autoscaler stay, and are paid first.
func fit(all []*pool, least, most float64, unit string, cost func(*Configured) float64) {
	var pools []*pool
	total := 0.0
	for _, p := range all {
		switch {
		case p.held:
			total += float64(p.replicas) * cost(p.configured)
		case !p.model.isConfigured():
			pools = append(pools, p)
		}
	}

	wanted := make([]int, len(pools))
	for i, p := range pools {
		total += float64(p.replicas) * cost(p.configured)
		wanted[i] = p.replicas
	}
	if most > 0 && total > most {
		shrink(pools, wanted, total, most, cost)
		explain(pools, wanted, fmt.Sprintf("the budget is %.0f %s", most, unit))
		return
	}
	if total < least {
		grow(pools, total, least, most, cost)
		explain(pools, wanted, fmt.Sprintf("the budget is at least %.0f %s", least, unit))
	}
}

// shrink takes workers away until the cost fits: first those above the least of their pools, then all but one of each, then all.
// The rest of the budget then goes back to the pools that are the shortest.
func shrink(pools []*pool, wanted []int, total, most float64, cost func(*Configured) float64) {
	for _, floor := range []func(*pool) int{
		func(p *pool) int { return max(p.configured.Min, p.least(), 1) },
		func(p *pool) int { return max(p.least(), 1) },
		(*pool).least,
	} {
		for total > most {
			best, share := -1, -1.0
			for i, p := range pools {
				kept := float64(p.replicas-1) / float64(max(1, wanted[i]))
				if p.replicas > floor(p) && cost(p.configured) > 0 && kept > share {
					best, share = i, kept
				}
			}
			if best < 0 {
				break
			}
			pools[best].replicas--
			total -= cost(pools[best].configured)
		}
	}
	giveBack(pools, wanted, total, most, cost)
}

// least returns the number below which no budget takes the pool.
func (p *pool) least() int {
	if p.rollout == nil {
		return 0
	}
	return p.rollout.Replicas
}

// giveBack adds workers that fit into a budget, to the pools that have the least share of the workers that they wanted.
func giveBack(pools []*pool, wanted []int, total, most float64, cost func(*Configured) float64) {
	for {
		best, share := -1, math.Inf(1)
		for i, p := range pools {
			kept := float64(p.replicas) / float64(max(1, wanted[i]))
			if p.replicas < wanted[i] && total+cost(p.configured) <= most && kept < share {
				best, share = i, kept
			}
		}
		if best < 0 {
			return
		}
		pools[best].replicas++
		total += cost(pools[best].configured)
	}
}

// grow adds workers until the cost is at least the budget's least cost, to the pools that have the least of their bound first. It
// stops before the cost would exceed most.
func grow(pools []*pool, total, least, most float64, cost func(*Configured) float64) {
	for total < least {
		best, share := -1, math.Inf(1)
		for i, p := range pools {
			c := cost(p.configured)
			fits := most == 0 || total+c <= most
			if c > 0 && fits && p.replicas < p.most() && float64(p.replicas)*c < share {
				best, share = i, float64(p.replicas)*c
			}
		}
		if best < 0 {
			return
		}
		pools[best].replicas++
		total += cost(pools[best].configured)
	}
}

// explain adds to the reasons of pools that a budget has changed.
func explain(pools []*pool, wanted []int, why string) {
	for i, p := range pools {
		if p.replicas != wanted[i] {
			p.reason = fmt.Sprintf("%d, because %s: %s", p.replicas, why, p.reason)
		}
	}
}
