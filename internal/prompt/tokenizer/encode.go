package tokenizer

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Encode appends the ids of text to dst. Special tokens are not added (see [Tokenizer.Before]);
// those that stand in the text are recognised. Text should be UTF-8; bytes that are not are
// characters of no class. It allocates only where dst is too short.
func (t *Tokenizer) Encode(dst []uint32, text string) []uint32 {
	if text == "" {
		return dst
	}
	e := t.encoders.acquire()
	if e == nil {
		e = newEncoder(t)
	}

	e.out, e.first = dst, true
	if t.longestFirst {
		e.afterSpecial = true
		e.matches = t.added.splitLongest(text, e.matches, e.onText, e.onToken)
	} else {
		t.added.split(text, e.onText, e.onToken)
	}

	dst, e.out = e.out, nil
	e.releaseLarge()
	t.encoders.release(e)
	return dst
}

// EncodeBytes is Encode for bytes, which it neither keeps nor changes.
func (t *Tokenizer) EncodeBytes(dst []uint32, text []byte) []uint32 {
	return t.Encode(dst, unsafe.String(unsafe.SliceData(text), len(text)))
}

// encoders keeps encoders between calls. A sync.Pool would forget them, and with them their
// caches, at every second garbage collection; here they stay, the first slot hottest.
type encoders struct{ slots []atomic.Pointer[encoder] }

func newEncoders() encoders {
	return encoders{make([]atomic.Pointer[encoder], runtime.GOMAXPROCS(0))}
}

func (p *encoders) acquire() *encoder {
	for i := range p.slots {
		if e := p.slots[i].Swap(nil); e != nil {
			return e
		}
	}
	return nil
}

// give keeps e in a free slot; where there is none e is forgotten.
func (p *encoders) release(e *encoder) {
	for i := range p.slots {
		if p.slots[i].CompareAndSwap(nil, e) {
			return
		}
	}
}

// encoder is what one Encode at a time needs: scratch space, and a cache of pieces.
type encoder struct {
	t         *Tokenizer
	out       []uint32
	cache     []cacheEntry
	symbols   []uint32
	merger    merger
	nfc       normalizer
	spmBuffer []byte
	matches   []match
	// normals and rewritten are the texts that normalizer and pre-tokenizer write.
	normalizeBuffers [2][]byte
	stageBuffers     [][]byte
	searches         []*search
	// first says that the text at hand begins the prompt; afterSpecial, that it does or
	// follows a special token.
	first, afterSpecial bool
	// The callbacks of matcher.split, made once: a closure each call would be an allocation.
	onText, onNormalized func(string)
	onToken              func(uint32)
}

// cached remembers the ids of one piece. A cache line: most pieces are short, and a long one
// is no faster remembered than encoded.
type cacheEntry struct {
	hash uint64
	n    uint8 // ids
	size uint8 // bytes of key; 0 is an empty entry
	key  [30]byte
	ids  [6]uint32
}

const cacheBits = 14 // 16,384 entries, 1 MiB

func newEncoder(t *Tokenizer) *encoder {
	e := &encoder{t: t, cache: make([]cacheEntry, 1<<cacheBits)}
	e.onText, e.onNormalized = e.encodeText, e.encodeNormalized
	if t.spm != nil {
		e.onText = e.encodeSPMText
	}

	e.onToken = func(id uint32) {
		e.out = append(e.out, id)
		e.afterSpecial, e.first = true, false
	}
	return e
}

// text encodes what stands between added tokens.
func (e *encoder) encodeText(s string) {
	s = e.normalize(s, e.t.normalSteps)
	switch {
	case s == "":
	case e.t.normalized.empty():
		e.runStages(s, e.t.stages)
	default:
		e.t.normalized.split(s, e.onNormalized, e.onToken)
	}

	e.first = false
}

// pieces encodes what stands between added tokens in a normalized text.
func (e *encoder) encodeNormalized(s string) {
	e.runStages(s, e.t.stages)
	e.first = false
}

// word encodes a piece that the pre-tokenizer left.
func (e *encoder) encodeWord(s string) {
	switch {
	case s == "":
	case e.t.chars == nil:
		e.encodePiece(s)
	case !e.t.ignoreMerges:
		e.encodeInParts(s)
	default:
		if id := e.t.vocab.lookup(bytesOf(s)); id != none {
			e.out = append(e.out, id)
		} else {
			e.encodeInParts(s)
		}
	}
}

// piece appends the ids of one piece: from the cache, as one entry of the vocabulary, or by
// merging.
func (e *encoder) encodePiece(s string) {
	key := bytesOf(s)
	if len(key) == 1 && e.t.chars == nil {
		if id := e.t.byteIDs[key[0]]; id != none {
			e.out = append(e.out, id)
		}
		return
	}

	h := hash(key)
	var c *cacheEntry
	if len(key) <= len(c.key) {
		c = &e.cache[h>>(64-cacheBits)]
		if c.hash == h && int(c.size) == len(key) && string(c.key[:c.size]) == s {
			if c.n == 1 {
				e.out = append(e.out, c.ids[0])
				return
			}
			e.out = append(e.out, c.ids[:c.n]...)
			return
		}
	}

	start := len(e.out)
	if id := e.t.vocab.lookupHashed(key, h); id != none && e.t.wholePieces.has(id) {
		e.out = append(e.out, id)
	} else if e.t.chars != nil {
		e.encodeChars(key)
	} else {
		e.out = append(e.out, e.mergeBytes(key)...)
	}

	if n := len(e.out) - start; c != nil && n <= len(c.ids) {
		c.hash = h
		c.n = uint8(n)
		c.size = uint8(len(key))
		copy(c.key[:], key)
		copy(c.ids[:], e.out[start:])
	}
}

// merge is the ids of key by its bytes alone, valid until the next call. A byte that the
// vocabulary lacks is left out, as the reference does where there is no unknown token.
func (e *encoder) mergeBytes(key []byte) []uint32 {
	e.symbols = e.symbols[:0]
	for _, b := range key {
		if id := e.t.byteIDs[b]; id != none {
			e.symbols = append(e.symbols, id)
		}
	}
	return e.merger.merge(e.t.merges, e.symbols)
}

// idSet is a set of ids.
type idSet []uint64

func (s idSet) has(id uint32) bool { return s[id/64]&(1<<(id%64)) != 0 }
func (s idSet) add(id uint32)      { s[id/64] |= 1 << (id % 64) }

// shrink gives back what a huge text needed.
func (e *encoder) releaseLarge() {
	const most = 4 << 20
	large := max(cap(e.normalizeBuffers[0]), cap(e.normalizeBuffers[1]), cap(e.spmBuffer)) > most
	for _, b := range e.stageBuffers {
		large = large || cap(b) > most
	}

	if large {
		e.stageBuffers = nil
		e.normalizeBuffers = [2][]byte{}
		e.spmBuffer = nil
	}
}

// Forget gives up the encoders and their caches, as if t had just been loaded. It must not be
// called while t is in use.
func (t *Tokenizer) Forget() { t.encoders = newEncoders() }
