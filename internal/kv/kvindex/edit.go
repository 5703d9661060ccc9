package kvindex

import "github.com/stator-project/stator/internal/kv/blockhash"

// edit is one writer's change of one holder's bits on many nodes.
//
// It keeps the last transition from one set to another, because neighbours in a prompt have the same holders.
// It keeps the last node, because the next one mostly continues it. It reserves positions in a chunk for the
// blocks that are expected to follow, and clears the bits of nodes that leave a run together. So the writer
// must call done at its end. An edit belongs to one goroutine, which holds the rank's lock.
type edit struct {
	n        *nodes
	holder   uint32
	set      uint8  // bits to set
	clear    uint8  // bits to clear
	unless   uint8  // if the holder has one of these bits, nothing changes
	where    *chunk // if not nil, only a node there, at wherePos, changes
	wherePos uint8
	now      uint8
	age      uint8 // for nodes that get bits, unless they are younger

	lastChange

	// parent is the block before the next one that is applied, if chained is true: a root has none, and the
	// writer may not know it.
	parent   blockhash.Sequence
	chained  bool
	left     int                // how many blocks are expected, the next one included
	last     blockhash.Sequence // the last block applied, at chunk and pos; chunk nil means that it has no node
	chunk    *chunk
	pos      uint8
	reserved reservation

	leaving *holderRun // whose bits gone are still to be cleared: nodes have left it
	gone    uint64
}

// lastChange is the last change of a node's set that an edit made. The next node mostly has the same one.
type lastChange struct {
	from, to *set  // the edit has a reference to to
	had, has uint8 // the holder's bits in from and to
	cached   bool
}

// done gives back the reservations and the set that the edit holds. The edit must not be used afterwards.
func (e *edit) done() {
	e.unreserve()
	e.flush()
	if e.cached {
		e.n.sets.release(e.to, 1)
	}
	*e = edit{}
}

// restrictTo makes apply change the next node only if it lies at a position of a chunk. A block that was
// evicted and stored again lies elsewhere, and is another block to predictions.
func (e *edit) restrictTo(at *chunk, pos uint8) { e.where, e.wherePos = at, pos }

// expect sets which block the next one follows, and how many blocks are likely to come, the next included.
func (e *edit) expect(parent blockhash.Sequence, chained bool, left int) {
	e.parent, e.chained = parent, chained
	e.left = left
}

// apply changes the holder's bits on one node, and returns its bits before. ok is false if there was no room,
// and then nothing changed. Afterwards the edit's chunk and pos are the present or last place of the node;
// chunk is nil if it had no node.
//
//	node            bits afterwards   effect
//	none            none              none
//	none            some              a node is added, at a reserved position
//	some            none              the node's holder goes; without holders, so does the node
//	some            others            the node moves to the run of the other set
func (e *edit) apply(seq blockhash.Sequence) (before uint8, ok bool) {
	k := key(seq)
	shard := &e.n.shards[k>>56]
	shard.mu.Lock()
	before, ok = e.applyLocked(shard, seq, k)
	shard.mu.Unlock()
	return before, ok
}

// applyLocked is apply while the node's shard is locked.
func (e *edit) applyLocked(shard *nodeShard, seq blockhash.Sequence, k uint64) (before uint8, ok bool) {
	var at *slot
	found := false
	if t := shard.table.Load(); t != nil {
		at, found = t.at(k)
	}
	if !found {
		if e.set == 0 {
			e.last, e.chunk = seq, nil
			return 0, true
		}
		return 0, e.addNode(shard, at, seq, k)
	}
	old, pos := at.run.Load(), uint8(at.word.Load())
	if e.where != nil && (old.chunk != e.where || pos != e.wherePos) {
		return 0, true
	}

	before = e.tiers(old.set)
	if before&e.unless == 0 {
		switch after := before&^e.clear | e.set; {
		case after == before:
		case after == 0 && len(old.set.members) == 1:
			e.leave(shard, at, old, pos)
		case !e.change(shard, at, after):
			return before, false
		}
	}
	e.last = seq
	e.chunk, e.pos = old.chunk, pos
	if e.set != 0 && e.now-e.age < e.now-old.chunk.used() {
		old.chunk.setAge(e.age)
	}
	return before, true
}

// leave removes a node that has no other holder. Its bit in the run is cleared later, with the bits of the next nodes that leave the same
// run. Until then a lookup that runs at the same time may still count the block.
func (e *edit) leave(shard *nodeShard, at *slot, r *holderRun, pos uint8) {
	if e.leaving != r {
		e.flush()
		e.leaving = r
	}
	e.gone |= 1 << pos
	e.n.leftLocked(shard, at)
}

// flush clears the bits of the nodes that have left a run.
func (e *edit) flush() {
	if r := e.leaving; r != nil {
		r.chunk.mu.Lock()
		e.n.leaveLocked(r.chunk, r, e.gone)
		r.chunk.mu.Unlock()
	}
	e.leaving, e.gone = nil, 0
}

// addNode makes the node of a block that has no holder yet. False means that there is no room.
func (e *edit) addNode(shard *nodeShard, at *slot, seq blockhash.Sequence, k uint64) bool {
	at = e.n.roomLocked(shard, at, k)
	if at == nil {
		return false
	}
	to, ok := e.transition(nil, e.set)
	if !ok || !e.reserve(to) {
		return false
	}

	r, pos := e.reserved.run, e.reserved.next
	e.reserved.next++
	at.word.Store(word(k, pos)) // before run: readers ignore a slot without a run
	at.run.Store(r)
	shard.live++
	e.last = seq
	e.chunk, e.pos = r.chunk, pos
	return true
}

// change moves a node to the run in which the holder has other bits. False means that there is no room. If
// there is no room even for a smaller set, the node is removed: fewer holders than there are is allowed.
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

// transition returns a set with the holder's bits replaced. The set lives at least until the next transition.
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
	e.from, e.to = old, now
	e.had, e.has = old.tiers(e.holder), tiers
	e.cached = true
	return now, true
}

// tiers are the holder's bits in a set.
func (e *edit) tiers(s *set) uint8 {
	if e.cached && e.from == s {
		return e.had
	}
	return s.tiers(e.holder)
}
