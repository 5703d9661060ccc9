package kvindex

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// StoreWindow is [Index.Store] for a sliding-window attention group of the rank, on its device:
// the blocks are held in that group, whatever the full-attention group holds. group is the
// engine's number of the group, or 0 where it does not say; window is how many blocks at the end
// of a prompt the group must hold for the prompt to be reused ([WindowBlocks]).
func (x *Index) StoreWindow(id fleet.RankID, group, window int, parent uint64, hasParent bool, hashes []uint64, blocks []blockhash.Block) {
}

// RemoveWindow is told that the group no longer holds the blocks.
func (x *Index) RemoveWindow(id fleet.RankID, group int, hashes []uint64) {}

// WindowBlocks is the blocks that a sliding window of tokens needs: a query attends to itself
// and to window-1 tokens before it.
func WindowBlocks(tokens, blockSize int) int {
	if tokens <= 1 || blockSize <= 0 {
		return 0
	}
	return (tokens - 1 + blockSize - 1) / blockSize
}
