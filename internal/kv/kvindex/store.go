package kvindex

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prefetch"
)

// rank is the state of one rank since it was last dropped.
type rank struct {
	id     fleet.RankID
	holder uint32 // its number in members of sets; another one after each drop

	pairs atomic.Int64                // engine hashes in its table; written under mu
	needs atomic.Pointer[windowNeeds] // nil for a rank without sliding-window groups; written under mu

	mu          sync.Mutex // guards all below
	dead        bool       // dropped: writers ignore it
	lossy       bool       // blocks were evicted, or not stored for want of room
	reapedTo    int        // the reaper's position in a segment
	reaped      bool       // the reaper is done
	engine      engineTable
	twins       map[twin]int32
	windows     *windows // nil for a rank without sliding-window groups
	orphans     orphans
	predictions predictions
}

// twin counts the engine hashes beyond the first that stand for one content on one tier. An engine may hold
// the same content twice. The node loses the tier with the last of them.
type twin struct {
	seq  blockhash.Sequence
	tier uint8 // its bit
}

const twinBytes = 48

// Chain is blocks that follow each other, as an engine names them.
type Chain struct {
	// Parent is the engine's hash of the block before the first one. HasParent is false for a chain that
	// begins a prompt.
	Parent    uint64
	HasParent bool
	// Hashes are the engine's hashes of the blocks, and Blocks the hashes of their tokens. Blocks is
	// empty if the engine does not report tokens: then only hashes that it has named before are found.
	// Both are only read during the call.
	Hashes []uint64
	Blocks []blockhash.Block
}

// Store records that a rank holds a chain of blocks on a tier. Blocks whose parent is not known become
// orphans, which wait for it. Hashes without tokens that were never named before are counted as unknown.
func (x *Index) Store(id fleet.RankID, tier fleet.Tier, c Chain) {
	if tier >= fleet.Tiers {
		return
	}
	r := x.lockForStore(id, c)
	if r == nil {
		return
	}
	defer r.mu.Unlock()

	bit := uint8(1) << tier
	e := x.edit(r, bit, 0)
	x.store(r, &e, place{tier: bit}, c)
	e.done()
}

// lockForStore makes room for a chain and returns its rank, locked; nil if there is nothing to store.
func (x *Index) lockForStore(id fleet.RankID, c Chain) *rank {
	if len(c.Hashes) == 0 {
		return nil
	}
	x.makeRoom(len(c.Hashes))
	r := x.rank(id)
	r.mu.Lock()
	if r.dead { // dropped since
		r.mu.Unlock()
		return nil
	}
	x.clock.advance(len(c.Hashes))
	return r
}

// place is the bit for a block that a rank holds: the bit of a tier, or of a sliding-window group.
type place struct{ tier, group uint8 }

// store is Store and StoreWindow; e sets the bits of the place. If a block finds no room, the rest of the chain is not
// stored: no lookup could reach it.
func (x *Index) store(r *rank, e *edit, p place, c Chain) {
	if len(c.Blocks) == 0 {
		x.storeNamed(r, e, p, c.Hashes)
		return
	}
	n := min(len(c.Hashes), len(c.Blocks))
	hashes, blocks := c.Hashes[:n], c.Blocks[:n]
	if !c.HasParent {
		x.storeChain(r, e, p, 0, true, hashes, blocks)
		return
	}

	parent := c.Parent
	seq, known := r.content(parent)
	for i, h := range hashes {
		if known {
			x.storeChain(r, e, p, seq, false, hashes[i:], blocks[i:])
			return
		}
		// The parent is not known. But the engine may have named this block before, under a parent that was
		// evicted since.
		seq, known = r.content(h)
		if !known {
			x.addOrphan(r, h, parent, blocks[i], p)
		} else {
			e.expect(0, false, 1)
			if !x.storeBlock(r, e, h, seq, p) {
				return
			}
			x.storeOrphansOf(r, h, seq)
		}
		parent = h
	}
}

// storeChain stores blocks that continue content seq, or begin a prompt. It hashes two groups of 16 blocks
// ahead, and prefetches their nodes and entries, so that memory latencies overlap with the work on the
// blocks before.
func (x *Index) storeChain(r *rank, e *edit, p place, seq blockhash.Sequence, root bool, hashes []uint64, blocks []blockhash.Block) {
	var seqs [2 * prefetch.Most]blockhash.Sequence // a ring, by the number of the block
	hashed := 0
	ahead := seq
	for i, h := range hashes {
		for hashed < len(hashes) && hashed < i/prefetch.Most*prefetch.Most+len(seqs) {
			group := seqs[hashed%len(seqs):][:min(prefetch.Most, len(hashes)-hashed)]
			for j := range group {
				ahead = blockhash.Next(ahead, blocks[hashed+j])
				if root && hashed+j == 0 {
					ahead = blockhash.Sequence(blocks[0])
				}
				group[j] = ahead
			}
			x.nodes.prefetch(group)
			r.engine.prefetch(hashes[hashed:])
			hashed += len(group)
		}

		e.expect(seq, !root || i > 0, len(hashes)-i)
		seq = seqs[i%len(seqs)]
		if !x.storeBlock(r, e, h, seq, p) {
			return
		}
		x.storeOrphansOf(r, h, seq)
	}
}

// prefetchKnown loads the nodes of all engine hashes among the first 16 whose content is known. The others stay at address 0,
// which is no fault for a prefetch.
func (x *Index) prefetchKnown(r *rank, hashes []uint64) {
	var lines [prefetch.Most]uintptr
	n := min(len(hashes), prefetch.Most)
	for i := range n {
		if seq, tiers := r.engine.get(hashes[i]); tiers != 0 {
			lines[i] = uintptr(unsafe.Pointer(x.nodes.line(key(seq))))
		}
	}
	prefetch.Lines(&lines, n)
}

