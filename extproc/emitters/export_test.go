package emitters

import (
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route/cost"
)

// Held returns how many blocks at the beginning of a prompt an emitter has in the index.
func (s *Set) Held(name string, blocks []blockhash.Block) int {
	rank, _ := s.fleet.Snapshot().Rank(name, 0)
	var overlap kvindex.Overlap
	s.index.Lookup(blocks, &overlap)
	held := overlap.Of(rank.ID)
	return cost.HeldBlocks(&held)
}
