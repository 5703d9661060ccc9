package workeragent

import (
	"context"
	"sync"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

// relays are the relays of all ranks of one engine process, by rank. Each data-parallel rank has its own
// cache, its own sockets, and its own numbers of batches. So each has a relay, which is independent of the
// others; but the worker has one subject for the requests of routers, so those are served together.
//
//	request                            answered by
//	replay or snapshot of a rank       the relay of that rank
//	the same of a rank that is not     nothing to replay, and no snapshot
//	    there
type relays []*relay

// newRelays returns a relay for each rank of a worker.
func newRelays(w fleet.Worker, cfg Config, m *metrics, mirror *cacheMirror, events *bus.EventWriter) relays {
	all := make(relays, w.Ranks)
	for rank := range all {
		all[rank] = newRelay(w, rank, cfg, m, mirror, events)
	}
	return all
}

// serve answers routers that ask for past batches, or for a snapshot, until ctx ends.
func (all relays) serve(ctx context.Context) {
	// A worker has at least one rank, and its relays differ in nothing else.
	w, cfg := all[0].worker, all[0].cfg

	var snapshots sync.WaitGroup
	defer snapshots.Wait()
	snapshots.Go(func() {
		if err := cfg.Bus.ServeSnapshots(ctx, w.Name, w.Epoch, all.snapshot); err != nil {
			cfg.Log.Error("snapshots not served", "worker", w.Name, "err", err)
		}
	})

	if err := cfg.Bus.ServeReplay(ctx, w.Name, w.Epoch, all.replay); err != nil {
		cfg.Log.Error("replays not served", "worker", w.Name, "err", err)
	}
}

// replay returns the remembered batches of a rank from a number on, and the rank's position. A rank that the
// engine does not have is at no position.
func (all relays) replay(rank int, from uint64, room int) (batches [][]byte, end feed.Position) {
	if rank < 0 || rank >= len(all) {
		return nil, feed.Position{Epoch: all[0].worker.Epoch}
	}
	return all[rank].replay(from, room)
}

// snapshot returns a rank's cache; nil for a rank that the engine does not have.
func (all relays) snapshot(rank int, id uint64) *feed.Snapshot {
	if rank < 0 || rank >= len(all) {
		return nil
	}
	return all[rank].snapshot(id)
}