// content returns the content that an engine's hash stands for, in any of the rank's tables.
func (r *rank) content(hash uint64) (seq blockhash.Sequence, known bool) {
	seq, tiers := r.engine.get(hash)
	if tiers == 0 && r.windows != nil {
		seq, tiers = r.windows.table.get(hash)
	}
	return seq, tiers != 0
}

// storeBlock records that the rank holds content seq at a place. False means that there is no room.
func (x *Index) storeBlock(r *rank, e *edit, hash uint64, seq blockhash.Sequence, p place) (ok bool) {
	if p.group != 0 {
		ok = x.storeGroup(r, e, hash, seq, p.group)
	} else {
		ok = x.storeTier(r, e, hash, seq, p.tier)
	}
	r.lossy = r.lossy || !ok
	return ok
}

// edit begins a change of a rank's bits. The rank is locked until the edit is done.
func (x *Index) edit(r *rank, set, unset uint8) edit {
	now := x.clock.now()
	return edit{n: &x.nodes, holder: r.holder, set: set, clear: unset, now: now, age: now}
}

// storeNamed adds a place to blocks that the engine names without their tokens: for example when it copies
// them to another tier.
func (x *Index) storeNamed(r *rank, e *edit, p place, hashes []uint64) {
	for _, h := range hashes {
		if seq, known := r.content(h); known {
			x.storeBlock(r, e, h, seq, p)
		} else if o := r.orphans.byHash[h]; o != nil {
			o.tiers |= p.tier
			o.groups |= p.group
		} else {
			x.unknown.Add(1)
		}
	}
}

// storeTier records that the rank holds content seq under the engine's hash on the tier of bit, which is e's.
// False means that there is no room, and then nothing has changed.
func (x *Index) storeTier(r *rank, e *edit, hash uint64, seq blockhash.Sequence, bit uint8) bool {
	was, tiers, ok := r.engine.addTiers(hash, seq, bit, &x.budget)
	if tiers != 0 && was != seq {
		x.forget(r, hash, was, tiers) // the engine uses the hash for another content now
		_, tiers, ok = r.engine.addTiers(hash, seq, bit, &x.budget)
	}
	if !ok {
		return false
	}

	before, ok := e.apply(seq)
	if ok && tiers&bit == 0 && before&bit != 0 {
		ok = x.countTwin(r, twin{seq, bit})
	}
	switch {
	case ok && tiers == 0:
		r.pairs.Add(1)
	case !ok && tiers == 0:
		r.engine.remove(hash, &x.budget)
	case !ok:
		r.engine.setTiers(hash, seq, tiers, &x.budget)
	}
	return ok
}

// countTwin counts one engine hash more for a content and tier. False means that there is no room.
func (x *Index) countTwin(r *rank, t twin) bool {
	if _, ok := r.twins[t]; !ok && !x.budget.reserve(twinBytes) {
		return false
	}
	if r.twins == nil {
		r.twins = map[twin]int32{}
	}
	r.twins[t]++
	return true
}

// Remove records that a rank no longer holds blocks on a tier. Hashes that the engine never named, or that
// were evicted, are ignored.
func (x *Index) Remove(id fleet.RankID, tier fleet.Tier, hashes []uint64) {
	r := x.lookupRank(id)
	if r == nil || tier >= fleet.Tiers {
		return
	}
	x.reap(2 * len(hashes))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return
	}

	bit := uint8(1) << tier
	e := x.edit(r, 0, clears(bit))
	defer e.done()
	for i, h := range hashes {
		if i%prefetch.Most == 0 {
			if i == 0 {
				r.engine.prefetch(hashes)
			}
			x.prefetchKnown(r, hashes[i:])
			if i+prefetch.Most < len(hashes) {
				r.engine.prefetch(hashes[i+prefetch.Most:])
			}
		}
		if o := r.orphans.byHash[h]; o != nil {
			o.tiers &^= bit
			if o.tiers|o.groups == 0 {
				x.removeOrphan(r, o)
			}
		}
		if seq, tiers := r.engine.get(h); tiers&bit != 0 {
			x.removeTier(r, &e, h, seq, tiers, bit)
		}
	}
}

// clears returns the bits that a removal clears. A block that the engine has removed from its device is not
// predicted there any more.
func clears(bit uint8) uint8 {
	if bit == 1<<fleet.Device {
		bit |= predicted
	}
	return bit
}

// removeTier removes one tier of one engine hash; e clears that tier.
func (x *Index) removeTier(r *rank, e *edit, hash uint64, seq blockhash.Sequence, tiers, bit uint8) {
	t := twin{seq, bit}
	if n := r.twins[t]; n > 0 {
		r.twins[t] = n - 1
		if n == 1 {
			delete(r.twins, t)
			x.budget.release(twinBytes)
		}
	} else if before, _ := e.apply(seq); before&e.clear&predicted != 0 {
		x.disownPredicted(r, e.chunk, e.pos)
	}
	tiers &^= bit
	if tiers != 0 {
		r.engine.setTiers(hash, seq, tiers, &x.budget) // needs no room: its slot exists
		return
	}
	r.engine.remove(hash, &x.budget)
	r.pairs.Add(-1)
}

// forget removes an engine hash on all its tiers.
func (x *Index) forget(r *rank, hash uint64, seq blockhash.Sequence, tiers uint8) {
	for bit := uint8(1); bit < 1<<fleet.Tiers; bit <<= 1 {
		if tiers&bit != 0 {
			e := x.edit(r, 0, bit)
			x.removeTier(r, &e, hash, seq, tiers, bit)
			e.done()
			tiers &^= bit
		}
	}
}
