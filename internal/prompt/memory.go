package prompt

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// Memory keeps the tokens and block hashes of texts, so that the next turn of a conversation costs only
// its new text. Several models may share one, by [Model.WithMemory].
//
// # Kept tokens
//
// [tokenizer.Tokenizer.Segment] cuts a rendered text where special tokens begin. The segments are
// encoded independently of each other, so each is kept with its token ids, under the 128-bit hash of
// its text. It is found again in every conversation, at every place.
//
// Block hashes depend on all text before the block. They are kept under the hash of a chain of segments,
// together with block size and seed. An entry holds the hashes of minEntryBlocks blocks or more: hashing
// a block costs about as much as copying its tokens, so shorter entries would cost more than they
// save, and whole chains would be kept once for each turn.
//
// A memory never changes a result. It returns only tokens and hashes that were computed for the same
// text, and text is cut only where a cut cannot change its tokens. That includes tokenizers that
// treat the beginning of a text differently, because every segment but the first begins with a special
// token. Two texts with one hash would be confused. With 128 bits and a secret seed that does not
// happen in practice, and its effect would be a request that goes to a worker without its prompt.
//
// # Bounds
//
// Entries lie in memory without pointers, which the garbage collector does not search, in shards with
// a lock each. A shard has two generations. New entries go to the young one, and an entry that is found
// in the old one moves to the young one. When the young one is full, the old one is emptied and becomes
// the young one. So entries in use stay, without a list in order of use. An entry larger than an eighth
// of its shard is not kept.
//
// A nil *Memory keeps nothing. All methods are safe for
// concurrent use.
type Memory struct {
	seed   uint64
	shards []shard
	models atomic.Uint64
}

// MemoryConfig is read by NewMemory.
type MemoryConfig struct {
	// MaxBytes bounds the memory, entries and their index together. 0, or less, turns it off.
	MaxBytes int64
	// Seed starts the hashes of texts. It should be random: a client that knew it could make two
	// texts with one hash.
	Seed uint64
}

const (
	// minSegmentBytes is the least length of a segment but the last. Looking up a shorter text costs as
	// much as encoding it.
	minSegmentBytes = 256
	// minEntryBlocks is the least number of blocks in an entry.
	minEntryBlocks = 64

	maxShards = 16
	// minGenerationBytes is the least size of a generation. A small memory has fewer shards instead of
	// smaller generations.
	minGenerationBytes = 512 << 10
)

// NewMemory returns an empty memory, or nil where cfg turns it off.
func NewMemory(cfg MemoryConfig) *Memory {
	if cfg.MaxBytes <= 0 {
		return nil
	}
	n := int64(maxShards)
	for n > 1 && cfg.MaxBytes/(2*n) < minGenerationBytes {
		n /= 2
	}

	m := &Memory{seed: cfg.Seed, shards: make([]shard, n)}
	for i := range m.shards {
		m.shards[i].limit = cfg.MaxBytes / (2 * n)
	}
	return m
}

// MemoryStats are a memory's figures.
type MemoryStats struct {
	// Hits and Misses count segments, HitText and MissText the bytes of their text.
	Hits, Misses, HitText, MissText uint64
	// Entries counts stored segments and runs of blocks; Evicted counts entries that were dropped for room.
	Entries int
	Evicted uint64
	// Bytes is the memory that entries occupy, those moved from one generation to the other included.
	Bytes, MaxBytes int64
}

// Stats returns the figures now.
func (m *Memory) Stats() (s MemoryStats) {
	if m == nil {
		return s
	}
	for i := range m.shards {
		m.shards[i].addStats(&s)
	}
	return s
}

// key identifies an entry, which is the ids of a segment or a run of block hashes.
type key xxh3.Uint128

// segmentKey returns the key of a segment's ids. The model is part of the key, because models that share a
// memory may have different tokenizers.
func (m *Memory) segmentKey(text string, model uint64) key {
	return key(xxh3.HashString128Seed(text, m.seed+model*0x9e3779b97f4a7c15))
}

