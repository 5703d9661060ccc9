package feed_test

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TestStreamFollowsItsSource plays what a source reports about one engine: it is idle, publishes,
// loses its connection, restarts, and loses a batch.
func TestStreamFollowsItsSource(t *testing.T) {
	w := newWorld()
	worker := fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:8000", Ranks: 1, BlockSize: 16}
	if _, err := w.fleet.Put(worker); err != nil {
		t.Fatal(err)
	}
	s := &feed.Stream{Feed: w.feed, Worker: "a", Now: func() time.Time { return w.now }}
	publish := func(seq uint64) func() {
		return func() {
			stored := kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.EngineHash{1}, Blocks: []blockhash.Block{1}}
			s.Batch(seq, &kvevent.Batch{Events: []kvevent.Event{stored}})
		}
	}

	for _, step := range []struct {
		event string
		do    func()
		want  string
	}{
		{"connects", func() { s.Connected(true) }, "a/0 none, 0 blocks\n"},
		{"has published nothing", func() { s.CaughtUp(0) }, "a/0 exact, 0 blocks\n"},
		{"publishes", publish(0), "a/0 exact seq 0, 1 blocks\n"},
		{"is disconnected", func() { s.Connected(false) }, "a/0 stale (interrupted) seq 0, 1 blocks\n"},
		{"is connected again", func() { s.Connected(true) }, "a/0 stale (interrupted) seq 0, 1 blocks\n"},
		{"has published nothing else", func() { s.CaughtUp(1) }, "a/0 exact seq 0, 1 blocks\n"},
		{"is a new process", s.Restarted, "a/0 none seq 0, 0 blocks\n"},
		{"publishes again", publish(0), "a/0 exact seq 0, 1 blocks\n"},
		{"loses a batch", publish(2), "a/0 syncing seq 0, 1 blocks\n"},
	} {
		step.do()
		if got := w.feed.String(); got != step.want {
			t.Errorf("the engine %s: %swant %s", step.event, got, step.want)
		}
	}

	if resume, gap := s.Batch(2, &kvevent.Batch{}); !gap || resume != 1 {
		t.Errorf("gap %v, replay from %d; want a replay from 1", gap, resume)
	}
}
