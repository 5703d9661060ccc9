package score

import (
	"sync"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/recency"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
)

// uses has the blocks of each rank by their last use. It shows which blocks the prompts that wait in an engine's queue
// will evict before the engine comes to the next prompt. Ranks whose capacity is not known have none.
type uses struct {
	mu     sync.RWMutex
	byRank map[fleet.RankID]*recency.Stack // guarded by mu
}

// stackOf returns the stack of a rank; nil if no prompt has used it.
func (u *uses) stackOf(rank fleet.RankID) *recency.Stack {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.byRank[rank]
}

// touch records that a prompt uses the blocks of its chain on a rank with a cache of that many blocks.
func (u *uses) touch(rank fleet.RankID, capacity int, chain []blockhash.Sequence) {
	if len(chain) == 0 || capacity <= 0 {
		return
	}
	stack := u.stackOf(rank)
	if stack == nil {
		stack = u.addStack(rank)
	}
	stack.Touch(chain, capacity)
}

func (u *uses) addStack(rank fleet.RankID) *recency.Stack {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byRank == nil {
		u.byRank = map[fleet.RankID]*recency.Stack{}
	}
	if u.byRank[rank] == nil {
		u.byRank[rank] = &recency.Stack{}
	}
	return u.byRank[rank]
}

// drop forgets a rank whose epoch is over.
func (u *uses) drop(rank fleet.RankID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byRank, rank)
}

// discount takes the blocks out of a candidate's overlap that the prompts that wait on its rank will evict. It changes nothing while these
// fit beside the blocks that the rank holds.
func (u *uses) discount(c *pick.Candidate, q *request.Prepared) {
	device, capacity := c.Facts.Overlap[fleet.Device], c.Facts.Capacity
	if device == 0 || capacity <= 0 || c.Facts.Booked.PrefillTokens == 0 {
		return
	}
	waiting := int(c.Facts.Booked.PrefillTokens) / q.Model.BlockSize
	if waiting+c.Facts.Held <= capacity {
		return
	}
	stack := u.stackOf(c.Rank.ID)
	if stack == nil {
		return
	}
	// A slower tier has the blocks that follow the device's blocks. It is of no use after a gap.
	if kept := stack.Kept(q.Chain, min(device, len(q.Chain)), capacity); kept < device {
		c.Facts.Overlap = [fleet.Tiers]int{fleet.Device: kept}
		c.Facts.Evicting = device - kept
	}
}
