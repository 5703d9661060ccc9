package kvindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/zeebo/xxh3"
)

// dump is a parsed dump. Its slices alias the bytes of the dump.
type dump struct {
	groups   []windowGroup
	sections []section
	entries  int
	orphans  orphanReader
}

// errDumpShort is the error of a dump whose end comes before the end of a list in it.
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
