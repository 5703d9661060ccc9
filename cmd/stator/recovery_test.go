package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Dumps together stay within the room: who finds none waits until another is done, and who wants
// more than there is at all is refused.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(100)
		if err := r.take(t.Context(), 101); err == nil {
			t.Error("more than there is was given")
		}
		if err := r.take(t.Context(), 70); err != nil {
			t.Fatal(err)
		}
		took := make(chan error, 1)
		go func() { took <- r.take(t.Context(), 40) }()
		synctest.Wait()
		if len(took) != 0 {
			t.Fatal("110 of 100 were given")
		}
		r.give(70)
		if err := <-took; err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.take(ctx, 61); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		r.give(40)
		if r.free != 100 {
			t.Errorf("%d are free in the end", r.free)
		}
	})
}

// What waits for recoveries is bounded, by rank and altogether, and what finds no room is counted.
func TestHeldBatchesAreBounded(t *testing.T) {
	f := newFollower(&decider{caches: newCacheMetrics(prometheus.NewRegistry())}, nil, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	first, second := f.rankLocked(rankKey{"a", 0}), f.rankLocked(rankKey{"b", 0})
	for seq := range uint64(heldBatches + 3) {
		f.holdLocked(first, &feed.Message{Worker: "a", Seq: seq, Batch: &kvevent.Batch{}})
	}
	f.holdLocked(first, &feed.Message{Worker: "a", Mark: true, Batch: &kvevent.Batch{}})
	if n := len(first.held); n != heldBatches || first.held[n-1].Seq != heldBatches-1 {
		t.Errorf("%d are held", n)
	}
	big := &kvevent.Batch{Events: []kvevent.Event{{Hashes: make([]kvevent.Engine, heldHashes/2)}}}
	for seq := range uint64(3) {
		f.holdLocked(second, &feed.Message{Worker: "b", Seq: seq, Batch: big})
	}
	if len(second.held) != 1 || f.held > heldHashes {
		t.Errorf("%d large ones are held, %d hashes", len(second.held), f.held)
	}
	if n := testutil.ToFloat64(f.caches.unheld); n != 5 {
		t.Errorf("%g found no room", n)
	}
}

// Pauses grow from one attempt that did not help to the next, up to a bound, and end with one
// that did.
func TestPausesGrow(t *testing.T) {
	f, r, now := newFollower(&decider{}, nil, nil), &followed{}, time.Unix(1000, 0)
	var last time.Duration
	for n := range 40 {
		if tries := f.rest(r, now, false); tries != n+1 {
			t.Errorf("%d tries, want %d", tries, n+1)
		}
		if wait := r.notBefore.Sub(now); wait < last || wait > lastPause || n == 0 && wait != firstPause {
			t.Errorf("after %d attempts a pause of %s", n+1, wait)
		}
		last = r.notBefore.Sub(now)
	}
	if last != lastPause {
		t.Errorf("in the end a pause of %s", last)
	}
	f.rest(r, now, true)
	if f.rest(r, now, false); r.notBefore.Sub(now) != firstPause {
		t.Errorf("after success a pause of %s", r.notBefore.Sub(now))
	}
}
