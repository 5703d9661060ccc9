package score

import (
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/pick"
)

// joinRanks judges the ranks of a worker as one if its engine chooses the rank of the request by itself, at APIs that each kind of engine
// names. The cost has the mean of the blocks that the ranks hold, which is the number to be expected. The decision promises the least.
func (j *Judged) joinRanks(f *eligible.Field, overlap *kvindex.Overlap) {
	api := j.asked.Endpoint.String()
	if j.asked.ReadsNoCache || !engines.AnyIgnoresRank(api) {
		return
	}
	for i := range j.Candidates {
		c := &j.Candidates[i]
		worker := c.Rank.Worker
		if worker.Ranks == 1 || !c.Rank.Load.Caches() || !engines.Of(worker.Engine).IgnoresRank(api) {
			continue
		}
		// The engine may choose a rank that is not in the field.
		c.AnyRank = true
		c.Facts.Overlap, c.Least = meanOverlap(f.Fleet.RanksOf(worker.Name), overlap, c.Facts.Each)
	}
}

// meanOverlap returns the mean of the blocks of the prompt that ranks hold, by tier, and the fewest that one of them holds. each is the
// number of these blocks in a block of the engine.
func meanOverlap(ranks []fleet.Rank, overlap *kvindex.Overlap, each int) (mean [fleet.Tiers]int, least int) {
	for i, rank := range ranks {
		blocks := overlap.Of(rank.ID)
		held := cost.HeldBlocks(&blocks)
		if i == 0 || held < least {
			least = held
		}
		for t, n := range blocks {
			mean[t] += n
		}
	}
	for t := range mean {
		mean[t] = mean[t] / max(1, len(ranks)) / each * each
	}
	return mean, least
}

// Promised returns the tokens of the prompt that need not be computed on a candidate, whatever rank its engine chooses.
func (j *Judged) Promised(c *pick.Candidate) int {
	if !c.AnyRank || j.asked.Remote {
		return j.Request.PromptTokens - c.Uncached
	}
	facts := c.Facts
	facts.Overlap = [fleet.Tiers]int{fleet.Device: min(c.Least, facts.HeldBlocks())}
	return facts.Cached(&j.Request)
}
