package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// chars is the part of a vocabulary whose initial symbols are characters instead of bytes: the symbol of
// each character, and the places at which a text may be cut.
//
// Such vocabularies often have no pre-tokenizer, so that the whole text is one piece. But no merge crosses
// the place between two characters a and b unless some merge joins a symbol that ends with a and one that
// begins with b. At all other places the text may be cut without a change of its tokens. The pieces are
// then short, and the cache of pieces is as useful as with a pre-tokenizer.
type chars struct {
	ascii [utf8.RuneSelf]uint32
	pages [utf8.MaxRune>>8 + 1]*[256]uint32
	// asciiJoins and joins have a bit for each pair of characters that some merge joins. A pair with a
	// character beyond ASCII has its bit at a hash; a collision only makes a piece longer.
	asciiJoins [utf8.RuneSelf][2]uint64
	joins      []uint64
	// markedSpaces is set if the text has a space for each ▁ of the vocabulary.
	markedSpaces bool

	// These fields determine the symbols of a character that has none itself. With
	// byteFallback the character becomes the tokens of its bytes, if all its bytes have
	// tokens. Otherwise it becomes unknown, or nothing if unknown is none. With fuseUnknown a
	// run of such characters becomes one unknown.
	byteIDs      [256]uint32
	byteFallback bool
	unknown      uint32
	fuseUnknown  bool
	// unknownMayJoin is set if the symbols of such a character may depend on its neighbours. Text is then not cut beside it. unknownApart
	// is set if no merge joins them with their neighbours.
	unknownMayJoin, unknownApart bool

	// Symbols from firstPart on are characters that occur in tokens but are no tokens themselves. A
	// symbol that is left after merging becomes the ids partIDs[symbol-firstPart].
	firstPart uint32
	partIDs   [][]uint32
}

// joinedBits is the size of the hash of a pair of characters. 2^22 bits are 512 KiB.
const joinedBits = 22

var emptySymbolPage = func() *[256]uint32 {
	p := new([256]uint32)
	for i := range p {
		p[i] = none
	}
	return p
}()

// newChars returns a table in which no character has a symbol and no pair is joined.
func newChars() *chars {
	c := &chars{joins: make([]uint64, 1<<joinedBits/64), unknown: none, firstPart: none, ascii: [utf8.RuneSelf]uint32(emptySymbolPage[:])}
	for i := range c.pages {
		c.pages[i] = emptySymbolPage
	}

	for i := range c.byteIDs {
		c.byteIDs[i] = none
	}
	return c
}

// setSymbol sets the symbol of r. With markedSpaces the symbol of a space becomes the symbol of ▁, too.
func (c *chars) setSymbol(r rune, symbol uint32) {
	page := &c.pages[r>>8]
	if *page == emptySymbolPage {
		p := *emptySymbolPage
		*page = &p
	}

	(*page)[r&255] = symbol
	if r < utf8.RuneSelf {
		c.ascii[r] = symbol
	}
	if c.markedSpaces && r == ' ' {
		c.setSymbol(blockRune, symbol)
	}
}

// blockRune is lowerBlock as a rune.
const blockRune = '▁'

// symbol returns the symbol of r, or none.
func (c *chars) symbol(r rune) uint32 { return c.pages[r>>8][r&255] }

func joinedHash(a, b rune) uint32 {
	return uint32((uint64(a)<<21 | uint64(b)) * 0x9e3779b97f4a7c15 >> (64 - joinedBits))
}

// markJoined marks the pair (a, b): some merge joins a symbol that ends with a and one that begins with b.
func (c *chars) markJoined(a, b rune) {
	a, b = c.unmarked(a), c.unmarked(b)
	if a|b < utf8.RuneSelf {
		c.asciiJoins[a][b>>6] |= 1 << (b & 63)
		return
	}
	h := joinedHash(a, b)
	c.joins[h>>6] |= 1 << (h & 63)
}

// unmarked returns r, or a space for ▁ if both mean the same.
func (c *chars) unmarked(r rune) rune {
	if r == blockRune && c.markedSpaces {
		return ' '
	}
	return r
}

// mayJoin reports whether a merge may cross the place between a and b, so that the text must not be cut
// there. A and b must be unmarked.
func (c *chars) mayJoin(a, b rune) bool {
	if a|b < utf8.RuneSelf {
		if c.asciiJoins[a][b>>6]&(1<<(b&63)) != 0 {
			return true
		}
	} else if h := joinedHash(a, b); c.joins[h>>6]&(1<<(h&63)) != 0 {
		return true
	}
	return c.unknownMayJoin && (c.symbol(a) == none || c.symbol(b) == none)
}

// encodeInParts cuts s wherever no merge may cross, and encodes the pieces.
func (e *encoder) encodeInParts(s string) {
	c := e.t.chars
	start := 0
	i := 0
	last := rune(-1)
	for i < len(s) && !e.stopped() {
		r, n := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(s[i:])
			r = c.unmarked(r)
		}
		if last >= 0 && !c.mayJoin(last, r) {
			e.encodePiece(s[start:i])
			start = i
		}
		last = r
		i += n
	}

	if !e.stopped() {
		e.encodePiece(s[start:])
	}
}

// encodeChars appends the ids of a piece whose symbols are characters to e.out. The order of the cases is
// the same as in the reference.
func (e *encoder) encodeChars(key []byte) {
	c := e.t.chars
	e.symbols = slices.Grow(e.symbols[:0], len(key))

	unknown := false // whether an unknown symbol is pending, which may be fused with the next one
	for i := 0; i < len(key); {
		r, n := utf8.DecodeRune(key[i:])
		symbol := none
		switch {
		case r < utf8.RuneSelf:
			symbol = c.ascii[r]
		case r != utf8.RuneError || n > 1:
			symbol = c.symbol(r)
		}

		switch {
		case symbol != none:
			if unknown {
				e.symbols = append(e.symbols, c.unknown)
			}
			unknown = false
			e.symbols = append(e.symbols, symbol)
		case c.unknownApart:
			e.flushSymbols()
			for _, b := range key[i : i+n] {
				e.out = append(e.out, c.byteIDs[b])
			}
		case c.hasByteTokens(key[i : i+n]):
			// A pending unknown comes after these bytes. That looks wrong, but the reference does it.
			for _, b := range key[i : i+n] {
				e.symbols = append(e.symbols, c.byteIDs[b])
			}
		case c.unknown != none:
			if unknown && !c.fuseUnknown {
				e.symbols = append(e.symbols, c.unknown)
			}
			unknown = true
		}
		i += n
	}

	if unknown {
		e.symbols = append(e.symbols, c.unknown)
	}

	e.flushSymbols()
}

// hasByteTokens reports whether a character becomes the tokens of its bytes.
func (c *chars) hasByteTokens(char []byte) bool {
	if !c.byteFallback {
		return false
	}
	for _, b := range char {
		if c.byteIDs[b] == none {
			return false
		}
	}
	return true
}

// flushSymbols merges e.symbols, appends the resulting ids to e.out and empties e.symbols.
func (e *encoder) flushSymbols() {
	c := e.t.chars
	for _, id := range e.merger.merge(e.t.merges, e.symbols) {
		if id < c.firstPart {
			e.out = append(e.out, id)
		} else {
			e.out = append(e.out, c.partIDs[id-c.firstPart]...)
		}
	}

	e.symbols = e.symbols[:0]
}
