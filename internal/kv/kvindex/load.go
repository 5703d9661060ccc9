package kvindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"

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

// dump is a parsed dump. Its slices alias the bytes of the dump.
type dump struct {
	groups   []windowGroup
	sections []section
	entries  int
	orphans  orphanReader
}

var errDumpShort = errors.New("it ends too early")

// parseDump checks a whole dump, so that loading it cannot fail halfway.
func parseDump(raw []byte) (*dump, error) {
	if len(raw) < 1+8 {
		return nil, errDumpShort
	}
	if raw[0] != dumpVersion {
		return nil, fmt.Errorf("version %d is not supported, only %d is", raw[0], dumpVersion)
	}
	body, sum := raw[:len(raw)-8], binary.LittleEndian.Uint64(raw[len(raw)-8:])
	if xxh3.Hash(body) != sum {
		return nil, errors.New("the checksum does not match")
	}

	d := &dump{}
	body, err := d.parseGroups(body[1:])
	if err != nil {
		return nil, err
	}

	for {
		if len(body) == 0 {
			return nil, errDumpShort
		}
		if body[0] == sectionEnd {
			body = body[1:]
			break
		}
		s, blocks, rest, err := parseSection(body, len(d.groups))
		if err != nil {
			return nil, err
		}
		d.sections = append(d.sections, s)
		d.entries += blocks
		body = rest
	}

	d.orphans, err = parseOrphans(body, len(d.groups))
	return d, err
}

// parseGroups reads the sliding-window groups.
func (d *dump) parseGroups(body []byte) (rest []byte, err error) {
	if len(body) == 0 {
		return nil, errDumpShort
	}
	count := int(body[0])
	if count > windowGroups {
		return nil, fmt.Errorf("it has %d sliding-window groups, at most %d are possible", count, windowGroups)
	}
	body = body[1:]
	for range count {
		number, n := binary.Uvarint(body)
		if n <= 0 {
			return nil, errDumpShort
		}
		window, m := binary.Uvarint(body[n:])
		if m <= 0 || number > math.MaxInt32 || window == 0 || window > math.MaxInt32 {
			return nil, errors.New("a sliding-window group is out of bounds")
		}

		g := windowGroup{number: int(number), window: int(window)}
		if slices.ContainsFunc(d.groups, func(o windowGroup) bool { return o.number == g.number }) {
			return nil, fmt.Errorf("it has sliding-window group %d twice", number)
		}
		d.groups = append(d.groups, g)
		body = body[n+m:]
	}
	return body, nil
}

// isPossible reports whether a mask is valid in a kind of section.
func isPossible(kind, mask uint8, groups int) bool {
	switch kind {
	case sectionTiers:
		return mask != 0 && mask < 1<<fleet.Tiers
	case sectionGroup:
		return mask != 0 && int(mask) < 1<<groups
	}
	return false
}

// section is the blocks of one kind and class of age. It has been checked.
type section struct {
	kind, class uint8
	body        []byte // its pieces, without the end of the section
}

// piece is blocks of a section that have the same mask.
type piece struct {
	count       int
	flags, mask uint8
	body        []byte
}

const pieceEntry = 16 // bytes: a sequence hash and an engine's hash

// parseSection checks the section at the beginning of body, and returns its number of blocks.
func parseSection(body []byte, groups int) (s section, blocks int, rest []byte, err error) {
	if len(body) < 2 {
		return s, 0, nil, errDumpShort
	}
	s.kind, s.class = body[0], body[1]
	if s.kind > sectionGroup || int(s.class) >= ageClasses {
		return s, 0, nil, fmt.Errorf("a section of kind %d and class %d is not supported", s.kind, s.class)
	}

	body = body[2:]
	for at := 0; ; {
		head, n := binary.Uvarint(body[at:])
		if n <= 0 {
			return s, 0, nil, errDumpShort
		}
		count := head >> pieceFlags
		if count == 0 {
			s.body = body[:at]
			return s, blocks, body[at+n:], nil
		}
		if left := len(body) - at - n - 1; left < 0 || count > uint64(left)/pieceEntry {
			return s, 0, nil, errDumpShort
		}
		if mask := body[at+n]; !isPossible(s.kind, mask, groups) {
			return s, 0, nil, fmt.Errorf("a piece's mask is %#x", mask)
		}
		blocks += int(count)
		at += n + 1 + int(count)*pieceEntry
	}
}

// pieces returns an iterator over the section's pieces.
func (s *section) pieces() pieces { return pieces{s.body} }

// pieces is an iterator over pieces: call next as long as more is true.
type pieces struct{ body []byte }

// more reports whether pieces are left.
func (a *pieces) more() bool { return len(a.body) > 0 }

// next returns the next piece. There is one.
func (a *pieces) next() piece {
	head, n := binary.Uvarint(a.body)
	p := piece{count: int(head >> pieceFlags), flags: uint8(head & (1<<pieceFlags - 1)), mask: a.body[n]}
	end := n + 1 + p.count*pieceEntry
	p.body, a.body = a.body[n+1:end], a.body[end:]
	return p
}

// at returns the i-th block of the piece.
func (p *piece) at(i int) entry {
	raw := p.body[i*pieceEntry:]
	return entry{hash: binary.LittleEndian.Uint64(raw[8:]), seq: blockhash.Sequence(binary.LittleEndian.Uint64(raw))}
}

// orphanReader is an iterator over the orphans of a dump: call next as long as more is true.
type orphanReader struct {
	body []byte
	left int    // orphans
	last uint64 // the hash of the orphan before
}

// parseOrphans checks the orphans, which end the body.
func parseOrphans(body []byte, groups int) (orphanReader, error) {
	count, n := binary.Uvarint(body)
	if n <= 0 || count > uint64(len(body)) {
		return orphanReader{}, errDumpShort
	}
	w := orphanReader{body: body[n:], left: int(count)}
	at := 0
	for range w.left {
		if len(w.body)-at < 2 {
			return orphanReader{}, errDumpShort
		}
		flags, mask := w.body[at], w.body[at+1]
		if tiers := flags &^ orphanSameParent; tiers|mask == 0 || tiers >= 1<<fleet.Tiers || int(mask) >= 1<<groups {
			return orphanReader{}, fmt.Errorf("a waiting block's tiers are %#x, its groups %#x", tiers, mask)
		}
		at += 2 + 3*8
		if flags&orphanSameParent != 0 {
			at -= 8
		}
	}
	if at != len(w.body) {
		return orphanReader{}, errors.New("it does not end where it should")
	}
	return w, nil
}

// more reports whether orphans are left.
func (w *orphanReader) more() bool { return w.left > 0 }

func (w *orphanReader) next() (o orphan) {
	word := func() uint64 {
		v := binary.LittleEndian.Uint64(w.body)
		w.body = w.body[8:]
		return v
	}
	flags := w.body[0]
	o.tiers, o.groups = flags&^orphanSameParent, w.body[1]
	w.body = w.body[2:]
	o.hash = word()
	o.parent = w.last
	if flags&orphanSameParent == 0 {
		o.parent = word()
	}
	o.block = blockhash.Block(word())
	w.left, w.last = w.left-1, o.hash
	return o
}
