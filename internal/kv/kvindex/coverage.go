package kvindex

import "github.com/stator-project/stator/internal/fleet"

// Coverage compares the caches of a fleet with the room of an index. /debug/fleet shows it.
type Coverage struct {
	// Pairs is the number of blocks that the caches of all ranks can hold together.
	Pairs int64 `json:"fleet_blocks"`
	// UnknownRanks counts the ranks whose worker does not report the size of its cache. Pairs leaves them out.
	UnknownRanks int `json:"unknown_ranks"`
	// Room is about how many (block, rank) pairs the index holds within its MaxBytes.
	Room int64 `json:"room"`
	// MaxBytes is the bound on the index, and NeededBytes the one with room for Pairs.
	MaxBytes    int64 `json:"max_bytes"`
	NeededBytes int64 `json:"needed_bytes"`
}

// Coverage returns the part of the fleet's caches for which the index has room.
func (x *Index) Coverage(s *fleet.Snapshot) Coverage {
	c := Coverage{MaxBytes: x.cfg.MaxBytes, Room: usable(x.cfg.MaxBytes) / pairBytes}
	for _, w := range s.Workers {
		if w.Blocks == 0 {
			c.UnknownRanks += w.Ranks
		}
		c.Pairs += int64(w.Ranks) * int64(w.Blocks)
	}

	// Eviction begins at seven eighths of the bound, see budget.pressed.
	c.NeededBytes = (c.Pairs*pairBytes*8 + 6) / 7
	return c
}

// Share returns the part of the caches for which the index has room, from 0 to 1. It is 1 if no size is known.
func (c Coverage) Share() float64 {
	if c.Pairs <= c.Room {
		return 1
	}
	return float64(c.Room) / float64(c.Pairs)
}

// usable returns the number of bytes of a bound that are used before blocks are evicted.
func usable(maxBytes int64) int64 { return maxBytes - maxBytes/8 }
