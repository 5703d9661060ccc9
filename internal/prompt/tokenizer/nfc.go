package tokenizer

import (
	"slices"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// These constants compose and decompose Hangul syllables by arithmetic (Unicode, section 3.12): the first
// code point of syllables and of leading, vowel and trailing letters, and how many of each there are.
const (
	hangulS, hangulL, hangulV, hangulT = 0xac00, 0x1100, 0x1161, 0x11a7
	countL, countV, countT             = 19, 21, 28
	countS                             = countL * countV * countT
)

// The characters with a combining class or a decomposition lie between these two.
const firstUnsafe, lastDecomposed = 0xc0, 0x2fa1d

// nfcTables are the tables of Unicode 9.0 for the normal form NFC. The reference, Hugging Face tokenizers, uses that version; a newer
// one would give other ids for text with newer marks.
type nfcTables struct {
	combining map[rune]uint8  // combining class, if it is not 0, of characters without a decomposition
	decompose map[rune]string // full canonical decompositions, without Hangul
	compose   map[[2]rune]rune
	// unsafe has a bit for each character that needs normalization: a character that is not its own NFC,
	// that may combine with the character before it, or that has a combining class.
	unsafe [(utf8.MaxRune + 64) / 64]uint64
}

// newer lists the characters with a combining class or a decomposition that Unicode has got since version 9.0. Unicode never changes the
// entry of a character, so without these the tables of every later version are those of 9.0.
var newer = [...][2]rune{
	{0x7fd, 0x7fd}, {0x898, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe}, {0xc3c, 0xc3c}, {0xd3b, 0xd3c}, {0xeba, 0xeba},
	{0x1715, 0x1715}, {0x1abf, 0x1ace}, {0x1df6, 0x1dfa}, {0xa82c, 0xa82c}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac},
	{0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
	{0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
	{0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
	{0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
}

// nfc returns the tables, which are built when a tokenizer first needs them.
var nfc = sync.OnceValue(buildNFC)

// buildNFC reads the tables out of package norm. That package itself does not serve: it has a newer version of Unicode, and it puts
// U+034F into long runs of marks, which the reference does not.
func buildNFC() *nfcTables {
	t := &nfcTables{combining: map[rune]uint8{}, decompose: map[rune]string{}, compose: map[[2]rune]rune{}}
	for r := rune(firstUnsafe); r <= lastDecomposed; r++ {
		p := norm.NFC.PropertiesString(string(r))
		isHangul := r >= hangulS && r < hangulS+countS
		if p.CCC() == 0 && p.Decomposition() == nil || isHangul || inRuns(newer[:], r) {
			continue
		}
		if p.Decomposition() == nil {
			t.combining[r] = p.CCC()
			t.markUnsafe(r)
			continue
		}

		// A character that is its own NFC is composed from the NFC of the other characters of its decomposition, and the last one.
		decomposed := string(p.Decomposition())
		t.decompose[r] = decomposed
		if norm.NFC.String(string(r)) != string(r) {
			t.markUnsafe(r)
			continue
		}
		last, size := utf8.DecodeLastRuneInString(decomposed)
		first, _ := utf8.DecodeRuneInString(norm.NFC.String(decomposed[:len(decomposed)-size]))
		t.compose[[2]rune{first, last}] = r
		t.markUnsafe(last)
	}

	for r := rune(hangulV); r < hangulV+countV; r++ {
		t.markUnsafe(r)
	}
	for r := rune(hangulT + 1); r < hangulT+countT; r++ {
		t.markUnsafe(r)
	}
	return t
}

func (t *nfcTables) markUnsafe(r rune) { t.unsafe[r>>6] |= 1 << (r & 63) }

// isNormal reports whether s is certainly its own NFC. The result false only means that s has an unsafe
// character; normalizing s may then still change nothing.
func (t *nfcTables) isNormal(s string) bool {
	for i := 0; i < len(s); {
		// All characters below U+0300 are their own NFC, and their first byte is below 0xcc.
		if s[i] < 0xcc {
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if t.unsafe[r>>6]&(1<<(r&63)) != 0 {
			return false
		}
		i += n
	}
	return true
}

// normalizer holds the scratch space of one normalization at a time.
type normalizer struct {
	tables *nfcTables
	// pending holds the decomposed characters since the last place where text may be cut. Each is
	// class<<runeBits | character.
	pending []uint32
	// sorted is the number of elements at the front of pending that are in canonical order.
	sorted int
	out    []byte
}

// runeBits is the number of bits for a character in normalizer.pending.
const runeBits = 24

// normalize returns s in NFC. The result is valid until the next call. Bytes that are not UTF-8 become
// U+FFFD.
func (n *normalizer) normalize(s string) []byte {
	n.tables = nfc()
	n.pending = n.pending[:0]
	n.sorted = 0
	n.out = n.out[:0]

	for _, r := range s {
		// A character that is not unsafe never changes with the characters before it.
		if n.tables.unsafe[r>>6]&(1<<(r&63)) == 0 {
			n.flush()
		}
		n.decompose(r)
	}

	n.flush()
	return n.out
}

// decompose adds the full decomposition of r to pending.
func (n *normalizer) decompose(r rune) {
	switch {
	case r < 0xc0:
		n.addRune(r)
	case r >= hangulS && r < hangulS+countS:
		i := r - hangulS
		n.addRune(hangulL + i/(countV*countT))
		n.addRune(hangulV + i%(countV*countT)/countT)
		if t := i % countT; t != 0 {
			n.addRune(hangulT + t)
		}
	default:
		s, ok := n.tables.decompose[r]
		if !ok {
			n.addRune(r)
			return
		}
		for _, r := range s {
			n.addRune(r)
		}
	}
}

// addRune adds one decomposed character to pending. A starter (class 0) ends the run of marks before it.
func (n *normalizer) addRune(r rune) {
	c := uint32(n.tables.combining[r])
	if c == 0 {
		n.sortMarks()
		n.sorted++
	}
	n.pending = append(n.pending, c<<runeBits|uint32(r))
}

// sortMarks puts the marks after the last starter into canonical order, which is a stable order by class.
// Sorting costs O(n log n); inserting each mark in its place would cost O(n²) for a text of only marks.
func (n *normalizer) sortMarks() {
	slices.SortStableFunc(n.pending[n.sorted:], func(a, b uint32) int { return int(a>>runeBits) - int(b>>runeBits) })
	n.sorted = len(n.pending)
}

// flush composes the pending characters and appends them to out. A character combines with the last starter
// if no character between them has the same or a higher class, as the algorithm of Unicode requires.
func (n *normalizer) flush() {
	n.sortMarks()
	marks := uint32(0)
	starter := -1
	kept := 0 // elements of pending that are left; marks is the class of the last of them
	for _, p := range n.pending {
		r, class := rune(p&(1<<runeBits-1)), p>>runeBits
		if starter >= 0 && (kept == starter+1 || marks < class) {
			if both, ok := n.composePair(rune(n.pending[starter]), r); ok {
				n.pending[starter] = uint32(both)
				continue
			}
		}
		if class == 0 {
			starter = kept
		}
		marks = class
		n.pending[kept] = p
		kept++
	}

	for _, p := range n.pending[:kept] {
		n.out = utf8.AppendRune(n.out, rune(p&(1<<runeBits-1)))
	}
	n.pending, n.sorted = n.pending[:0], 0
}

// composePair returns the character that a and b compose to, if there is one.
func (n *normalizer) composePair(a, b rune) (rune, bool) {
	if a >= hangulL && a < hangulL+countL && b >= hangulV && b < hangulV+countV {
		return hangulS + ((a-hangulL)*countV+(b-hangulV))*countT, true
	}
	if a >= hangulS && a < hangulS+countS && (a-hangulS)%countT == 0 && b > hangulT && b < hangulT+countT {
		return a + (b - hangulT), true
	}

	r, ok := n.tables.compose[[2]rune{a, b}]
	return r, ok
}
