package kvindex

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// A dump is what one rank's engine reported, in bytes:
//
//	version   1 byte
//	groups    of sliding windows: count, then each: number, window in blocks
//	sections  kind, class, mask (a byte each), count, buckets of entries; kind 0 ends them
//	orphans   count, then each: flags|tiers, groups, hash, parent unless it is the hash before, block
//	checksum  xxh3 of all before, 8 bytes
//
// Counts are unsigned varints, hashes 8 bytes, little endian. A section holds the engine
// hashes of one class of age that are held on the same tiers, or by the same sliding-window
// groups (a bit of the mask each, in the order above), sorted by their content; the
// content's first bytes are not written but are the number of the entry's bucket, and a bucket
// begins with its count. With as many buckets as there are entries, or a few less, that leaves
// about 14 bytes of the 16 that two hashes have: both are random, and only one can be sorted.
// The index keeps no parents (a sequence hash names its own prefix), so a dump has none either.
//
// Sorted by content, a load walks the nodes from one end to the other: 2 million blocks took
// half the time that they took in the order of the engine's hashes.
const dumpVersion = 1

// Kinds of sections.
const (
	sectionEnd   = 0
	sectionTiers = 1
	sectionGroup = 2
)

// ageLimits are where the classes of age end, in ticks, of which 64 pass while a full index is
// replaced once. A load stores the youngest class first: where there is too little room, the
// oldest are missing.
var ageLimits = [...]uint8{1, 8, 32}

const ageClasses = len(ageLimits) + 1

// section is the part of a dump that shares an age and the tiers it is held on.
type section struct {
	kind, class, mask uint8
	count             int
	width             int // bytes of the sequence hash that are bucket numbers
	body              []byte
}

const orphanSameParent = 0x80

// AppendDump appends to dst everything that the rank's engine has reported and not taken back:
// tiers, engine hashes, content, the blocks that wait for a parent, and how recently each was
// used. Predictions are left out: they are the router's own. Of a rank that is not known it
// appends a dump of nothing. The rank waits while its entries are copied, not while they are
// sorted; meanwhile 16 to 40 bytes a block are needed beside dst.
func (x *Index) AppendDump(dst []byte, id fleet.RankID) []byte {
	start := len(dst)
	dst = append(dst, dumpVersion)
	var sections map[[3]uint8][]entry
	waiting := []byte{0}
	if r := x.known(id); r != nil {
		r.mu.Lock()
		dst = appendGroups(dst, r.windows)
		sections = x.sections(r)
		waiting = appendOrphans(nil, &r.orphans)
		r.mu.Unlock()
	} else {
		dst = append(dst, 0)
	}
	order := slices.SortedFunc(maps.Keys(sections), func(a, b [3]uint8) int { return slices.Compare(a[:], b[:]) })
	for _, key := range order {
		dst = appendSection(dst, key, sections[key])
	}
	dst = append(dst, sectionEnd)
	dst = append(dst, waiting...)
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[start:]))
}

func appendGroups(dst []byte, w *windows) []byte {
	if w == nil {
		return append(dst, 0)
	}
	dst = append(dst, uint8(len(w.groups)))
	for _, g := range w.groups {
		dst = binary.AppendUvarint(dst, uint64(g.number))
		dst = binary.AppendUvarint(dst, uint64(g.window))
	}
	return dst
}

// sections copies a rank's entries, by kind, class of age and mask.
func (x *Index) sections(r *rank) map[[3]uint8][]entry {
	now := x.clock.now()
	sections := map[[3]uint8][]entry{}
	var list [ageClasses][1 << 8][]entry
	for i := range r.segments() {
		s, windowed := r.segment(i)
		for j := range s.marks {
			if mask := s.tiers(j); mask != 0 {
				at := &list[x.ageClass(s.entries[j].seq, now)][mask]
				*at = append(*at, s.entries[j])
			}
		}
		kind := uint8(sectionTiers)
		if windowed {
			kind = sectionGroup
		}
		if last := len(r.engine.segments) - 1; i == last || i == r.segments()-1 {
			collect(sections, kind, &list)
		}
	}
	return sections
}

// collect moves the lists, which are by age and mask, to the sections of a kind.
func collect(sections map[[3]uint8][]entry, kind uint8, list *[ageClasses][1 << 8][]entry) {
	for class := range list {
		for mask, entries := range list[class] {
			if len(entries) > 0 {
				sections[[3]uint8{kind, uint8(class), uint8(mask)}] = entries
			}
			list[class][mask] = nil
		}
	}
}

func (x *Index) ageClass(seq blockhash.Sequence, now uint8) int {
	age, ok := x.nodes.age(seq)
	if !ok {
		return ageClasses - 1
	}
	class := 0
	for class < len(ageLimits) && now-age >= ageLimits[class] {
		class++
	}
	return class
}

func appendSection(dst []byte, key [3]uint8, entries []entry) []byte {
	slices.SortFunc(entries, func(a, b entry) int {
		if c := cmp.Compare(a.seq, b.seq); c != 0 {
			return c
		}
		return cmp.Compare(a.hash, b.hash)
	})
	dst = append(dst, key[:]...)
	dst = binary.AppendUvarint(dst, uint64(len(entries)))
	width := bucketWidth(len(entries))
	for bucket := range 1 << (8 * width) {
		n := 0
		for n < len(entries) && int(entries[n].seq>>(64-8*width)) == bucket {
			n++
		}
		dst = binary.AppendUvarint(dst, uint64(n))
		for _, e := range entries[:n] {
			var seq [8]byte
			binary.LittleEndian.PutUint64(seq[:], uint64(e.seq))
			dst = append(dst, seq[:8-width]...)
			dst = binary.LittleEndian.AppendUint64(dst, e.hash)
		}
		entries = entries[n:]
	}
	return dst
}

// bucketWidth is how many bytes of the sequence hash number a section's buckets: no more than
// save more than the counts of the buckets cost.
func bucketWidth(entries int) int {
	switch {
	case entries >= 1<<16:
		return 2
	case entries >= 1<<8:
		return 1
	}
	return 0
}

// appendOrphans writes those that wait, oldest first.
func appendOrphans(dst []byte, q *orphans) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(q.byHash)))
	last := uint64(0)
	for o := q.oldest; o != nil; o = o.newer {
		flags := o.tiers
		if o.parent == last {
			flags |= orphanSameParent
		}
		dst = append(dst, flags, o.groups)
		dst = binary.LittleEndian.AppendUint64(dst, o.hash)
		if o.parent != last {
			dst = binary.LittleEndian.AppendUint64(dst, o.parent)
		}
		dst = binary.LittleEndian.AppendUint64(dst, uint64(o.block))
		last = o.hash
	}
	return dst
}
