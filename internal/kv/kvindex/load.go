package kvindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

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
	for bit := uint8(1); bit != 0; bit <<= 1 {
		if s.mask&bit == 0 {
			continue
		}
		p, sets := place{tier: bit}, bit
		if s.kind == sectionGroup {
			p, sets = place{group: bit}, 1<<(firstWindow+r.windows.class(bit))
		}
		e := x.edit(r, sets, 0)
		e.age = age
		ok := x.restoreEntries(r, &e, p, s.entries())
		e.done()
		if !ok {
			return false
		}
	}
	return true
}

func (x *Index) restoreEntries(r *rank, e *edit, p place, at entriesAt) bool {
	for i := 0; at.more(); i++ {
		if i%loadStep == 0 && !x.makeRoom(loadStep) {
			return false
		}
		if entry := at.next(); !x.hold(r, e, entry.hash, entry.seq, p) {
			return false
		}
	}
	return true
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
		s, rest, err := parseSection(body, len(d.groups))
		if err != nil {
			return nil, err
		}
		d.sections, body = append(d.sections, s), rest
		d.entries += s.count
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
		if m <= 0 || number > 1<<30 || window == 0 || window > 1<<30 {
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

func parseSection(body []byte, groups int) (s section, rest []byte, err error) {
	if len(body) < 4 {
		return s, nil, errDumpShort
	}
	s.kind, s.class, s.mask = body[0], body[1], body[2]
	if int(s.class) >= ageClasses || !possible(s.kind, s.mask, groups) {
		return s, nil, fmt.Errorf("a section of kind %d, class %d, mask %#x is not known here", s.kind, s.class, s.mask)
	}
	body = body[3:]
	count, n := binary.Uvarint(body)
	if n <= 0 || count > uint64(len(body)) {
		return s, nil, errDumpShort
	}
	body = body[n:]
	s.count, s.width = int(count), bucketWidth(int(count))
	left, at := s.count, 0
	for range 1 << (8 * s.width) {
		count, n := binary.Uvarint(body[at:])
		if n <= 0 || count > uint64(left) {
			return s, nil, errors.New("a section's counts do not add up")
		}
		size := n + int(count)*(16-s.width)
		if size > len(body)-at {
			return s, nil, errDumpShort
		}
		at, left = at+size, left-int(count)
	}
	if left != 0 {
		return s, nil, errors.New("a section's counts do not add up")
	}
	s.body = body[:at]
	return s, body[at:], nil
}

// entries walks a section that has been checked.
func (s *section) entries() entriesAt {
	return entriesAt{body: s.body, width: s.width, left: s.count, bucket: -1}
}

type entriesAt struct {
	body   []byte
	width  int
	left   int // entries
	bucket int
	inside int // entries left in the bucket
}

func (a *entriesAt) more() bool { return a.left > 0 }

func (a *entriesAt) next() entry {
	for a.inside == 0 {
		count, n := binary.Uvarint(a.body)
		a.body, a.inside = a.body[n:], int(count)
		a.bucket++
	}
	size := 8 - a.width
	var low [8]byte
	copy(low[:], a.body[:size])
	seq := binary.LittleEndian.Uint64(low[:]) | uint64(a.bucket)<<(64-8*a.width)
	hash := binary.LittleEndian.Uint64(a.body[size:])
	a.body = a.body[size+8:]
	a.left, a.inside = a.left-1, a.inside-1
	return entry{hash, blockhash.Sequence(seq)}
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
