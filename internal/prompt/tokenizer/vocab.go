package tokenizer

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"
)

// none stands for no id: a text or symbol that is not in the vocabulary.
const none = ^uint32(0)

// vocabulary maps the bytes of tokens to their ids and back. All bytes are in one slice, because a map of
// strings would need several times the memory and the time to load.
type vocabulary struct {
	arena []byte
	spans []span // by id; a hole has length 0
	slots []slot // open addressing, a power of two, at most half full
	count int
	// unspellable has the ids of tokens whose spelling contains a character that stands for no byte.
	// Encoding never produces them.
	unspellable map[string]uint32
}

type span struct{ start, size uint32 }

type slot struct{ id, hash uint32 }

// maxID bounds ids, because a slot of merges has two of them and a rank in 64 bits.
const maxID = 1<<20 - 1

// bytesOf returns the bytes of id, which must be in the vocabulary.
func (v *vocabulary) bytesOf(id uint32) []byte {
	s := v.spans[id]
	return v.arena[s.start : s.start+s.size]
}

func (v *vocabulary) has(id uint32) bool { return int(id) < len(v.spans) && v.spans[id].size > 0 }

// addToken adds a token. buildIndex must be called after the last one, before any look-up.
func (v *vocabulary) addToken(token []byte, id uint32) error {
	if id > maxID {
		return fmt.Errorf("id %d is above %d, the largest supported", id, maxID)
	}
	for int(id) >= len(v.spans) {
		v.spans = append(v.spans, make([]span, int(id)+1-len(v.spans))...)
	}
	if v.spans[id].size > 0 {
		return fmt.Errorf("id %d has two tokens", id)
	}

	v.spans[id] = span{uint32(len(v.arena)), uint32(len(token))}
	v.arena = append(v.arena, token...)
	v.count++
	return nil
}

// buildIndex builds the hash table for look-ups.
func (v *vocabulary) buildIndex() {
	size := 1 << bits.Len(uint(2*v.count))
	v.slots = make([]slot, size)

	for i := range v.slots {
		v.slots[i].id = none
	}
	for id, s := range v.spans {
		if s.size == 0 || v.isUnspellable(uint32(id)) {
			continue
		}
		h := hash(v.arena[s.start : s.start+s.size])
		i := int(h) & (size - 1)
		for v.slots[i].id != none {
			i = (i + 1) & (size - 1)
		}
		v.slots[i] = slot{uint32(id), uint32(h >> 32)}
	}
}

// lookupHashed returns the id of token, or none. H is the hash of token.
func (v *vocabulary) lookupHashed(token []byte, h uint64) uint32 {
	mask := len(v.slots) - 1
	for i := int(h) & mask; ; i = (i + 1) & mask {
		s := v.slots[i]
		if s.id == none || s.hash == uint32(h>>32) && string(v.bytesOf(s.id)) == string(token) {
			return s.id
		}
	}
}

// isUnspellable reports whether encoding never produces id.
func (v *vocabulary) isUnspellable(id uint32) bool {
	if len(v.unspellable) == 0 {
		return false
	}
	odd, ok := v.unspellable[string(v.bytesOf(id))]
	return ok && odd == id
}

// idOfSpelling returns the id of a token in the spelling of its file, or none.
func (v *vocabulary) idOfSpelling(spell *alphabet, token []byte) uint32 {
	var buf [64]byte
	b, ok := spell.decode(buf[:0], token)
	if !ok {
		if id, ok := v.unspellable[string(token)]; ok {
			return id
		}
		return none
	}
	return v.lookup(b)
}

// readVocabulary reads the vocab object of a tokenizer.json.
func readVocabulary(src []byte, spell *alphabet) (*vocabulary, error) {
	v := &vocabulary{unspellable: map[string]uint32{}, arena: make([]byte, 0, len(src)/2)}
	t := newJSONReader(src)
	var buf []byte
	err := t.readObject(func(key []byte) error {
		id, err := t.readUint()
		if err != nil {
			return err
		}
		b, ok := spell.decode(buf[:0], key)
		buf = b
		if !ok {
			v.unspellable[string(key)] = id
			b = key
		}
		return v.addToken(b, id)
	})

	if err != nil {
		return nil, err
	}

	v.arena = slices.Clip(v.arena)
	v.buildIndex()
	return v, nil
}

// lookup returns the id of token, or none.
func (v *vocabulary) lookup(token []byte) uint32 { return v.lookupHashed(token, hash(token)) }

// hash returns a hash of b, computed with 128-bit multiplications of two words at a time. It has no random
// seed: a client can at most cause collisions in the cache of pieces, which only cost time.
func hash(b []byte) uint64 {
	const k0, k1 = 0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9
	h := uint64(len(b)) * k1
	for len(b) > 16 {
		hi, lo := bits.Mul64(binary.LittleEndian.Uint64(b)^h^k0, binary.LittleEndian.Uint64(b[8:])^k1)
		h = hi ^ lo
		b = b[16:]
	}

	var x, y uint64
	switch n := len(b); {
	case n >= 8:
		x, y = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[n-8:])
	case n >= 4:
		x, y = uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[n-4:]))
	case n > 0:
		x = uint64(b[0])<<16 | uint64(b[n>>1])<<8 | uint64(b[n-1])
	}

	hi, lo := bits.Mul64(x^h^k0, y^k1)
	return hi ^ lo
}

// bytesOf returns the memory of s as bytes, which must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
