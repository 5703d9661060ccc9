package feed_test

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// Batch 1 of a rank is lost. The feed refuses batch 2 and names the batch from which to replay.
func ExampleFeed_Apply() {
	workers := fleet.New(fleet.Hooks{})
	_, err := workers.Put(fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:8000", Ranks: 1, State: fleet.Ready, BlockSize: 16})
	if err != nil {
		fmt.Println(err)
		return
	}
	f := feed.New(feed.Config{}, workers, kvindex.New(kvindex.Config{}))
	now := time.Unix(1_000, 0)

	apply := func(seq uint64) {
		batch := &kvevent.Batch{Events: []kvevent.Event{
			{Kind: kvevent.Stored, Hashes: []kvevent.EngineHash{kvevent.EngineHash(seq)}, Blocks: []blockhash.Block{blockhash.Block(seq)}},
		}}
		result := f.Apply(&feed.Message{Worker: "a", Seq: seq, Batch: batch}, now)
		fmt.Printf("batch %d: missing %v, replay from %d; %s", seq, result.Verdict == feed.Missing, result.Resume, f)
	}

	apply(0)
	apply(2)
	apply(1)
	apply(2)
	// Output:
	// batch 0: missing false, replay from 0; a/0 exact seq 0, 1 blocks
	// batch 2: missing true, replay from 1; a/0 syncing seq 0, 1 blocks
	// batch 1: missing false, replay from 0; a/0 syncing seq 1, 2 blocks
	// batch 2: missing false, replay from 0; a/0 exact seq 2, 3 blocks
}
