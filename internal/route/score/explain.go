package score

import (
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/decision"
)

// cheapest returns the indexes of the n cheapest candidates, cheapest first. The winner takes the last
// place if it is not one of them. One pass with insertion suffices because n is small.
func (j *Judged) cheapest(won, n int) []int {
	less := func(a, b int) bool {
		ca, cb := j.Candidates[a].Total, j.Candidates[b].Total
		return ca < cb || ca == cb && (a == won || b != won && a < b)
	}
	order := j.order[:0]
	for i := range j.Candidates {
		if len(order) == n {
			if !less(i, order[n-1]) {
				continue
			}
			order = order[:n-1]
		}
		at, _ := slices.BinarySearchFunc(order, i, func(have, i int) int {
			if less(have, i) {
				return -1
			}
			return 1
		})
		order = slices.Insert(order, at, i)
	}

	if !slices.Contains(order, won) {
		order[len(order)-1] = won
	}
	j.order = order
	return order
}

// Explain writes the pick and its reasons into the decision: the cheapest candidates, the picked one
// among them, and the addresses to try next. It judges the candidates that are shown once more,
// because a candidate keeps only its total.
func (j *Judged) Explain(d *decision.Decision, won, shown int) {
	winner := &j.Candidates[won]
	worker := winner.Rank.Worker
	d.Worker, d.Address = worker.Name, worker.Address
	d.Engine, d.Revision = worker.Engine, worker.Revision
	d.Rank, d.Ranks = winner.Rank.Number, worker.Ranks
	d.Transfer, d.TransferAt = worker.Transfer, TransferAddress(worker, winner.Rank.Number)
	d.Overlap = winner.Facts.HeldBlocks()
	d.Cached = j.Promised(winner)
	d.AnyRank = winner.AnyRank
	d.Considered = len(j.Candidates)

	order := j.cheapest(won, shown)
	d.Candidates = slices.Grow(d.Candidates[:0], len(order))[:len(order)]
	for i, at := range order {
		c := &j.Candidates[at]
		j.setModelOf(c)
		d.Candidates[i] = decision.Candidate{
			Worker: c.Rank.Worker.Name, Rank: c.Rank.Number, Address: c.Rank.Worker.Address, Picked: at == won,
			Capacity: c.Facts.Capacity,
			Overlap:  c.Facts.Overlap, Evicting: c.Facts.Evicting, OnNode: c.Facts.OnNode, OnPeers: c.Facts.OnPeers,
			Outside: c.Facts.Outside, Load: c.Facts.Booked, Untracked: c.Facts.Untracked, Reported: c.Facts.Reported,
		}
		j.judgeOne(c, &d.Candidates[i].Score)
		if at == won {
			j.explainPull(d, &c.Facts, int(d.Candidates[i].Score.Pulled))
			j.explainOnward(d, &c.Facts)
		}
	}
	j.listOthers(d, order)
}

// explainPull names the worker from whose cache the picked one should fetch the pulled tokens; none for 0.
func (j *Judged) explainPull(d *decision.Decision, f *cost.Facts, tokens int) {
	if tokens == 0 {
		return
	}
	from := j.sources[f.Source].rank
	d.Pull = decision.Pull{
		Worker: from.Worker.Name, Rank: from.Number, At: TransferAddress(from.Worker, from.Number), Tokens: tokens,
	}
	d.PullShared = f.FromSource
}

// explainOnward names the decode worker to which the picked prefill worker's result goes, if its place is known.
func (j *Judged) explainOnward(d *decision.Decision, f *cost.Facts) {
	if j.asked.Onward.Tokens == 0 {
		return
	}
	d.Onward = &decision.Onward{
		Worker: j.asked.Onward.Worker, Tokens: j.asked.Onward.Tokens, Shared: f.Toward,
		Took: j.Request.Transfers[f.Toward].Prefill(j.asked.Onward.Tokens),
	}
}

// maxOthers is the number of addresses that a retry may try.
const maxOthers = 2

// listOthers adds the addresses to try next to a decision, best first. There is one retry only. So a worker that did not
// serve its last request stands behind the others, and before it one of the picked worker's node: engines of a node often
// stop together, as when their agent is replaced.
func (j *Judged) listOthers(d *decision.Decision, order []int) {
	for place := range otherPlaces {
		for _, at := range order {
			rank := j.Candidates[at].Rank
			if placeOf(d, rank) == place && mayRetryAt(d, rank.Worker) {
				addOther(d, rank.Worker.Address)
			}
		}
	}
}

// otherPlaces is the number of places that placeOf distinguishes.
const otherPlaces = 4

// placeOf returns the place of a rank in the order of ranks to try after the picked worker. Lower places come first.
func placeOf(d *decision.Decision, rank *fleet.Rank) int {
	place := 0
	if node := fleet.NodeOf(d.Worker); node != "" && fleet.NodeOf(rank.Worker.Name) == node {
		place++
	}
	if rank.Load.HasFailed() {
		place += 2
	}
	return place
}

// mayRetryAt reports whether a worker may be tried after the picked one. Ranks of one worker share an address, and a
// retry must reach another worker. It carries the number of the picked rank, so that worker must have such a rank. If the body names a
// worker from which blocks are fetched, that was chosen for the picked worker's revision.
func mayRetryAt(d *decision.Decision, w *fleet.Worker) bool {
	fetches := d.Split || d.Pull.Tokens > 0
	return w.Address != d.Address && !slices.Contains(d.Others, w.Address) && (d.Ranks == 1 || d.Rank < w.Ranks) &&
		(!fetches || w.Revision == d.Revision)
}

// addOther adds an address to try next, unless there are enough.
func addOther(d *decision.Decision, address string) {
	if len(d.Others) == maxOthers {
		return
	}
	if cap(d.Others) == 0 {
		d.Others = make([]string, 0, maxOthers)
	}
	d.Others = append(d.Others, address)
}
