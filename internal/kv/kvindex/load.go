package kvindex

import (
	"fmt"
	"unsafe"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prefetch"
)

// Load replaces the state of a rank, predictions included, by a dump of [Index.AppendDump]. On an error
// nothing changes. Lookups see either the old state or all of the new one. If there is no room for the whole
// dump, the blocks that were used most recently are loaded.
//
// Several ranks may be loaded at the same time. Other writes to the same rank must not overlap with Load,
// because they would be lost.
func (x *Index) Load(id fleet.RankID, dump []byte) error {
	d, err := parseDump(dump)
	if err != nil {
		return fmt.Errorf("load dump: %w", err)
	}
	need := int64(d.entries) * (entryBytes + slotBytes) * 3 / 2
	if x.budget.used.Load()+need > x.budget.max-x.budget.max/8 {
		x.Drop(id) // there is no room for the old state beside the new one
	}

	r := x.newUnlisted(id) // no other goroutine sees it, so its lock is not needed
	x.restore(r, d)
	x.enlist(r)
	return nil
}

// newUnlisted returns a new rank that lookups do not see yet. It has a holder number.
func (x *Index) newUnlisted(id fleet.RankID) *rank {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.newRankLocked(id)
	x.holders.Store(with(*x.holders.Load(), int(r.holder), nil))
	return r
}

// enlist makes r the rank of its id, and drops the one before, if there is one.
func (x *Index) enlist(r *rank) {
	x.mu.Lock()
	holders := with(*x.holders.Load(), int(r.holder), r)
	old := x.lookupRank(r.id)
	if old != nil {
		(*holders)[old.holder] = nil
		x.dropped = append(x.dropped, old)
	}
	x.holders.Store(holders)
	x.byID.Store(with(*x.byID.Load(), int(r.id), r))
	x.mu.Unlock()
	if old != nil {
		old.mu.Lock()
		old.dead = true
		old.mu.Unlock()
	}
}

// loadStep is the number of blocks that are stored between two checks of the budget.
const loadStep = 1024

// restore stores a parsed dump in an unlisted rank.
func (x *Index) restore(r *rank, d *dump) {
	// The table grows at once to the size that there is room for, so that it is not copied again and again.
	room := (x.budget.max - x.budget.used.Load()) / (2 * (entryBytes + slotBytes))
	r.engine.grow(min(d.entries, int(max(room, 0))), &x.budget)
	for _, g := range d.groups {
		x.windowGroup(r, g.number, g.window)
	}

	now := x.clock.now()
	for class := range ageClasses {
		for i := range d.sections {
			if s := &d.sections[i]; int(s.class) == class && !x.restoreSection(r, s, now) {
				return
			}
		}
	}
	for o := d.orphans; o.more(); {
		p := o.next()
		x.addOrphan(r, p.hash, p.parent, p.block, place{p.tiers, p.groups})
	}
}

// restoreSection stores one section. False means that there is no room.
func (x *Index) restoreSection(r *rank, s *section, now uint8) bool {
	age := now
	if s.class > 0 {
		age -= ageLimits[s.class-1]
	}
	var parent blockhash.Sequence
	stored := 0

	for at := s.pieces(); at.more(); {
		p := at.next()
		stored += p.count
		if stored > loadStep {
			stored = 0
			if !x.makeRoom(loadStep) {
				r.lossy = true
				return false
			}
		}
		for bit := uint8(1); bit != 0; bit <<= 1 {
			if p.mask&bit != 0 && !x.restorePiece(r, p, s.kind, bit, age, parent) {
				return false
			}
		}
		parent = p.at(p.count - 1).seq
	}
	return true
}

// restorePiece stores a piece on one tier or in one group, whose bit it is. parent is the block before it in
// the section.
func (x *Index) restorePiece(r *rank, p piece, kind, bit, age uint8, parent blockhash.Sequence) bool {
	where, sets := place{tier: bit}, bit
	if kind == sectionGroup {
		where, sets = place{group: bit}, 1<<(firstWindow+r.windows.class(bit))
	}
	e := x.edit(r, sets, 0)
	e.age = age
	defer e.done()

	loose := p.flags&pieceLoose != 0
	for i := range p.count {
		left := p.count - i
		if loose {
			left = 1
		}
		chained := i == 0 && p.flags&pieceContinues != 0 || i > 0 && !loose
		e.expect(parent, chained, left)
		if i%prefetch.Most == 0 {
			x.prefetchPiece(r, p, i)
		}
		entry := p.at(i)
		if !x.storeBlock(r, &e, entry.hash, entry.seq, where) {
			return false
		}
		parent = entry.seq
	}
	return true
}

// prefetchPiece loads the nodes and entries of the next 16 blocks of a piece. A dump has millions of blocks, whose
// nodes are spread over all tables.
func (x *Index) prefetchPiece(r *rank, p piece, from int) {
	var hashes [prefetch.Most]uint64
	var lines [prefetch.Most]uintptr
	n := min(prefetch.Most, p.count-from)
	for i := range n {
		entry := p.at(from + i)
		hashes[i], lines[i] = entry.hash, uintptr(unsafe.Pointer(x.nodes.line(key(entry.seq))))
	}
	r.engine.prefetch(hashes[:n])
	prefetch.Lines(&lines, n)
}
