package workeragent

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// cacheMirror is an index of the caches of this node's engines. The agent has applied every event
// since an engine's start, so it can make a snapshot for a router that has not.
type cacheMirror struct {
	fleet     *fleet.Fleet
	index     *kvindex.Index
	feed      *feed.Feed
	snapshots *feed.Snapshots // the batches after a shared one are in the replay
}

// defaultIndexBytes is the bound on the index, and on all stored snapshots together, unless the configuration has one.
const defaultIndexBytes = 256 << 20

// newCacheMirror returns an empty mirror. bytes of 0 means the default bound.
func newCacheMirror(bytes int64) *cacheMirror {
	if bytes <= 0 {
		bytes = defaultIndexBytes
	}
	m := &cacheMirror{index: kvindex.New(kvindex.Config{MaxBytes: bytes})}
	m.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { m.feed.RankGone(id) }})
	m.feed = feed.New(feed.Config{}, m.fleet, m.index)
	m.snapshots = feed.NewSnapshots(m.feed, bytes, time.Now())
	return m
}

// emptied empties a worker that sleeps. Its engine may report only with its next step that it has dropped its blocks, and until then no
// router may get them.
func (m *cacheMirror) emptied(w fleet.Worker) {
	for rank := range w.Ranks {
		m.feed.Emptied(w.Name, rank)
	}
	m.snapshots.Forget(w.Name)
}

// forget drops a worker's blocks and snapshots.
func (m *cacheMirror) forget(worker string) {
	m.fleet.Remove(worker)
	m.snapshots.Forget(worker)
}
