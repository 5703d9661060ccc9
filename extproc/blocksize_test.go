package extproc

import (
	"fmt"
	"testing"
	"time"

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
