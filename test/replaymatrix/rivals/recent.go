package rivals

import (
	"container/list"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// recent is a set of blocks that keeps those that were added last.
type recent struct {
	capacity int
	order    list.List // of blockhash.Sequence, the newest in front
	at       map[blockhash.Sequence]*list.Element
}

func newRecent(capacity int) *recent {
	return &recent{capacity: max(1, capacity), at: map[blockhash.Sequence]*list.Element{}}
}

// addBlock adds a block. If the set is full, it returns the block that leaves it.
func (r *recent) addBlock(block blockhash.Sequence) (evicted blockhash.Sequence, isFull bool) {
	if e, ok := r.at[block]; ok {
		r.order.MoveToFront(e)
		return 0, false
	}
	r.at[block] = r.order.PushFront(block)
	if r.order.Len() <= r.capacity {
		return 0, false
	}
	evicted, _ = r.order.Remove(r.order.Back()).(blockhash.Sequence)
	delete(r.at, evicted)
	return evicted, true
}
