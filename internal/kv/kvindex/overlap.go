package kvindex

import (
	"slices"

	"github.com/stator-project/stator/internal/fleet"
)

// Overlap is the result of a lookup. It can be used again, and keeps its buffers. It belongs to one goroutine
// at a time. The zero value is empty and ready.
type Overlap struct {
	// ranks hold, and can reuse, at least the first block. They are in no order.
	ranks []Held
	// at has for each RankID one more than its index in ranks; 0 for an absent rank.
	at []uint32

	active  []progress   // during a lookup: the holders that have all blocks so far
	windows []windowWalk // of ranks with sliding windows
}

// Held describes the part of a prompt that one rank holds.
type Held struct {
	Rank fleet.RankID
	// Blocks are contiguous from the root: the device's first, then each slower tier's
	// extension past the faster ones.
	Blocks [fleet.Tiers]int
	// InHost is the number of blocks from the root in host memory, from which other ranks may be able to load them. Some of
	// them may be on the device, too.
	InHost int
}

// Of returns the blocks that rank holds, by tier; zero for a rank that holds none.
func (o *Overlap) Of(rank fleet.RankID) (blocks [fleet.Tiers]int) {
	if h := o.Find(rank); h != nil {
		blocks = h.Blocks
	}
	return blocks
}

// InHost returns the number of blocks from the root that the rank has in host memory.
func (o *Overlap) InHost(rank fleet.RankID) int {
	if h := o.Find(rank); h != nil {
		return h.InHost
	}
	return 0
}

// Find returns the part that a rank holds; nil for a rank that holds none. It is valid until the next lookup.
func (o *Overlap) Find(rank fleet.RankID) *Held {
	if int(rank) >= len(o.at) || o.at[rank] == 0 {
		return nil
	}
	return &o.ranks[o.at[rank]-1]
}

// AnyInHost reports whether any rank has the first block in host memory.
func (o *Overlap) AnyInHost() bool {
	return slices.ContainsFunc(o.ranks, func(h Held) bool { return h.InHost > 0 })
}

// Ranks returns every rank that holds the prompt's first block, in no order. The slice is
// valid until the next lookup.
func (o *Overlap) Ranks() []Held { return o.ranks }

// Add adds the ranks of another result whose blocks each have the content of so many blocks of this one. A rank that is in both keeps what
// it has here.
func (o *Overlap) Add(other *Overlap, each int) {
	for _, h := range other.ranks {
		if int(h.Rank) < len(o.at) && o.at[h.Rank] != 0 {
			continue
		}
		for tier := range h.Blocks {
			h.Blocks[tier] *= each
		}
		h.InHost *= each
		o.addRank(h)
	}
}

// reset empties o. It clears only the entries that the last lookup set in at, which is as long as the fleet.
func (o *Overlap) reset() {
	for i := range o.ranks {
		o.at[o.ranks[i].Rank] = 0
	}
	o.ranks = o.ranks[:0]
	o.active = o.active[:0]
	o.windows = o.windows[:0]
}

// addRank adds a rank to the result.
func (o *Overlap) addRank(h Held) {
	for int(h.Rank) >= len(o.at) {
		o.at = append(o.at, 0)
	}
	o.ranks = append(o.ranks, h)
	o.at[h.Rank] = uint32(len(o.ranks))
}
