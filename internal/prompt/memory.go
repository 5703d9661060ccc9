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
// # What is kept
//
// [tokenizer.Tokenizer.Segment] cuts a rendered text where special tokens begin. The segments are
// encoded independently of each other, so each is kept with its token ids, under the 128-bit hash of
// its text. It is found again in every conversation, at every place.
//
// Block hashes depend on all text before the block. They are kept under the hash of a chain of segments,
// together with block size and seed. An entry holds the hashes of blocksAtLeast blocks or more: hashing
// a block costs about as much as copying its tokens, so shorter entries would cost more than they
// save, and whole chains would be kept once for each turn.
//
// Results equal those without a memory, bit by bit: the memory holds only what was computed for the
// same text, and no text is cut where a cut could change its tokens. That includes tokenizers that
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
	segmentAtLeast = 256 // bytes: below, looking up costs as much as encoding
	blocksAtLeast  = 64

	maxShards     = 16
	minGeneration = 512 << 10 // bytes; where there are fewer there are fewer shards
)

// NewMemory returns an empty memory, or nil where cfg turns it off.
func NewMemory(cfg MemoryConfig) *Memory {
	if cfg.MaxBytes <= 0 {
		return nil
	}
	n := int64(maxShards)
	for n > 1 && cfg.MaxBytes/(2*n) < minGeneration {
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
	// Entries are segments and stretches of blocks; Evicted counts those forgotten.
	Entries int
	Evicted uint64
	// Bytes is what entries occupy, those moved from one generation to the other included.
	Bytes, MaxBytes int64
}

// Stats returns the figures now.
func (m *Memory) Stats() (s MemoryStats) {
	if m == nil {
		return s
	}
	for i := range m.shards {
		m.shards[i].addTo(&s)
	}
	return s
}

// key finds an entry: of a segment, or of a stretch of blocks.
type key xxh3.Uint128

// segment is the key of a segment's ids. Model tells the tokenizers apart.
func (m *Memory) segment(text string, model uint64) key {
	return key(xxh3.HashString128Seed(text, m.seed+model*0x9e3779b97f4a7c15))
}

// then is the hash of the chain k followed by a segment.
func (k key) then(segment key) key {
	var raw [32]byte
	binary.LittleEndian.PutUint64(raw[0:], k.Lo)
	binary.LittleEndian.PutUint64(raw[8:], k.Hi)
	binary.LittleEndian.PutUint64(raw[16:], segment.Lo)
	binary.LittleEndian.PutUint64(raw[24:], segment.Hi)
	return key(xxh3.Hash128(raw[:]))
}

// blocks is the key of the block hashes at the end of chain k.
func (k key) blocks(size int, seed uint64) key {
	return key{Hi: k.Hi ^ seed*0xbf58476d1ce4e5b9, Lo: k.Lo + uint64(size)*0x94d049bb133111eb}
}

func (m *Memory) shard(k key) *shard { return &m.shards[k.Hi>>32&uint64(len(m.shards)-1)] }

// shard is the part of a memory that has one lock.
type shard struct {
	mu                              sync.Mutex
	young, old                      generation
	limit                           int64 // bytes of a generation
	hits, misses, hitText, missText uint64
	evicted                         uint64
	_                               [64]byte // no shard's lock shares a line with the next one's
}

// generation holds entries one behind the other. Nothing in it is a pointer that the garbage
// collector would follow.
type generation struct {
	at    map[key]span
	words []uint32
}

type span struct{ from, n uint32 }

// entryBytes is what an entry takes beside its words: a slot in a map that is half full.
const entryBytes = 64

func (g *generation) bytes() int64 { return 4*int64(len(g.words)) + entryBytes*int64(len(g.at)) }

// findLocked is the entry of k, valid until the lock is given up. The shard must be locked.
func (s *shard) findLocked(k key) ([]uint32, bool) {
	at, ok := s.young.at[k]
	if !ok {
		at, ok = s.old.at[k]
		if !ok {
			return nil, false
		}
		delete(s.old.at, k)
		at = s.addLocked(k, s.old.words[at.from:][:at.n])
	}

	return s.young.words[at.from:][:at.n], true
}

// putLocked remembers words under k. Where two requests at once had the same new text both put
// it, and the second is kept: that is rarer than it would be dear to look first.
func (s *shard) putLocked(k key, words []uint32) {
	if 4*int64(len(words))+entryBytes <= s.limit/4 {
		s.addLocked(k, words)
	}
}

// addLocked adds an entry to the young generation, and begins a new one if this one is full.
// Words may lie in the generation that is emptied for it: what is copied first lies first.
func (s *shard) addLocked(k key, words []uint32) span {
	if s.young.bytes()+4*int64(len(words))+entryBytes > s.limit {
		s.evicted += uint64(len(s.old.at))
		clear(s.old.at)
		s.young, s.old = generation{s.old.at, s.old.words[:0]}, s.young
	}

	g := &s.young
	if g.at == nil {
		g.at, g.words = map[key]span{}, make([]uint32, 0, s.limit/4)
	}

	at := span{uint32(len(g.words)), uint32(len(words))}
	g.at[k], g.words = at, append(g.words, words...)
	return at
}

func (s *shard) addTo(sum *MemoryStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum.Hits += s.hits
	sum.Misses += s.misses
	sum.HitText += s.hitText
	sum.MissText += s.missText
	sum.Evicted += s.evicted
	sum.Entries += len(s.young.at) + len(s.old.at)
	sum.Bytes += s.young.bytes() + s.old.bytes()
	sum.MaxBytes += 2 * s.limit
}
