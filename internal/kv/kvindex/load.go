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
)

// Load replaces what is known of a rank, predictions included, by a dump of [Index.AppendDump].
// Where the dump is not whole or not one of ours it says why, and nothing changes. Lookups see
// the old rank or the new one, nothing between. A dump larger than the index has room for
// is loaded as far as it goes, what was used last first.
//
// Several ranks may be loaded at once. Calls for one rank must not overlap with other writes to
// that rank: what they write is lost.
func (x *Index) Load(id fleet.RankID, dump []byte) error {
	d, err := parseDump(dump)
	if err != nil {
		return fmt.Errorf("load dump: %w", err)
	}
	need := int64(d.entries) * (entryBytes + slotBytes) * 3 / 2
	if x.budget.used.Load()+need > x.budget.max-x.budget.max/8 {
		x.Drop(id) // no room for two
	}
	r := x.unlisted(id) // and so ours alone, without its lock
	x.restore(r, d)
	x.enlist(r)
	return nil
}

// unlisted returns a new rank that no reader sees yet.
func (x *Index) unlisted(id fleet.RankID) *rank {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.newRankLocked(id)
	x.holders.Store(with(*x.holders.Load(), int(r.holder), nil))
	return r
}

// enlist puts r in the place of the rank of its number, if there is one.
func (x *Index) enlist(r *rank) {
	x.mu.Lock()
	holders := with(*x.holders.Load(), int(r.holder), r)
	old := x.known(r.id)
	if old != nil {
		(*holders)[old.holder] = nil
		x.grave = append(x.grave, old)
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

// loadStep is how many blocks are stored between two looks at the budget.
const loadStep = 1024

// restore stores a parsed dump in an unlisted rank.
func (x *Index) restore(r *rank, d *dump) {
	// At once what there is room for with the nodes, so that no table is copied as it grows.
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
		x.park(r, p.hash, p.parent, p.block, place{p.tiers, p.groups})
	}
}

// restoreSection stores one section; false means that there is no room.
func (x *Index) restoreSection(r *rank, s *section, now uint8) bool {
	age := now
	if s.class > 0 {
		age -= ageLimits[s.class-1]
	}
	var parent blockhash.Sequence
	stored := 0
	for at := s.pieces(); at.more(); {
		p := at.next()
		if stored += p.count; stored > loadStep {
			if stored = 0; !x.makeRoom(loadStep) {
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
		if e.after(parent, i == 0 && p.flags&pieceContinues != 0 || i > 0 && !loose, left); i%prefetches == 0 {
			x.fetchPiece(r, p, i)
		}
		entry := p.at(i)
		if !x.hold(r, &e, entry.hash, entry.seq, where) {
			return false
		}
		parent = entry.seq
	}
	return true
}

// fetchPiece has the memory fetched that the next 16 blocks of a piece will need.
func (x *Index) fetchPiece(r *rank, p piece, from int) {
	var hashes [prefetches]uint64
	var lines [prefetches]uintptr
	n := min(prefetches, p.count-from)
	for i := range n {
		entry := p.at(from + i)
		hashes[i], lines[i] = entry.hash, uintptr(unsafe.Pointer(x.nodes.line(key(entry.seq))))
	}
	r.engine.fetch(hashes[:n])
	prefetch(&lines, n)
}

// dump is a parsed dump. Everything in it lies in the dump's own bytes.
type dump struct {
	groups   []windowGroup
	sections []section
	entries  int
	orphans  waiting
}

var errDumpShort = errors.New("it ends too early")

// parseDump checks a dump from end to end, so that loading it cannot fail.
func parseDump(raw []byte) (*dump, error) {
	if len(raw) < 1+8 {
		return nil, errDumpShort
	}
	if raw[0] != dumpVersion {
		return nil, fmt.Errorf("version %d is not known here, only %d", raw[0], dumpVersion)
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
		d.sections, body = append(d.sections, s), rest
		d.entries += blocks
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
		d.groups, body = append(d.groups, g), body[n+m:]
	}
	return body, nil
}

// possible says whether a mask may be of a kind of section.
func possible(kind, mask uint8, groups int) bool {
	switch kind {
	case sectionTiers:
		return mask != 0 && mask < 1<<fleet.Tiers
	case sectionGroup:
		return mask != 0 && int(mask) < 1<<groups
	}
	return false
}

// section is blocks of one kind and age. It has been checked.
type section struct {
	kind, class uint8
	body        []byte // of its pieces, without the end
}

// piece is blocks that are held alike.
type piece struct {
	count       int
	flags, mask uint8
	body        []byte
}

const pieceEntry = 16

func parseSection(body []byte, groups int) (s section, blocks int, rest []byte, err error) {
	if len(body) < 2 {
		return s, 0, nil, errDumpShort
	}
	s.kind, s.class = body[0], body[1]
	if s.kind > sectionGroup || int(s.class) >= ageClasses {
		return s, 0, nil, fmt.Errorf("a section of kind %d and class %d is not known here", s.kind, s.class)
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
		if mask := body[at+n]; !possible(s.kind, mask, groups) {
			return s, 0, nil, fmt.Errorf("a piece's mask is %#x", mask)
		}
		blocks += int(count)
		at += n + 1 + int(count)*pieceEntry
	}
}

// pieces walks a section's.
func (s *section) pieces() pieces { return pieces{s.body} }

type pieces struct{ body []byte }

func (a *pieces) more() bool { return len(a.body) > 0 }

func (a *pieces) next() piece {
	head, n := binary.Uvarint(a.body)
	p := piece{count: int(head >> pieceFlags), flags: uint8(head & (1<<pieceFlags - 1)), mask: a.body[n]}
	end := n + 1 + p.count*pieceEntry
	p.body, a.body = a.body[n+1:end], a.body[end:]
	return p
}

func (p *piece) at(i int) entry {
	raw := p.body[i*pieceEntry:]
	return entry{hash: binary.LittleEndian.Uint64(raw[8:]), seq: blockhash.Sequence(binary.LittleEndian.Uint64(raw))}
}

// waiting walks the orphans of a dump.
type waiting struct {
	body []byte
	left int
	last uint64
}

func parseOrphans(body []byte, groups int) (waiting, error) {
	count, n := binary.Uvarint(body)
	if n <= 0 || count > uint64(len(body)) {
		return waiting{}, errDumpShort
	}
	w := waiting{body: body[n:], left: int(count)}
	at := 0
	for range w.left {
		if len(w.body)-at < 2 {
			return waiting{}, errDumpShort
		}
		flags, mask := w.body[at], w.body[at+1]
		if tiers := flags &^ orphanSameParent; tiers|mask == 0 || tiers >= 1<<fleet.Tiers || int(mask) >= 1<<groups {
			return waiting{}, fmt.Errorf("a waiting block's tiers are %#x, its groups %#x", tiers, mask)
		}
		if at += 2 + 24; flags&orphanSameParent != 0 {
			at -= 8
		}
	}
	if at != len(w.body) {
		return waiting{}, errors.New("it does not end where it should")
	}
	return w, nil
}

func (w *waiting) more() bool { return w.left > 0 }

func (w *waiting) next() (o orphan) {
	word := func() (v uint64) {
		v, w.body = binary.LittleEndian.Uint64(w.body), w.body[8:]
		return v
	}
	flags := w.body[0]
	o.groups, w.body = w.body[1], w.body[2:]
	o.tiers, o.hash, o.parent = flags&^orphanSameParent, word(), w.last
	if flags&orphanSameParent == 0 {
		o.parent = word()
	}
	o.block = blockhash.Block(word())
	w.left, w.last = w.left-1, o.hash
	return o
}
