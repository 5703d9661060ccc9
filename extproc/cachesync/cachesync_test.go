package cachesync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestByteSemaphoreBoundsDumps: all dumps together stay within the limit. One that does not fit waits
// for a release, and one above the limit is refused.
func TestByteSemaphoreBoundsDumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newByteSemaphore(100)
		if err := b.acquire(t.Context(), 101); err == nil {
			t.Error("more than the limit was acquired")
		}
		if err := b.acquire(t.Context(), 70); err != nil {
			t.Fatal(err)
		}

		acquired := make(chan error, 1)
		go func() { acquired <- b.acquire(t.Context(), 40) }()
		synctest.Wait()
		if len(acquired) != 0 {
			t.Fatal("110 of 100 bytes were acquired")
		}
		b.release(70)
		if err := <-acquired; err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.acquire(ctx, 61); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		b.release(40)
		if b.free != 100 {
			t.Errorf("%d bytes are free in the end", b.free)
		}
	})
}

func newTestSyncer() *Syncer { return New(Config{Metrics: prometheus.NewRegistry()}) }

// TestQueuedBatchesAreBounded: the queue is bounded per rank and in total. Dropped batches are counted.
func TestQueuedBatchesAreBounded(t *testing.T) {
	s := newTestSyncer()
	s.mu.Lock()
	defer s.mu.Unlock()
	first, second := s.rankLocked(rankKey{"a", 0}), s.rankLocked(rankKey{"b", 0})

	for seq := range uint64(maxQueuedBatches + 3) {
		s.queueLocked(first, &feed.Message{Worker: "a", Seq: seq, Batch: &kvevent.Batch{}})
	}
	s.queueLocked(first, &feed.Message{Worker: "a", Mark: true, Batch: &kvevent.Batch{}})
	if n := len(first.queued); n != maxQueuedBatches || first.queued[n-1].Seq != maxQueuedBatches-1 {
		t.Errorf("%d batches are queued", n)
	}

	large := &kvevent.Batch{Events: []kvevent.Event{{Hashes: make([]kvevent.EngineHash, maxQueuedBytes/16)}}}
	for seq := range uint64(3) {
		s.queueLocked(second, &feed.Message{Worker: "b", Seq: seq, Batch: large})
	}
	if len(second.queued) != 1 || s.queuedBytes > maxQueuedBytes {
		t.Errorf("%d large batches are queued, %d bytes", len(second.queued), s.queuedBytes)
	}
	if n := testutil.ToFloat64(s.metrics.dropped); n != 5 {
		t.Errorf("%g batches were dropped", n)
	}
}

// TestPausesGrowWithFailures: the pause grows with each recovery in a row that failed, up to a bound.
// A success ends that.
func TestPausesGrowWithFailures(t *testing.T) {
	s := newTestSyncer()
	now := time.Unix(1000, 0)
	r := s.rankLocked(rankKey{"a", 0})
	finish := func(state feed.State) int { return s.finish(r, &node{}, state, errMissing, now) }

	var last time.Duration
	for n := range 40 {
		if failures := finish(feed.Syncing); failures != n+1 {
			t.Errorf("%d failures, want %d", failures, n+1)
		}
		if pause := r.notBefore.Sub(now); pause < last || pause > maxPause || n == 0 && pause != minPause {
			t.Errorf("after %d failures a pause of %s", n+1, pause)
		}
		last = r.notBefore.Sub(now)
	}
	if last != maxPause {
		t.Errorf("in the end a pause of %s", last)
	}

	finish(feed.Exact)
	finish(feed.Syncing)
	if pause := r.notBefore.Sub(now); pause != minPause {
		t.Errorf("after a success a pause of %s", pause)
	}
}
