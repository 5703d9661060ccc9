package kvindex

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// rank is what is known of one rank since it was last dropped or cleared.
type rank struct {
	id     fleet.RankID
	holder uint32

	pairs atomic.Int64                // engine hashes known
	needs atomic.Pointer[windowNeeds] // nil where the rank has no sliding-window groups

	mu          sync.Mutex // guards all below
	dead        bool
	buried      int  // the reaper's place in a segment
	interred    bool // the reaper is done
	engine      engineTable
	twins       map[twin]int32
	windows     *windows // nil where the rank has none
	orphans     orphans
	predictions predictions
}

// twin counts the engine hashes beyond the first that stand for the same content on the same
// tier: the content is held until the last of them is removed.
type twin struct {
	seq  blockhash.Sequence
	tier uint8 // its bit
}

const twinBytes = 48

// Store is told that rank holds blocks on tier: a chain of content hashes, named by the
// engine's hashes, that continues parent, or begins a prompt where there is none. Blocks
// whose parent is unknown wait for it. Where blocks is empty the engine did not say the
// tokens: the hashes it has named before are found by name, the others are counted as
// unknown. Both slices are only read during the call.
func (x *Index) Store(id fleet.RankID, tier fleet.Tier, parent uint64, hasParent bool, hashes []uint64, blocks []blockhash.Block) {
	if tier >= fleet.Tiers || len(hashes) == 0 {
		return
	}
	x.makeRoom(len(hashes))
	r := x.rank(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return
	}
	bit := uint8(1) << tier
	x.clock.advance(len(hashes))
	e := x.edit(r, bit, 0)
	x.store(r, &e, place{tier: bit}, parent, hasParent, hashes, blocks)
	e.done()
}

// place is where a rank holds a block: a tier's bit, or a sliding-window group's.
type place struct{ tier, group uint8 }

// store is Store and StoreWindow; e sets the bits of the place.
func (x *Index) store(r *rank, e *edit, p place, parent uint64, hasParent bool, hashes []uint64, blocks []blockhash.Block) {
	if len(blocks) == 0 {
		x.join(r, e, p, hashes)
		return
	}
	n := min(len(hashes), len(blocks))
	hashes, blocks = hashes[:n], blocks[:n]
	if !hasParent {
		x.chain(r, e, p, 0, true, hashes, blocks)
		return
	}
	seq, known := r.content(parent)
	for i, h := range hashes {
		if known {
			x.chain(r, e, p, seq, false, hashes[i:], blocks[i:])
			return
		}
		// An engine may name again what it named before, under a parent we lost.
		if seq, known = r.content(h); !known {
			x.park(r, h, parent, blocks[i], p)
		} else {
			e.after(0, false, 1)
			if !x.hold(r, e, h, seq, p) {
				return // no room: the rest would hang in the air
			}
			x.adopt(r, h, seq)
		}
		parent = h
	}
}

// chain stores blocks that continue content seq, or begin a prompt.
func (x *Index) chain(r *rank, e *edit, p place, seq blockhash.Sequence, root bool, hashes []uint64, blocks []blockhash.Block) {
	var seqs [2 * prefetches]blockhash.Sequence // by number of the block modulo their number
	hashed := 0
	ahead := seq
	for i, h := range hashes {
		for hashed < len(hashes) && hashed < i/prefetches*prefetches+len(seqs) {
			group := seqs[hashed%len(seqs):][:min(prefetches, len(hashes)-hashed)]
			for j := range group {
				if ahead = blockhash.Next(ahead, blocks[hashed+j]); root && hashed+j == 0 {
					ahead = blockhash.Sequence(blocks[0])
				}
				group[j] = ahead
			}
			x.nodes.fetch(group)
			r.engine.fetch(hashes[hashed:])
			hashed += len(group)
		}
		e.after(seq, !root || i > 0, len(hashes)-i)
		seq = seqs[i%len(seqs)]
		if !x.hold(r, e, h, seq, p) {
			return // no room: the rest would hang in the air
		}
		x.adopt(r, h, seq)
	}
}

