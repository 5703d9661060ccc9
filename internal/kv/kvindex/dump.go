package kvindex

import (
	"cmp"
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
)

// A dump is all that one rank's engine reported, in bytes:
//
//	version   1 byte
//	groups    of sliding windows: a byte, then each: number, window in blocks
//	sections  kind and class of age, a byte each, then pieces; kind 0 ends the sections
//	orphans   their number, then each: flags|tiers, groups, hash, parent unless that is the hash
//	          before, block
//	checksum  xxh3 of all before, 8 bytes
//
// Numbers are unsigned varints; hashes have 8 bytes, little endian. A piece is blocks that follow each other
// in a chain and are held alike: how many (and two flags), a mask of tiers or of groups (a bit each, in the
// order above), then for each block its sequence hash and the engine's hash. That is 16.1 bytes a block for
// whole prompts, because neither hash follows from the other or from the block before.
//
// Sorted by one of the hashes, 14.2 bytes would do. But the order of the chain would be lost: the loaded
// index would need a [chunk] for every block, and lookups could not skip.
const dumpVersion = 1

// Kinds of sections.
const (
	sectionEnd   = 0
	sectionTiers = 1
	sectionGroup = 2
)

// Flags in the lowest bits of a piece's number of blocks. A piece without blocks ends a section.
const (
	pieceContinues = 1 << 0 // its first block follows the last of the piece before
	pieceLoose     = 1 << 1 // its blocks do not follow each other
	pieceFlags     = 2
)

// ageLimits are the ends of the classes of age, in ticks: see ticksPerIndex. A load stores the youngest class first, so that the oldest
// blocks are missing if there is too little room.
var ageLimits = [...]uint8{1, 8, 32}

const ageClasses = len(ageLimits) + 1

// orphanSameParent is a flag beside an orphan's tiers: its parent is the orphan before it.
const orphanSameParent = 0x80

// AppendDump appends to dst all that the rank's engine has reported and not removed: tiers, engine hashes,
// content, the orphans, and how recently each was used. Predictions are left out, because they belong to
// this router. For an unknown rank it appends an empty dump. The rank is locked while its entries are
// copied, not while they are sorted. The copy needs 32 bytes a block beside dst.
func (x *Index) AppendDump(dst []byte, id fleet.RankID) []byte {
	start := len(dst)
	dst = append(dst, dumpVersion)
	var blocks []dumped
	waiting := []byte{0}
	if r := x.lookupRank(id); r != nil {
		r.mu.Lock()
		dst = appendGroups(dst, r.windows)
		blocks = x.dumped(r)
		waiting = appendOrphans(nil, &r.orphans)
		r.mu.Unlock()
	} else {
		dst = append(dst, 0)
	}

	dst = appendSections(dst, blocks)
	dst = append(dst, sectionEnd)
	dst = append(dst, waiting...)
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[start:]))
}

// appendGroups writes the sliding-window groups; nil for none.
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

// dumped is one entry of a rank's tables, with its place in the dump.
type dumped struct {
	entry
	chunk             uintptr // 0 for an entry without a node: one that not all groups of its class hold
	pos               uint8
	kind, class, mask uint8
}

// dumped copies a rank's entries. The rank is locked.
func (x *Index) dumped(r *rank) []dumped {
	now := x.clock.now()
	n := 0
	for i := range r.segments() {
		s, _ := r.segment(i)
		n += s.n
	}
	blocks := make([]dumped, 0, n)
	for i := range r.segments() {
		s, windowed := r.segment(i)
		for j := range s.marks {
			mask := s.tiers(j)
			if mask == 0 {
				continue
			}
			b := dumped{entry: s.entries[j], kind: sectionTiers, mask: mask}
			if windowed {
				b.kind = sectionGroup
			}
			x.locate(&b, now)
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// locate finds a block's chunk, and the class of its age.
func (x *Index) locate(b *dumped, now uint8) {
	b.class = uint8(ageClasses - 1)
	r, pos := x.nodes.find(key(b.seq))
	if r == nil {
		return
	}
	b.chunk = uintptr(unsafe.Pointer(r.chunk)) // only to compare and to sort
	b.pos, b.class = pos, 0
	for int(b.class) < len(ageLimits) && now-r.chunk.used() >= ageLimits[b.class] {
		b.class++
	}
}

// appendSections writes blocks by kind, age and place.
func appendSections(dst []byte, blocks []dumped) []byte {
	slices.SortFunc(blocks, before)
	for n := 0; len(blocks) > 0; blocks = blocks[n:] {
		first := blocks[0]
		for n = 0; n < len(blocks) && blocks[n].class == first.class && blocks[n].kind == first.kind; n++ {
		}
		dst = append(dst, first.kind, first.class)
		dst = appendPieces(dst, blocks[:n])
		dst = append(dst, 0)
	}
	return dst
}

// before is the order of a dump: by age, kind, chunk and position. The first comparison decides for nearly
// all pairs.
func before(a, b dumped) int {
	if a.chunk != b.chunk && a.class == b.class && a.kind == b.kind {
		return cmp.Compare(a.chunk, b.chunk)
	}
	if a.class != b.class {
		return cmp.Compare(a.class, b.class)
	}
	if a.kind != b.kind {
		return cmp.Compare(a.kind, b.kind)
	}
	if a.pos != b.pos {
		return cmp.Compare(a.pos, b.pos)
	}
	if a.seq != b.seq {
		return cmp.Compare(a.seq, b.seq)
	}
	return cmp.Compare(a.hash, b.hash)
}

// appendPieces writes the blocks of one section as pieces.
func appendPieces(dst []byte, blocks []dumped) []byte {
	for i, n := 0, 0; i < len(blocks); i += n {
		// Blocks that follow each other make a piece, and so do blocks that all follow none.
		flags := uint64(0)
		if i > 0 && follows(blocks[i-1], blocks[i]) {
			flags = pieceContinues
		}
		n = 1
		for i+n < len(blocks) && blocks[i+n].mask == blocks[i].mask && follows(blocks[i+n-1], blocks[i+n]) {
			n++
		}
		if n == 1 && flags == 0 {
			flags = pieceLoose
			for i+n < len(blocks) && blocks[i+n].mask == blocks[i].mask && !follows(blocks[i+n-1], blocks[i+n]) && alone(blocks[i+n:]) {
				n++
			}
		}
		dst = binary.AppendUvarint(dst, uint64(n)<<pieceFlags|flags)
		dst = append(dst, blocks[i].mask)
		for _, b := range blocks[i : i+n] {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(b.seq))
			dst = binary.LittleEndian.AppendUint64(dst, b.hash)
		}
	}
	return dst
}

// follows reports whether b's content is a's and one block more.
func follows(a, b dumped) bool { return a.chunk != 0 && a.chunk == b.chunk && b.pos == a.pos+1 }

// alone reports whether no block follows the first of blocks.
func alone(blocks []dumped) bool { return len(blocks) == 1 || !follows(blocks[0], blocks[1]) }

// appendOrphans writes the orphans, oldest first.
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
