package workeragent

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// cacheMirror is an index of the caches of this node's engines. The agent has applied every event
// since an engine's start, so it can make a snapshot for a router that has not.
type cacheMirror struct {
	fleet *fleet.Fleet
	index *kvindex.Index
	feed  *feed.Feed
	bytes int64         // the bound on the index, and on all stored snapshots together
	ids   atomic.Uint64 // the last snapshot ID given

	mu        sync.Mutex
	snapshots []*storedSnapshot // guarded by mu; oldest first
	size      int64             // guarded by mu; of their dumps
	made      atomic.Uint64     // snapshots
	shared    atomic.Uint64     // requests that were answered with a stored snapshot
}

// storedSnapshot is a snapshot while routers pull it.
type storedSnapshot struct {
	feed.Snapshot
	made, used time.Time
}

const (
	defaultIndexBytes = 256 << 20
	// shareFor is the time for which a snapshot also answers other routers, so that routers that
	// start together share one. The batches after it are in the replay.
	shareFor = 5 * time.Second
	// storeFor is the time for which a snapshot is stored after its last request.
	storeFor = 15 * time.Second
)

// newCacheMirror returns an empty mirror. bytes of 0 means the default bound.
func newCacheMirror(bytes int64) *cacheMirror {
	if bytes <= 0 {
		bytes = defaultIndexBytes
	}

	m := &cacheMirror{bytes: bytes, index: kvindex.New(kvindex.Config{MaxBytes: bytes})}
	m.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { m.feed.RankGone(id) }})
	m.feed = feed.New(feed.Config{}, m.fleet, m.index)

	// Starting at the clock keeps the IDs of this process apart from the IDs of the one before.
	m.ids.Store(uint64(time.Now().UnixNano()))
	return m
}

// forget drops a worker's blocks and snapshots.
func (m *cacheMirror) forget(worker string) {
	m.fleet.Remove(worker)
	m.drop(func(s *storedSnapshot) bool { return s.Worker == worker })
}

// rankKey names one rank of one engine process.
type rankKey struct {
	worker string
	epoch  uint64
	rank   int
}

func (s *storedSnapshot) key() rankKey { return rankKey{s.Worker, s.Epoch, s.Rank} }

// snapshot returns a snapshot of a rank: any for id 0, else the one with that ID; nil if there is
// none. A stored snapshot is shared while it is young and the batches after it can be replayed.
func (m *cacheMirror) snapshot(key rankKey, id uint64, replayable func(next uint64) bool, now time.Time) *feed.Snapshot {
	if s := m.stored(key, id, replayable, now); s != nil || id != 0 {
		return s
	}

	made, ok := m.feed.Snapshot(key.worker, key.epoch, key.rank)
	if !ok || int64(len(made.Dump)) > m.bytes {
		return nil
	}

	made.ID = m.ids.Add(1)
	s := &storedSnapshot{Snapshot: made, made: now, used: now}
	m.made.Add(1)
	m.store(s)
	return &s.Snapshot
}

// stored returns a stored snapshot of a rank, or nil. See snapshot.
func (m *cacheMirror) stored(key rankKey, id uint64, replayable func(next uint64) bool, now time.Time) *feed.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()

	for _, s := range slices.Backward(m.snapshots) {
		switch {
		case s.key() != key:
			continue
		case id == 0 && (now.Sub(s.made) > shareFor || !replayable(s.Next)):
			return nil // older ones are worse
		case id == 0:
			m.shared.Add(1)
		case id != s.ID:
			continue
		}
		s.used = now
		return &s.Snapshot
	}
	return nil
}

// store adds a snapshot and drops the oldest ones beyond the bound. A router that pulls a dropped
// one has to request another.
func (m *cacheMirror) store(s *storedSnapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.snapshots = append(m.snapshots, s)
	m.size += int64(len(s.Dump))
	for m.size > m.bytes {
		m.size -= int64(len(m.snapshots[0].Dump))
		m.snapshots = slices.Delete(m.snapshots, 0, 1)
	}
}

// expire drops the snapshots that no router pulls any more.
func (m *cacheMirror) expire(now time.Time) {
	m.drop(func(s *storedSnapshot) bool { return now.Sub(s.used) > storeFor })
}

func (m *cacheMirror) drop(which func(*storedSnapshot) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.snapshots = slices.DeleteFunc(m.snapshots, which)
	m.size = 0
	for _, s := range m.snapshots {
		m.size += int64(len(s.Dump))
	}
}

// storedBytes returns the size of the stored snapshots.
func (m *cacheMirror) storedBytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.size
}