// fetchKnown has the nodes fetched of the first 16 engine hashes whose content is known.
func (x *Index) fetchKnown(r *rank, hashes []uint64) {
	var lines [prefetches]uintptr
	n := min(len(hashes), prefetches)
	for i := range n {
		if seq, tiers := r.engine.get(hashes[i]); tiers != 0 {
			lines[i] = uintptr(unsafe.Pointer(x.nodes.line(key(seq))))
		}
	}
	prefetch(&lines, n)
}

// content is what an engine's hash stands for.
func (r *rank) content(hash uint64) (seq blockhash.Sequence, known bool) {
	seq, tiers := r.engine.get(hash)
	if tiers == 0 && r.windows != nil {
		seq, tiers = r.windows.table.get(hash)
	}
	return seq, tiers != 0
}

// hold records that the rank holds content seq at a place. False means that there is no room.
func (x *Index) hold(r *rank, e *edit, hash uint64, seq blockhash.Sequence, p place) bool {
	if p.group != 0 {
		return x.putWindow(r, e, hash, seq, p.group)
	}
	return x.put(r, e, hash, seq, p.tier)
}

func (x *Index) edit(r *rank, set, unset uint8) edit {
	now := x.clock.now()
	return edit{n: &x.nodes, holder: r.holder, set: set, clear: unset, now: now, age: now}
}

// join adds a place to blocks that the engine names without saying their tokens.
func (x *Index) join(r *rank, e *edit, p place, hashes []uint64) {
	for _, h := range hashes {
		if seq, known := r.content(h); known {
			x.hold(r, e, h, seq, p)
		} else if o := r.orphans.byHash[h]; o != nil {
			o.tiers |= p.tier
			o.groups |= p.group
		} else {
			x.unknown.Add(1)
		}
	}
}

// put records that the rank holds content seq under the engine's hash on the tier of bit,
// which is e's. False means that there is no room.
func (x *Index) put(r *rank, e *edit, hash uint64, seq blockhash.Sequence, bit uint8) bool {
	was, tiers, ok := r.engine.add(hash, seq, bit, &x.budget)
	if tiers != 0 && was != seq {
		x.forget(r, hash, was, tiers) // the engine's hash now stands for something else
		_, tiers, ok = r.engine.add(hash, seq, bit, &x.budget)
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
		r.engine.set(hash, seq, tiers, &x.budget)
	}
	return ok
}

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

// Remove is told that rank no longer holds blocks on tier. Hashes it never named, or that
// were forgotten under pressure, are ignored.
func (x *Index) Remove(id fleet.RankID, tier fleet.Tier, hashes []uint64) {
	r := x.known(id)
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
		if i%prefetches == 0 {
			if i == 0 {
				r.engine.fetch(hashes)
			}
			x.fetchKnown(r, hashes[i:])
			if i+prefetches < len(hashes) {
				r.engine.fetch(hashes[i+prefetches:])
			}
		}
		if o := r.orphans.byHash[h]; o != nil {
			if o.tiers &^= bit; o.tiers|o.groups == 0 {
				x.unpark(r, o)
			}
		}
		if seq, tiers := r.engine.get(h); tiers&bit != 0 {
			x.take(r, &e, h, seq, tiers, bit)
		}
	}
}

// clears returns the bits that a removal takes: what the engine says of its device overrules
// what was predicted of it.
func clears(bit uint8) uint8 {
	if bit == 1<<fleet.Device {
		bit |= predicted
	}
	return bit
}

// take removes one tier of one engine hash; e clears that tier.
func (x *Index) take(r *rank, e *edit, hash uint64, seq blockhash.Sequence, tiers, bit uint8) {
	t := twin{seq, bit}
	if n := r.twins[t]; n > 0 {
		if r.twins[t] = n - 1; n == 1 {
			delete(r.twins, t)
			x.budget.release(twinBytes)
		}
	} else if before, _ := e.apply(seq); before&e.clear&predicted != 0 {
		x.unpredict(r, e.stretch, e.pos)
	}
	if tiers &^= bit; tiers != 0 {
		r.engine.set(hash, seq, tiers, &x.budget) // its slot exists
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
			x.take(r, &e, hash, seq, tiers, bit)
			e.done()
			tiers &^= bit
		}
	}
}
