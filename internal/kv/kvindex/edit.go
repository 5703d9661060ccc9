package kvindex

import "github.com/stator-project/stator/internal/kv/blockhash"

// edit is one writer's change of many nodes: it remembers the last transition from set to
// set, because neighbours in a prompt have the same holders, and the last node, because the
// next continues it. The writer calls done at its end.
type edit struct {
	n        *nodes
	holder   uint32
	set      uint8    // bits to set
	clear    uint8    // bits to clear
	unless   uint8    // where the holder has one of these, nothing changes
	where    *stretch // unless nil, only a node there, at wherePos, changes
	wherePos uint8
	now      uint8
	age      uint8 // of the nodes that get bits, unless they are younger
	from, to *set  // the last transition; to has a reference of ours
	had, has uint8 // the holder's tiers in from and to
	cached   bool

	// parent is the block before the next one that is applied, where chained says that it has
	// one and that the writer knows it.
	parent  blockhash.Sequence
	chained bool
	left    int                // the next one and those that are expected to follow it
	last    blockhash.Sequence // applied, at stretch and pos; nil is none
	stretch *stretch
	pos     uint8
	claim   claim

	quitting *run // that nodes have left whose bits, gone, are still to be cleared
	gone     uint64
}

func (e *edit) done() {
	e.unclaim()
	e.flush()
	if e.cached {
		e.n.sets.release(e.to, 1)
	}
	*e = edit{}
}

// only says where the next node lies that is applied: one that left and came back is another.
func (e *edit) only(at *stretch, pos uint8) { e.where, e.wherePos = at, pos }

// after says what block the next one follows, and how many are likely to come, itself among them.
func (e *edit) after(parent blockhash.Sequence, chained bool, left int) {
	e.parent, e.chained, e.left = parent, chained, left
}

// apply changes the holder's tiers on one node. It returns the tiers that the holder had
// before; ok is false where there was no room, and then nothing changed. Afterwards the edit's
// stretch and pos are where the node is, or was; stretch is nil where it never had holders.
func (e *edit) apply(seq blockhash.Sequence) (before uint8, ok bool) {
	k := key(seq)
	shard := &e.n.shards[k>>56]
	shard.mu.Lock()
	before, ok = e.applyLocked(shard, seq, k)
	shard.mu.Unlock()
	return before, ok
}

func (e *edit) applyLocked(shard *nodeShard, seq blockhash.Sequence, k uint64) (before uint8, ok bool) {
	var at *slot
	found := false
	if t := shard.table.Load(); t != nil {
		at, found = t.at(k)
	}
	if !found {
		if e.set == 0 {
			e.last, e.stretch = seq, nil
			return 0, true
		}
		return 0, e.add(shard, at, seq, k)
	}
	old, pos := at.run.Load(), uint8(at.word.Load())
	if e.where != nil && (old.stretch != e.where || pos != e.wherePos) {
		return 0, true
	}
	before = e.tiers(old.set)
	if before&e.unless == 0 {
		switch after := before&^e.clear | e.set; {
		case after == before:
		case after == 0 && len(old.set.members) == 1:
			e.quit(shard, at, old, pos)
		case !e.change(shard, at, after):
			return before, false
		}
	}
	e.last, e.stretch, e.pos = seq, old.stretch, pos
	if e.set != 0 && e.now-e.age < e.now-old.stretch.used() {
		old.stretch.use(e.age)
	}
	return before, true
}

// quit gives up a node that nobody else holds. Its bit goes with those of the next ones that leave
// the same run: until then a lookup that is under way may still count the block.
func (e *edit) quit(shard *nodeShard, at *slot, r *run, pos uint8) {
	if e.quitting != r {
		e.flush()
		e.quitting = r
	}
	e.gone |= 1 << pos
	e.n.leftLocked(shard, at)
}

func (e *edit) flush() {
	if r := e.quitting; r != nil {
		r.stretch.mu.Lock()
		e.n.leaveLocked(r.stretch, r, e.gone)
		r.stretch.mu.Unlock()
	}
	e.quitting, e.gone = nil, 0
}

// add gives a node that nobody holds its first holder.
func (e *edit) add(shard *nodeShard, at *slot, seq blockhash.Sequence, k uint64) bool {
	if at = e.n.roomLocked(shard, at, k); at == nil {
		return false
	}
	to, ok := e.transition(nil, e.set)
	if !ok || !e.position(to) {
		return false
	}
	r, pos := e.claim.run, e.claim.next
	e.claim.next++
	at.word.Store(word(k, pos))
	at.run.Store(r)
	shard.live++
	e.last, e.stretch, e.pos = seq, r.stretch, pos
	return true
}

// change moves a node to the run that has the holder with other tiers. False means that there
// is no room. Without room for a smaller set the node is forgotten: fewer holders is true.
func (e *edit) change(shard *nodeShard, at *slot, tiers uint8) bool {
	to, ok := e.transition(at.run.Load().set, tiers)
	if !ok || !e.n.move(at, to) {
		if e.set != 0 {
			return false
		}
		to = nil
		e.n.move(at, nil)
	}
	if to == nil {
		e.n.leftLocked(shard, at)
	}
	return true
}

// transition returns a set with the holder's tiers replaced. It lives at least until the next
// transition.
func (e *edit) transition(old *set, tiers uint8) (*set, bool) {
	if e.cached && e.from == old && e.has == tiers {
		return e.to, true
	}
	now, ok := e.n.sets.change(old, e.holder, tiers)
	if !ok {
		return nil, false
	}
	if e.cached {
		e.n.sets.release(e.to, 1)
	}
	e.from, e.to, e.cached, e.had, e.has = old, now, true, old.tiers(e.holder), tiers
	return now, true
}

// tiers are the holder's in a set.
func (e *edit) tiers(s *set) uint8 {
	if e.cached && e.from == s {
		return e.had
	}
	return s.tiers(e.holder)
}
