package tokenizer

import "unicode/utf8"

// chars is how byte-pair encoding on characters begins: the symbol of each character, and
// where a text may be cut.
//
// Such vocabularies often have no pre-tokenizer, so that a whole text would be one piece. But
// two symbols are joined only where some merge joins one that ends with a character a to one
// that begins with b; where none does, a text may be cut between a and b. The pieces are short
// then, and the cache of pieces works as it does elsewhere.
type chars struct {
	ascii [utf8.RuneSelf]uint32
	pages [utf8.MaxRune>>8 + 1]*[256]uint32
	// asciiJoins and joins have a bit for each pair of characters that something joins. Joins
	// is by hash: a collision only makes a piece longer.
	asciiJoins [utf8.RuneSelf][2]uint64
	joins      []uint64
	// marked says that the text has spaces where the vocabulary has ▁.
	markedSpaces bool

	// What becomes of a character that has no symbol: its bytes' tokens, if all are there; else
	// unknown, which is none for nothing at all. Fused, neighbours become one.
	byteIDs      [256]uint32
	byteFallback bool
	unknown      uint32
	fuseUnknown  bool
	// loose says that what becomes of it may depend on its neighbours, so that text is not cut
	// there; apart, that it never joins them.
	unknownMayJoin, unknownApart bool

	// Symbols from first on are characters that are no tokens themselves but parts of some;
	// where they are left over they are written as spelled says.
	firstPart uint32
	partIDs   [][]uint32
}

const joinedBits = 22

var emptySymbolPage = func() *[256]uint32 {
	p := new([256]uint32)
	for i := range p {
		p[i] = none
	}
	return p
}()

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

// set gives r a symbol.
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

// blockRune is lowerBlock.
const blockRune = '▁'

// symbol is the symbol of r, or none.
func (c *chars) symbol(r rune) uint32 { return c.pages[r>>8][r&255] }

func joinedHash(a, b rune) uint32 {
	return uint32((uint64(a)<<21 | uint64(b)) * 0x9e3779b97f4a7c15 >> (64 - joinedBits))
}

// join notes that something that ends with a is joined to something that begins with b.
func (c *chars) markJoined(a, b rune) {
	a, b = c.unmarked(a), c.unmarked(b)
	if a|b < utf8.RuneSelf {
		c.asciiJoins[a][b>>6] |= 1 << (b & 63)
		return
	}
	h := joinedHash(a, b)
	c.joins[h>>6] |= 1 << (h & 63)
}

// unmarked is a space for ▁ where they are the same.
func (c *chars) unmarked(r rune) rune {
	if r == blockRune && c.markedSpaces {
		return ' '
	}
	return r
}

// mayJoin says whether a text may not be cut between a and b, which are unmarked.
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

// cut encodes s piece by piece.
func (e *encoder) encodeInParts(s string) {
	c := e.t.chars
	start := 0
	i := 0
	last := rune(-1)
	for i < len(s) {
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

	e.encodePiece(s[start:])
}

// mergeChars appends the ids of a piece.
func (e *encoder) encodeChars(key []byte) {
	c := e.t.chars
	e.symbols = e.symbols[:0]

	unknown := false // one is waiting, to be fused with the next
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
			// One that waits comes after these bytes: the reference has it so.
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

// hasBytes says whether a character is written as its bytes.
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

// flushChars joins the symbols so far and appends what is left.
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
