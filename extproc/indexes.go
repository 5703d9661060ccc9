package extproc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/feed"
)

const (
	// maxIndexBytes bounds the dump of one rank, and all dumps that are stored while others pull them.
	maxIndexBytes = 256 << 20
	// takenAtOnce bounds the ranks that are taken from other replicas at the same time, and with it the memory of their dumps.
	takenAtOnce = 4
	// meetTime bounds the wait of a new replica for a message of another one, which publishes every second.
	meetTime = 3 * time.Second
	// warmTime bounds the time for which a new replica takes indexes before it listens.
	warmTime = 15 * time.Second
	// expireEvery is the interval at which dumps are dropped that nobody pulls any more.
	expireEvery = 5 * time.Second
)

// indexes exchanges the indexes of ranks with the other replicas, which read the same sockets of engines:
//
//	event                                       effect
//	this replica starts                         it takes the index of each rank, and listens after that
//	a batch is missing, and cannot be replayed  it takes the index of that rank; see package sockets
//	another replica asks                        it answers from its own index, page by page
//	no other replica, or none with the rank     the index begins with the next events
type indexes struct {
	link  atomic.Pointer[bus.Bus] // to the other replicas; nil without them
	slots chan struct{}           // has takenAtOnce places: each rank that is taken occupies one
}

// takeIndex returns the index of a rank from another replica that has one. Without such a replica the error is feed.ErrNoSnapshot.
func (r *Router) takeIndex(ctx context.Context, worker string, epoch uint64, rank int) (*feed.Snapshot, error) {
	link, names := r.indexes.link.Load(), r.peers.Names()
	if link == nil || len(names) == 0 {
		return nil, feed.ErrNoSnapshot
	}
	select {
	case r.indexes.slots <- struct{}{}:
		defer func() { <-r.indexes.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	// Any replica will do. One that has no connection to the engine, or has not seen it yet, answers at once that it has nothing.
	var s *feed.Snapshot
	var err error
	for _, name := range names {
		s, err = link.ReplicaSnapshot(ctx, name, worker, epoch, rank, admitIndex)
		if err == nil {
			break
		}
	}
	return s, err
}

// admitIndex refuses a dump that is too large, before its pages are requested.
func admitIndex(_ context.Context, size int) error {
	if size > maxIndexBytes {
		return fmt.Errorf("its index of a rank has %d bytes: replicas take at most %d from each other", size, maxIndexBytes)
	}
	return nil
}

// takeIndexes takes the indexes of all ranks from the other replicas, before this one listens. Engines without a replay socket do not
// publish their caches again, so a replica that has just started knows nothing else of them.
func (r *Router) takeIndexes(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, warmTime)
	defer stop()
	began := time.Now()

	// Whether there is another replica is not known: the servers for peers may not be connected yet.
	for len(r.peers.Names()) == 0 && time.Since(began) < meetTime && ctx.Err() == nil {
		_ = backoff.Sleep(ctx, publishEvery)
	}

	// A rank that another replica does not have begins with the next events of its engine. So does one of an engine that has restarted
	// meanwhile: its batches count from 0 again, which empties the rank.
	var all sync.WaitGroup
	var taken atomic.Int64
	for _, m := range r.fleet.Snapshot().Ranks {
		if m.Worker.KVEvents == "" {
			continue
		}
		all.Go(func() {
			s, err := r.takeIndex(ctx, m.Worker.Name, m.Worker.Epoch, m.Number)
			if err == nil {
				err = r.feed.Restore(s, time.Now())
			}
			if err != nil {
				r.log.Debug("index not taken from another replica", "worker", m.Worker.Name, "rank", m.Number, "err", err)
				return
			}
			taken.Add(1)
		})
	}
	all.Wait()
	r.log.Info("indexes taken from other replicas of the router", "replicas", len(r.peers.Names()), "ranks", taken.Load(),
		"duration", time.Since(began))
}

// serveIndexes answers the other replicas that take indexes, until ctx ends. A rank's events wait while its dump is made.
func (r *Router) serveIndexes(ctx context.Context, b *bus.Bus) {
	dumps := feed.NewSnapshots(r.feed, maxIndexBytes, time.Now())
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for backoff.Sleep(ctx, expireEvery) == nil {
			dumps.Expire(time.Now())
		}
	})

	// A stored dump is not shared: the batches after it are remembered by no replica. The next page of a dump is found by its ID.
	shareable := func(uint64) bool { return false }
	err := b.ServeReplicas(ctx, r.replica, func(worker string, epoch uint64, rank int, id uint64) *feed.Snapshot {
		s := dumps.Get(worker, epoch, rank, id, shareable, time.Now())
		if s == nil || s.Next == 0 { // no event has come
			return nil
		}
		return s
	})
	if err != nil {
		r.log.Error("indexes not served to other replicas", "err", err)
	}
}
