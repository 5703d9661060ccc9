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

// knowledge is what the engines of this node hold, by their own word: the agent has heard them
// from the beginning, and so can tell a router that has not.
type knowledge struct {
	fleet *fleet.Fleet
	index *kvindex.Index
	feed  *feed.Feed
	bytes int64 // the bound on the index, and on the snapshots that are kept
	ids   atomic.Uint64

	mu     sync.Mutex
	kept   []*kept       // guarded by mu; oldest first
	size   int64         // guarded by mu; of their dumps
	made   atomic.Uint64 // snapshots
	shared atomic.Uint64 // requests that were answered by one that was there
}

// kept is a snapshot while routers pull it.
type kept struct {
	feed.Snapshot
	made, used time.Time
}

const (
	defaultIndexBytes = 256 << 20
	// shareFor is how long a snapshot answers others who ask: routers that start together share
	// one. What came after it they have from the replay.
	shareFor = 5 * time.Second
	// keepFor is how long a snapshot that nobody pulls is kept.
	keepFor = 15 * time.Second
)

func newKnowledge(bytes int64) *knowledge {
	if bytes <= 0 {
		bytes = defaultIndexBytes
	}
	k := &knowledge{bytes: bytes, index: kvindex.New(kvindex.Config{MaxBytes: bytes})}
	k.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { k.feed.RankGone(id) }})
	k.feed = feed.New(feed.Config{}, k.fleet, k.index)
	k.ids.Store(uint64(time.Now().UnixNano())) // no other agent, nor this one before, has used these
	return k
}

// forget drops what is known of a worker, and its snapshots.
func (k *knowledge) forget(worker string) {
	k.fleet.Remove(worker)
	k.drop(func(s *kept) bool { return s.Worker == worker })
}

// snapshot returns a snapshot of a rank, or with an id that very one; nil where there is none.
// One that is there is shared if it is young and replayable says that what came after it can be
// had.
func (k *knowledge) snapshot(worker string, epoch uint64, rank int, id uint64, replayable func(next uint64) bool, now time.Time) *feed.Snapshot {
	if s := k.find(worker, epoch, rank, id, replayable, now); s != nil || id != 0 {
		return s
	}
	taken, ok := k.feed.Snapshot(worker, epoch, rank)
	if !ok || int64(len(taken.Dump)) > k.bytes {
		return nil
	}
	taken.ID = k.ids.Add(1)
	s := &kept{Snapshot: taken, made: now, used: now}
	k.made.Add(1)
	k.keep(s)
	return &s.Snapshot
}

func (k *knowledge) find(worker string, epoch uint64, rank int, id uint64, replayable func(next uint64) bool, now time.Time) *feed.Snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range slices.Backward(k.kept) {
		switch {
		case s.Worker != worker || s.Epoch != epoch || s.Rank != rank:
			continue
		case id == 0 && (now.Sub(s.made) > shareFor || !replayable(s.Next)):
			return nil
		case id == 0:
			k.shared.Add(1)
		case id != s.ID:
			continue
		}
		s.used = now
		return &s.Snapshot
	}
	return nil
}

// keep makes room for s by letting the oldest go: who pulls them asks again.
func (k *knowledge) keep(s *kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept, k.size = append(k.kept, s), k.size+int64(len(s.Dump))
	for k.size > k.bytes {
		k.size -= int64(len(k.kept[0].Dump))
		k.kept = slices.Delete(k.kept, 0, 1)
	}
}

// expire lets go of the snapshots that nobody pulls any more.
func (k *knowledge) expire(now time.Time) {
	k.drop(func(s *kept) bool { return now.Sub(s.used) > keepFor })
}

func (k *knowledge) drop(which func(*kept) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept = slices.DeleteFunc(k.kept, which)
	k.size = 0
	for _, s := range k.kept {
		k.size += int64(len(s.Dump))
	}
}

// keptBytes is the size of the snapshots that are kept.
func (k *knowledge) keptBytes() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size
}
