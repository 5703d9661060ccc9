package pool

import (
	"encoding/binary"

	"github.com/stator-project/stator/internal/kv/block"
)

// index finds the slot of a key: an open hash table with linear probing, at most half full. A Go map would need memory from time
// to time when keys come and go. Keys are digests, so their bytes are the hash.
type index struct {
	table []int32 // slot + 1; 0 is empty
}

func newIndex(slots int) index {
	size := 2
	for size < 2*slots {
		size *= 2
	}
	return index{table: make([]int32, size)}
}

// home is the position at which the search for a key begins.
func (x *index) home(key *block.Key) int {
	return int(binary.LittleEndian.Uint64(key[:]) & uint64(len(x.table)-1))
}

func (x *index) next(at int) int { return (at + 1) & (len(x.table) - 1) }

// find returns the slot of a key, and -1 if none has it.
func (x *index) find(slots []slot, key block.Key) int32 {
	for at := x.home(&key); x.table[at] != 0; at = x.next(at) {
		if i := x.table[at] - 1; slots[i].key == key {
			return i
		}
	}
	return -1
}

// addSlot enters a slot whose key is in no other.
func (x *index) addSlot(slots []slot, i int32) {
	at := x.home(&slots[i].key)
	for x.table[at] != 0 {
		at = x.next(at)
	}
	x.table[at] = i + 1
}

// remove takes a slot out, and moves those behind it that a search would no longer reach.
func (x *index) remove(slots []slot, i int32) {
	hole := x.home(&slots[i].key)
	for x.table[hole] != i+1 {
		hole = x.next(hole)
	}
	x.table[hole] = 0

	for at := x.next(hole); x.table[at] != 0; at = x.next(at) {
		home := x.home(&slots[x.table[at]-1].key)
		mask := len(x.table) - 1
		if (at-home)&mask >= (at-hole)&mask { // its search passes the hole
			x.table[hole] = x.table[at]
			x.table[at] = 0
			hole = at
		}
	}
}
