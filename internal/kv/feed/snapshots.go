package feed

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Snapshots makes snapshots of a feed's ranks for routers, and stores each while they pull it page by page. Create it with
// [NewSnapshots]. All methods are safe for concurrent use.
type Snapshots struct {
	feed  *Feed
	bytes int64         // the bound on all stored dumps together
	ids   atomic.Uint64 // the last ID given
	// Made counts the snapshots, and Shared the requests that were answered with a stored one.
	Made, Shared atomic.Uint64

	mu     sync.Mutex
	stored []*storedSnapshot // guarded by mu; oldest first
	size   int64             // guarded by mu; of their dumps
}

// storedSnapshot is a snapshot while routers pull it.
type storedSnapshot struct {
	Snapshot
	made, used time.Time
}

const (
	// ShareFor is the time for which a snapshot also answers other routers, so that routers that
	// start together share one.
	ShareFor = 5 * time.Second
	// StoreFor is the time for which a snapshot is stored after its last request.
	StoreFor = 15 * time.Second
)

// NewSnapshots returns an empty store. bytes bounds the stored dumps together. A dump above it is not made. The IDs begin at the clock,
// which keeps those of this process apart from those of the one before.
func NewSnapshots(f *Feed, bytes int64, now time.Time) *Snapshots {
	s := &Snapshots{feed: f, bytes: bytes}
	s.ids.Store(uint64(now.UnixNano()))
	return s
}

// Get returns a snapshot of a rank: any for id 0, else the one with that ID; nil if there is none. A stored snapshot is
// shared while it is young and shareable accepts the number of its next batch.
func (s *Snapshots) Get(worker string, epoch uint64, rank int, id uint64, shareable func(next uint64) bool, now time.Time) *Snapshot {
	if found := s.find(worker, epoch, rank, id, shareable, now); found != nil || id != 0 {
		return found
	}
	made, ok := s.feed.Snapshot(worker, epoch, rank)
	if !ok || int64(len(made.Dump)) > s.bytes {
		return nil
	}
	made.ID = s.ids.Add(1)
	s.Made.Add(1)

	// Beyond the bound the oldest are dropped. A router that pulls a dropped one has to request another.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = append(s.stored, &storedSnapshot{Snapshot: made, made: now, used: now})
	s.size += int64(len(made.Dump))
	for s.size > s.bytes {
		s.size -= int64(len(s.stored[0].Dump))
		s.stored = slices.Delete(s.stored, 0, 1)
	}
	return &s.stored[len(s.stored)-1].Snapshot
}

// find returns a stored snapshot of a rank, or nil. See Get.
func (s *Snapshots) find(worker string, epoch uint64, rank int, id uint64, shareable func(next uint64) bool, now time.Time) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range slices.Backward(s.stored) {
		switch {
		case one.Worker != worker || one.Epoch != epoch || one.Rank != rank:
			continue
		case id == 0 && (now.Sub(one.made) > ShareFor || !shareable(one.Next)):
			return nil // older ones are worse
		case id == 0:
			s.Shared.Add(1)
		case id != one.ID:
			continue
		}
		one.used = now
		return &one.Snapshot
	}
	return nil
}

// Expire drops the snapshots that no router pulls any more.
func (s *Snapshots) Expire(now time.Time) {
	s.drop(func(one *storedSnapshot) bool { return now.Sub(one.used) > StoreFor })
}

// Forget drops the snapshots of a worker.
func (s *Snapshots) Forget(worker string) {
	s.drop(func(one *storedSnapshot) bool { return one.Worker == worker })
}

func (s *Snapshots) drop(which func(*storedSnapshot) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = slices.DeleteFunc(s.stored, which)
	s.size = 0
	for _, one := range s.stored {
		s.size += int64(len(one.Dump))
	}
}

// Bytes returns the size of the stored dumps.
func (s *Snapshots) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size
}
