package tokenizer

import (
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"
)

// Encode appends the ids of text to dst. It recognises special tokens in the text, but adds none (see
// [Tokenizer.Before]). Text should be UTF-8; other bytes count as characters without a class. Encode
// allocates only if dst is too short.
func (t *Tokenizer) Encode(dst []uint32, text string) []uint32 {
	dst, _ = t.EncodeWithin(dst, text, Bounds{Tokens: math.MaxInt})
	return dst
}

// EncodeWithin encodes as Encode does until it reaches a bound. It then returns an error and a part of the ids.
func (t *Tokenizer) EncodeWithin(dst []uint32, text string, within Bounds) ([]uint32, error) {
	if text == "" {
		return dst, nil
	}
	e := t.encoders.acquire()
	if e == nil {
		e = newEncoder(t)
	}

	e.out, e.first = dst, true
	e.start(within)
	if t.longestFirst {
		e.afterSpecial = true
		e.matches = t.added.splitLongest(text, e.matches, e.onText, e.onToken)
	} else {
		t.added.split(text, e.onText, e.onToken)
	}

	dst, e.out = e.out, nil
	err := e.finish(len(dst))
	e.releaseLarge()
	t.encoders.release(e)
	return dst, err
}

// encoders keeps encoders with their caches between calls, at most one for each processor. A sync.Pool would
// drop them at every second garbage collection. The first free encoder is used first, because its cache is
// the one that was used most.
type encoders struct{ slots []atomic.Pointer[encoder] }

func newEncoders() encoders {
	return encoders{make([]atomic.Pointer[encoder], runtime.GOMAXPROCS(0))}
}

// acquire removes an encoder and returns it, or nil if there is none.
func (p *encoders) acquire() *encoder {
	for i := range p.slots {
		if e := p.slots[i].Swap(nil); e != nil {
			return e
		}
	}
	return nil
}

// release stores e for a later acquire. It drops e if all slots are full.
func (p *encoders) release(e *encoder) {
	for i := range p.slots {
		if p.slots[i].CompareAndSwap(nil, e) {
			return
		}
	}
}

// encoder holds the scratch space and the cache of pieces for one call of Encode at a time.
type encoder struct {
	t         *Tokenizer
	out       []uint32
	cache     *[1 << cacheBits]cacheEntry
	symbols   []uint32
	merger    merger
	nfc       normalizer
	spmBuffer []byte
	matches   []match
	// normalizeBuffers and stageBuffers hold the texts that normalizer and pre-tokenizer write. See
	// writeNormalized and writeStage for when their content is valid.
	normalizeBuffers [2][]byte
	stageBuffers     [][]byte
	searches         []*search
	// first is set while the current text is the beginning of the prompt. afterSpecial is set while it is
	// the beginning or follows a special token.
	first, afterSpecial bool
	progress
	// These callbacks of matcher.split are made once, because a closure for each call would be allocated.
	onText, onNormalized func(string)
	onToken              func(uint32)
}

// cacheEntry holds the ids of one piece, in the 64 bytes of a cache line. Most pieces fit. A longer piece is
// not cached, because comparing and copying it would take about as long as encoding it.
type cacheEntry struct {
	hash uint64
	n    uint8 // ids
	size uint8 // bytes of key; 0 is an empty entry
	key  [30]byte
	ids  [6]uint32
}

const cacheBits = 14 // 16,384 entries, 1 MiB

// newEncoder returns an encoder of t with an empty cache.
func newEncoder(t *Tokenizer) *encoder {
	e := &encoder{t: t, cache: new([1 << cacheBits]cacheEntry)}
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

// encodeText encodes the text between two added tokens. It normalizes the text first, and then splits it at
// the added tokens that are searched for in normalized text.
func (e *encoder) encodeText(s string) {
	if e.stopped() {
		return
	}
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

// encodeNormalized encodes the text between two added tokens of a normalized text.
func (e *encoder) encodeNormalized(s string) {
	e.runStages(s, e.t.stages)
	e.first = false
}

// encodeWord encodes a piece that the last stage of the pre-tokenizer has made.
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
			e.count(len(s))
		} else {
			e.encodeInParts(s)
		}
	}
}

// encodePiece appends the ids of one piece to e.out.
func (e *encoder) encodePiece(s string) { e.encodeHashed(s, hash(bytesOf(s))) }

// encodeHashed appends the ids of one piece to e.out. It tries the cache first, then a token that equals the
// piece, and then merges. H is the hash of the piece.
func (e *encoder) encodeHashed(s string, h uint64) {
	e.count(len(s))
	if len(s) > giantBytes {
		if e.stopped() || !e.acquireGiant() {
			return
		}
		defer releaseGiant()
	}

	key := bytesOf(s)
	if len(key) == 1 && e.t.chars == nil {
		if id := e.t.byteIDs[key[0]]; id != none {
			e.out = append(e.out, id)
		}
		return
	}

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

// mergeBytes returns the ids of key by merging its bytes, without cache and look-up. They are valid until the
// next call. A byte without a token is left out, as in the reference without an unknown token.
func (e *encoder) mergeBytes(key []byte) []uint32 {
	e.symbols = slices.Grow(e.symbols[:0], len(key))
	for _, b := range key {
		if id := e.t.byteIDs[b]; id != none {
			e.symbols = append(e.symbols, id)
		}
	}
	return e.merger.merge(e.t.merges, e.symbols)
}

// idSet is a set of ids with one bit for each.
type idSet []uint64

func (s idSet) has(id uint32) bool { return s[id/64]&(1<<(id%64)) != 0 }
func (s idSet) add(id uint32)      { s[id/64] |= 1 << (id % 64) }

// releaseLarge drops the buffers after a very large text, so that one request does not occupy that memory for
// ever.
func (e *encoder) releaseLarge() {
	const maxKeptBytes = 512 << 10
	large := max(cap(e.normalizeBuffers[0]), cap(e.normalizeBuffers[1]), cap(e.spmBuffer)) > maxKeptBytes
	for _, b := range e.stageBuffers {
		large = large || cap(b) > maxKeptBytes
	}

	if large {
		e.stageBuffers = nil
		e.normalizeBuffers = [2][]byte{}
		e.spmBuffer = nil
	}
	if 4*cap(e.symbols) > maxKeptBytes {
		e.symbols = nil
	}
	if max(cap(e.nfc.out), 4*cap(e.nfc.pending)) > maxKeptBytes {
		e.nfc = normalizer{}
	}

	if cap(e.matches)*int(unsafe.Sizeof(match{})) > maxKeptBytes {
		e.matches = nil
	} else {
		clear(e.matches[:cap(e.matches)])
	}
	for _, m := range e.searches {
		if max(8*cap(m.deadEnds), cap(m.stack)*int(unsafe.Sizeof(choice{}))) > maxKeptBytes {
			e.searches = nil
			break
		}
	}
}

// Forget drops the encoders with their caches, so that t is as after loading. It must not be called while t
// is in use.
func (t *Tokenizer) Forget() { t.encoders = newEncoders() }
