package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

const exact = feed.Exact

// recover brings one rank up to date, once; where that did not help, patrol tries again later.
func (f *follower) recover(ctx context.Context, k rankKey, r *followed) {
	select {
	case f.slots <- struct{}{}:
	case <-ctx.Done():
		f.release(r)
		return
	}
	began := time.Now()
	how, err := f.attempt(ctx, k)
	<-f.slots
	f.release(r)
	if ctx.Err() != nil {
		return
	}
	m, there := f.fleet.Snapshot().Rank(k.worker, k.rank)
	if there && f.feed.State(m) == exact {
		f.caches.recovered(how, true, time.Since(began))
		f.log.Debug("cache knowledge recovered", "worker", k.worker, "rank", k.rank, "from", how, "blocks", f.index.Blocks(m.ID), "duration", time.Since(began))
		f.rest(r, time.Now(), true)
		return
	}
	f.caches.recovered(how, false, time.Since(began))
	if tries := f.rest(r, time.Now(), false); tries == 2 && there { // the first may have been too early
		f.log.Warn("cache knowledge not recovered; trying again, later each time", "worker", k.worker, "rank", k.rank, "state", f.feed.State(m).String(), "err", err)
	}
}

// rest says when the next recovery may begin, and how many in a row have not helped.
func (f *follower) rest(r *followed, now time.Time, helped bool) (tries int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if helped {
		r.tries, r.notBefore = 0, now.Add(firstPause/4)
		return 0
	}
	r.notBefore = now.Add(min(firstPause<<min(r.tries, 16), lastPause))
	r.tries++
	return r.tries
}

// release hands on the batches that have waited, until none is left.
func (f *follower) release(r *followed) {
	for {
		f.mu.Lock()
		held := r.held
		r.held = nil
		if len(held) == 0 {
			r.recovering = false
			f.mu.Unlock()
			return
		}
		for i := range held {
			f.held -= hashes(held[i].Batch)
		}
		f.mu.Unlock()
		for i := range held {
			f.offer(&held[i], time.Now())
		}
	}
}

// How a rank was recovered.
const (
	byReplay   = "replay"
	bySnapshot = "snapshot"
)

var errMissing = errors.New("the agent no longer has what is missing")

// attempt asks the rank's agent for what came after the last batch we know; where we know none,
// or that does not help, for a snapshot, and for what came after that.
func (f *follower) attempt(ctx context.Context, k rankKey) (how string, err error) {
	m, ok := f.fleet.Snapshot().Rank(k.worker, k.rank)
	if !ok {
		return byReplay, feed.ErrGone
	}
	if f.feed.Resume(m) > 0 {
		if err := f.replay(ctx, k, m); err != nil && !errors.Is(err, errMissing) || f.feed.State(m) == exact {
			return byReplay, err
		}
	}
	switch err := f.restore(ctx, k); {
	case errors.Is(err, feed.ErrNoSnapshot), errors.Is(err, feed.ErrOld):
		return byReplay, f.replay(ctx, k, m)
	case err != nil:
		return bySnapshot, err
	}
	return bySnapshot, f.replay(ctx, k, m)
}

// replay asks an agent for a rank's batches after the last one applied.
func (f *follower) replay(ctx context.Context, k rankKey, m fleet.Rank) error {
	gap := false
	stands, err := f.bus.Replay(ctx, k.worker, k.rank, f.feed.Resume(m), func(e *feed.Message) {
		gap = f.offer(e, time.Now())
	})
	if err != nil {
		return err
	}
	if !stands.Connected {
		return errors.New("the agent does not hear the engine")
	}
	end := feed.Message{Worker: k.worker, Epoch: stands.Epoch, Rank: k.rank, Seq: stands.Next, Mark: true}
	if behind := f.offer(&end, time.Now()); gap || behind {
		return errMissing
	}
	return nil
}

// restore swaps in a snapshot from the rank's agent.
func (f *follower) restore(ctx context.Context, k rankKey) error {
	size := 0
	defer func() { f.room.give(size) }()
	s, err := f.bus.Snapshot(ctx, k.worker, k.rank, func(ctx context.Context, n int) error {
		if err := f.room.take(ctx, n); err != nil {
			return err
		}
		size = n
		return nil
	})
	if err != nil {
		return err
	}
	f.caches.dumped.Add(float64(len(s.Dump)))
	return f.feed.Restore(s, time.Now())
}

// room is memory that recoveries share: those that find none wait.
type room struct {
	all int

	mu      sync.Mutex
	free    int           // guarded by mu
	changed chan struct{} // guarded by mu; closed and replaced when some is given back
}

func newRoom(bytes int) *room {
	return &room{all: bytes, free: bytes, changed: make(chan struct{})}
}

// take waits until there is room for n bytes.
func (r *room) take(ctx context.Context, n int) error {
	if n > r.all {
		return fmt.Errorf("a dump of %d bytes exceeds the %d that all may take together", n, r.all)
	}
	for {
		r.mu.Lock()
		if n <= r.free {
			r.free -= n
			r.mu.Unlock()
			return nil
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *room) give(n int) {
	if n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
	close(r.changed)
	r.changed = make(chan struct{})
}

// cacheMetrics say how knowledge of caches is kept up to date.
type cacheMetrics struct {
	recoveries *prometheus.CounterVec
	seconds    prometheus.Histogram
	dumped     prometheus.Counter
	unheld     prometheus.Counter
}

func newCacheMetrics(reg prometheus.Registerer) *cacheMetrics {
	m := &cacheMetrics{
		recoveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "feed", Name: "recoveries_total",
			Help: "Attempts to bring a rank's knowledge up to date from its agent, by what brought it and whether it was exact then.",
		}, []string{"by", "result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "stator", Subsystem: "feed", Name: "recovery_seconds",
			Help: "Duration of those attempts.", Buckets: prometheus.ExponentialBuckets(1e-3, 4, 8),
		}),
		dumped: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "feed", Name: "snapshot_bytes_total", Help: "Dumps of caches pulled from agents.",
		}),
		unheld: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "feed", Name: "unheld_batches_total",
			Help: "Live batches that found no room to wait for their rank's recovery; they are replayed.",
		}),
	}
	for _, by := range []string{byReplay, bySnapshot} {
		m.recoveries.WithLabelValues(by, "exact")
		m.recoveries.WithLabelValues(by, "not_exact")
	}
	reg.MustRegister(m.recoveries, m.seconds, m.dumped, m.unheld)
	return m
}

func (m *cacheMetrics) recovered(by string, helped bool, took time.Duration) {
	result := "not_exact"
	if helped {
		result = "exact"
	}
	m.recoveries.WithLabelValues(by, result).Inc()
	m.seconds.Observe(took.Seconds())
}
