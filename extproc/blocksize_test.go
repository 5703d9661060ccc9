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
		if _, err := r.fleet.Update("w0", func(w *fleet.Worker) { w.BlockSize = 32 }); err != nil { // as the list of workers does
			t.Fatal(err)
		}
		r.models.applyFacts()
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

// TestBlockSizesOfEngines: each engine's cache is searched by blocks of its own size, and the model has blocks of the size that divides them
// all. Blocks that came before a size was known stay. A size that would make the model's blocks too small is left out, and its worker is
// counted.
func TestBlockSizesOfEngines(t *testing.T) {
	r := modelsRouter(t, "blockSize: auto")
	put := func(name, address string) {
		t.Helper()
		w := fleet.Worker{Name: name, Model: "base", Address: address, Ranks: 1, State: fleet.Ready}
		if _, err := r.fleet.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	put("w2", "10.0.0.3:80")
	worker, _ := r.fleet.Snapshot().Rank("w0", 0)
	expect := func(when string, model int, coarse []int, w0, odd, blocks int) {
		t.Helper()
		r.models.applyFacts()
		now, sizes := r.fleet.Snapshot().Worker("w0"), r.models.engines.blockSizes["base"]
		if now == nil {
			now = worker.Worker
		}
		got := []any{sizes.Model, sizes.Coarse(), r.models.blockSize(now), len(r.models.engines.odd), r.feed.Blocks(worker)}
		if want := []any{model, coarse, w0, odd, blocks}; fmt.Sprint(got...) != fmt.Sprint(want...) {
			t.Errorf("%s: model, coarse sizes, size of w0, odd workers and blocks are %v; want %v", when, got, want)
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
	expect("before a report", 0, nil, 0, 0, 1)
	report("w0", 528)
	expect("of one", 528, nil, 528, 0, 1)
	report("w1", 16)
	expect("of two", 16, []int{528}, 528, 0, 1)
	report("w2", 24)
	expect("of three, with one divisor", 8, []int{16, 24, 528}, 528, 0, 1)
	report("w2", 18)
	expect("of a size that leaves too small blocks", 16, []int{528}, 528, 1, 1)
	r.fleet.Remove("w2")
	r.fleet.Remove("w1")
	put("w1", "10.0.0.2:80")
	expect("of an engine that starts again: its size stays", 16, []int{528}, 528, 0, 1)
	r.fleet.Remove("w1")
	expect("of the one that is left", 528, nil, 528, 0, 1)
	r.fleet.Remove("w0")
	expect("of none: it stays", 528, nil, 528, 0, 0)
}

// TestBlockSizeThatComesLate: events of a size that is not known yet are skipped, as when an agent's lease is late, and their rank is
// rebuilt when it is known.
func TestBlockSizeThatComesLate(t *testing.T) {
	r := modelsRouter(t, "blockSize: auto")
	if _, err := r.fleet.Update("w1", func(w *fleet.Worker) { w.Figures.BlockSize.Set(32, fleet.FromEvents) }); err != nil {
		t.Fatal(err)
	}
	r.models.applyFacts()
	rank, _ := r.fleet.Snapshot().Rank("w0", 0)
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 64, Hashes: []kvevent.EngineHash{1}, Blocks: []blockhash.Block{1}}
	first := &feed.Message{Worker: "w0", Batch: &kvevent.Batch{Seconds: 1000, Events: []kvevent.Event{e}}}
	r.feed.Apply(first, time.Now())
	if got := r.feed.Reason(rank); got != feed.OtherBlockSize {
		t.Errorf("events of an unknown size: %v", got)
	}

	if _, err := r.fleet.Update("w0", func(w *fleet.Worker) { w.BlockSize = 64 }); err != nil {
		t.Fatal(err)
	}
	r.models.applyFacts()
	if got := r.feed.State(rank); got != feed.Syncing {
		t.Errorf("after the lease with the size: %v", got)
	}
	r.feed.Apply(first, time.Now())
	if state, blocks := r.feed.State(rank), r.feed.Blocks(rank); state != feed.Exact || blocks != 1 {
		t.Errorf("after the replay: %v, %d blocks", state, blocks)
	}
}
