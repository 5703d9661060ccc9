package trace

import "github.com/stator-project/stator/internal/decisionlog"

// Fleet is the fleet that a decision log shows. 0 means that the log does not show a figure.
type Fleet struct {
	// Workers are the ranks that decode, and Prefill those that only prefill. Ranks of all models count.
	Workers, Prefill int
	// Blocks is the capacity of the largest rank in blocks, and BlockSize the tokens of a block.
	Blocks, BlockSize int
}

// maxFleet bounds the ranks of a fleet, as the simulation does.
const maxFleet = 4096

// seenRank names a rank in a log.
type seenRank struct {
	address string
	number  int
}

// fleetSeen gathers a fleet from the candidates of decisions.
type fleetSeen struct {
	fleet Fleet
	ranks map[seenRank]bool
}

// add adds the candidates of a decision; nil for none.
func (s *fleetSeen) add(d *decisionlog.Decision) {
	if d == nil {
		return
	}
	s.fleet.BlockSize = max(s.fleet.BlockSize, d.BlockSize)
	count := &s.fleet.Workers
	if d.OfPrefill() {
		count = &s.fleet.Prefill
	}

	for i := range d.Candidates {
		c := &d.Candidates[i]
		s.fleet.Blocks = max(s.fleet.Blocks, c.CapacityBlocks)
		at := seenRank{c.Address, c.Rank}
		if !s.ranks[at] && len(s.ranks) < maxFleet {
			s.ranks[at] = true
			*count++
		}
	}
	// A decision has its best candidates alone, and the number of all.
	*count = max(*count, min(d.Considered, maxFleet))
}
