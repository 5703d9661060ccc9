package cachesync

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/test/testkit"
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

// TestHungNodeHoldsFewSlots: an agent with hundreds of ranks does not answer. Its recoveries hold few slots, and
// after one that timed out none begins until its pause is over or its next message arrives. Another node's rank
// is recovered at once.
func TestHungNodeHoldsFewSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.stop()
		put := func(name string) *agent {
			worker := fleet.Worker{
				Name: name, Model: "m", Address: "10.0.0.1:8000", Ranks: 1, Epoch: 1, State: fleet.Ready, KVEvents: "tcp://10.0.0.1:5557",
			}
			a := w.network.join(worker, 0)
			if _, err := w.fleet.Put(worker); err != nil {
				t.Fatal(err)
			}
			return a
		}
		for i := range 300 {
			put(fmt.Sprintf("hung.w%d", i)).silent = true
		}
		put("well.w0")
		running := func() int {
			w.syncer.mu.Lock()
			defer w.syncer.mu.Unlock()
			return w.syncer.running
		}

		w.all.Go(func() { _ = w.syncer.Run(w.ctx, w.network) })
		time.Sleep(time.Second)
		m, _ := w.fleet.Snapshot().Rank("well.w0", 0)
		if s := w.feed.State(m); s != feed.Exact || running() != maxNodeRecoveries {
			t.Errorf("the other node's rank is %v; %d recoveries run", s, running())
		}

		time.Sleep(1100 * time.Millisecond) // the first ones have timed out
		if n := running(); n != 0 {
			t.Errorf("%d recoveries run during the node's pause", n)
		}
		w.network.send(&feed.Message{Worker: "hung.w0", Epoch: 1, Mark: true, Batch: &kvevent.Batch{}})
		time.Sleep(reconcileEvery)
		if n := running(); n != maxNodeRecoveries {
			t.Errorf("%d recoveries run after the node's message", n)
		}
	})
}

// TestPausesGrowWithFailures: the pause grows with each recovery in a row that failed, up to a bound.
// A success ends that.
func TestPausesGrowWithFailures(t *testing.T) {
	s := newTestSyncer()
	now := time.Unix(1000, 0)
	r := s.rankLocked(rankKey{"a", 0})
	finish := func(state feed.State) int {
		failures, _ := s.finish(r, &node{}, state, errMissing, now)
		return failures
	}

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
