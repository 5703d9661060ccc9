package peers

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
)

// Store has the methods that a source needs of a [github.com/stator-project/stator/kvbm.Store].
type Store interface {
	// Acquire returns the bytes of blocks, or nil, which stay the same until release.
	Acquire(keys []block.Key) (data [][]byte, release func())
	// Keys returns the blocks that there are.
	Keys() []block.Key
}

// summaryEvery is the time for which a summary is used before another one is made. BenchmarkFilter measures how long making one takes:
// some 50 ms for a million blocks.
const summaryEvery = time.Second

// Source gives the blocks of a store in host memory to peers, without a copy. Create it with [NewSource].
type Source struct {
	store Store

	mu      sync.Mutex
	made    time.Time // guarded by mu
	version uint64    // guarded by mu
	summary filter    // guarded by mu; never written to
}

// NewSource returns the source of a store.
func NewSource(store Store) *Source { return &Source{store: store} }

// Acquire returns blocks with their CRC32C, as [stream.Source] describes.
func (s *Source) Acquire(keys []block.Key) (blocks []stream.Block, release func()) {
	data, release := s.store.Acquire(keys)
	blocks = make([]stream.Block, len(keys))
	for i, d := range data {
		if d != nil {
			blocks[i] = stream.Block{Data: d, Sum: block.Sum(d)}
		}
	}
	return blocks, release
}

// Summary returns a filter of the blocks, as [stream.ServerConfig] describes. Its version is a digest, so it changes with the blocks alone.
func (s *Source) Summary(has uint64) (version uint64, content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.summary == nil || now.Sub(s.made) >= summaryEvery {
		s.summary = newFilter(s.store.Keys(), stream.MostSummary)
		digest := sha256.Sum256(s.summary)
		s.version = max(binary.LittleEndian.Uint64(digest[:]), 1) // 0 is none
		s.made = now
	}
	if s.version == has {
		return s.version, nil
	}
	return s.version, s.summary
}
