package extproc

import (
	"fmt"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TestReloadOfTheBlockSizeForgets: after a reload that changes models[].blockSize the model's ranks are empty and
// wait for a replay from the start. Until then events of the engine's size were skipped, and the rank was stale.
func TestReloadOfTheBlockSizeForgets(t *testing.T) {
	const models = `{name: base, path: "builtin:sim", blockSize: %d, workers: [{name: w0, address: "10.0.0.1:80", healthPath: none}]}`
	r := modelsRouter(t, "blockSize: 16")
	worker, _ := r.fleet.Snapshot().Rank("w0", 0)
	publish := func(seq uint64, hashes ...uint64) feed.Result {
		e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 32}
		for _, h := range hashes {
			e.Hashes = append(e.Hashes, kvevent.EngineHash(h))
			e.Blocks = append(e.Blocks, blockhash.Block(h))
		}
		if seq > 0 {
			e.Parent, e.HasParent = e.Hashes[0]-1, true
		}
		batch := &kvevent.Batch{Seconds: 1000 + float64(seq), Events: []kvevent.Event{e}}
		return r.feed.Apply(&feed.Message{Worker: "w0", Seq: seq, Batch: batch}, time.Now())
	}
	expect := func(when string, state feed.State, reason feed.Reason, blocks int) {
		t.Helper()
		if s := r.feed.State(worker); s != state || r.feed.Reason(worker) != reason || r.feed.Blocks(worker) != blocks {
			t.Errorf("%s: %v (%v), %d blocks; want %v (%v), %d", when, s, r.feed.Reason(worker), r.feed.Blocks(worker), state, reason, blocks)
		}
	}

	publish(0, 1, 2, 3)
	expect("another size", feed.Stale, feed.OtherBlockSize, 0)
	for range 2 { // the second one changes nothing
		if err := r.Reload(settings(t, fmt.Sprintf(models, 32))); err != nil {
			t.Fatal(err)
		}
		expect("the size was corrected", feed.Syncing, feed.Sound, 0)
	}

	if result := publish(1, 4, 5); result.Verdict != feed.Missing || result.Resume != 0 {
		t.Errorf("a child of skipped blocks: %+v", result)
	}
	publish(0, 1, 2, 3)
	publish(1, 4, 5)
	expect("it was replayed", feed.Exact, feed.Sound, 5)
	if n := r.index.Stats().Orphans; n != 0 {
		t.Errorf("%d orphans", n)
	}
}

// TestBlockSizeOfEngines: without a configured block size a model has the size that most of its engines have. Blocks that came before it was known
// stay, and a worker with another size is counted.
func TestBlockSizeOfEngines(t *testing.T) {
	r := modelsRouter(t, "blockSize: auto")
	if _, err := r.fleet.Put(fleet.Worker{Name: "w2", Model: "base", Address: "10.0.0.3:80", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	worker, _ := r.fleet.Snapshot().Rank("w0", 0)
	expect := func(when string, size, odd, blocks int) {
		t.Helper()
		r.models.applyFacts()
		if got := r.models.blockSize(worker.Worker); got != size || len(r.models.engines.odd) != odd || r.feed.Blocks(worker) != blocks {
			t.Errorf("%s: %d tokens, odd %v, %d blocks; want %d, %d, %d", when, got, r.models.engines.odd, r.feed.Blocks(worker), size, odd, blocks)
		}
	}
	report := func(name string, size int) {
		t.Helper()
		_, err := r.fleet.Update(name, func(w *fleet.Worker) { w.Figures.BlockSize.Set(size, fleet.FromEvents) })
		if err != nil {
			t.Fatal(err)
		}
	}

	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 528, Hashes: []kvevent.EngineHash{1}, Blocks: []blockhash.Block{1}}
	r.feed.Apply(&feed.Message{Worker: "w0", Batch: &kvevent.Batch{Seconds: 1000, Events: []kvevent.Event{e}}}, time.Now())
	expect("before a report", 0, 0, 1)
	report("w0", 528)
	expect("of one in three", 0, 0, 1)
	r.fleet.Remove("w2")
	expect("of one in two", 528, 0, 1)
	if _, err := r.fleet.Put(fleet.Worker{Name: "w2", Model: "base", Address: "10.0.0.3:80", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	report("w1", 16)
	expect("of as many, the one before", 528, 1, 1)
	report("w2", 16)
	expect("of most", 16, 1, 0)
	r.fleet.Remove("w1")
	r.fleet.Remove("w2")
	expect("of the one that is left", 528, 0, 0)
	r.fleet.Remove("w0")
	expect("of none: it stays", 528, 0, 0)
}