// extended returns the key of the chain that consists of chain k and one more segment.
func (k key) extended(segment key) key {
	var raw [32]byte
	binary.LittleEndian.PutUint64(raw[0:], k.Lo)
	binary.LittleEndian.PutUint64(raw[8:], k.Hi)
	binary.LittleEndian.PutUint64(raw[16:], segment.Lo)
	binary.LittleEndian.PutUint64(raw[24:], segment.Hi)
	return key(xxh3.Hash128(raw[:]))
}

// blocksKey returns the key of the block hashes at the end of chain k. The same text has other hashes with
// another block size or seed, so both are part of the key.
func (k key) blocksKey(size int, seed uint64) key {
	return key{Hi: k.Hi ^ seed*0xbf58476d1ce4e5b9, Lo: k.Lo + uint64(size)*0x94d049bb133111eb}
}

func (m *Memory) shardOf(k key) *shard { return &m.shards[k.Hi>>32&uint64(len(m.shards)-1)] }

// shard is the part of a memory that one lock protects.
//
//	event                      effect
//	entry found in young       none
//	entry found in old         the entry moves to young
//	entry stored               the entry is added to young
//	young has no room left     old is emptied and becomes young; young becomes old
type shard struct {
	mu                              sync.Mutex // protects all fields below but limit
	young, old                      generation
	limit                           int64 // bytes of a generation; constant
	hits, misses, hitText, missText uint64
	evicted                         uint64
	_                               [64]byte // keeps the locks of two shards on different cache lines
}

// generation stores entries one after another in one slice. It has no pointers for the garbage collector
// to follow.
type generation struct {
	spans map[key]span // the place of each entry in words
	words []uint32
}

// span is the place of an entry: n words from index from on.
type span struct{ from, n uint32 }

const (
	wordBytes = 4
	// entryBytes is the size of an entry without its words: a slot in a map that is half full.
	entryBytes = 64
)

// bytes returns the size of all entries with their map slots.
func (g *generation) bytes() int64 {
	return wordBytes*int64(len(g.words)) + entryBytes*int64(len(g.spans))
}

// lookUpLocked returns the words of entry k, valid until the lock is released. It moves an entry of the
// old generation to the young one. The shard must be locked.
func (s *shard) lookUpLocked(k key) ([]uint32, bool) {
	at, ok := s.young.spans[k]
	if !ok {
		at, ok = s.old.spans[k]
		if !ok {
			return nil, false
		}
		delete(s.old.spans, k)
		at = s.appendLocked(k, s.old.words[at.from:][:at.n])
	}

	return s.young.words[at.from:][:at.n], true
}

// storeLocked stores words under k, unless the entry is too large for the shard. It does not check whether
// k is stored already: that happens only where two requests with the same new text run at once, and the
// second copy then replaces the first. The shard must be locked.
func (s *shard) storeLocked(k key, words []uint32) {
	if wordBytes*int64(len(words))+entryBytes <= s.limit/4 {
		s.appendLocked(k, words)
	}
}

// appendLocked adds an entry to the young generation, and first swaps the generations if it has no room.
// Words may be part of the generation that the swap empties. That is safe, because append copies
// overlapping memory correctly.
func (s *shard) appendLocked(k key, words []uint32) span {
	if s.young.bytes()+wordBytes*int64(len(words))+entryBytes > s.limit {
		s.evicted += uint64(len(s.old.spans))
		clear(s.old.spans)
		s.young, s.old = generation{s.old.spans, s.old.words[:0]}, s.young
	}

	g := &s.young
	if g.spans == nil {
		g.spans, g.words = map[key]span{}, make([]uint32, 0, s.limit/wordBytes)
	}

	at := span{uint32(len(g.words)), uint32(len(words))}
	g.spans[k], g.words = at, append(g.words, words...)
	return at
}

// addStats adds the figures of the shard to sum.
func (s *shard) addStats(sum *MemoryStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum.Hits += s.hits
	sum.Misses += s.misses
	sum.HitText += s.hitText
	sum.MissText += s.missText
	sum.Evicted += s.evicted
	sum.Entries += len(s.young.spans) + len(s.old.spans)
	sum.Bytes += s.young.bytes() + s.old.bytes()
	sum.MaxBytes += 2 * s.limit
}
