package feed_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/test/process"
)

// BenchmarkReplicaStart: how long is a new router replica without exact knowledge of 2 million
// blocks, once it has the snapshots? Each operation takes all of them in, from their bytes, into
// an empty index, on two goroutines; MB/s is of dump bytes, cpu-s/op of both cores. The bar is 2 s.
//
//	go test -run - -bench ReplicaStart -cpu 2 ./internal/kv/feed
func BenchmarkReplicaStart(b *testing.B) {
	const blocks = 2 << 20
	for _, ranks := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("blocks=2M/ranks=%d", ranks), func(b *testing.B) {
			snapshots, bytes := filled(b, ranks, blocks/ranks)
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			before := process.OwnCPU()
			for b.Loop() {
				f, held := replica(b, ranks)
				var all sync.WaitGroup
				for worker := range 2 {
					all.Go(func() {
						for i := worker; i < ranks; i += 2 {
							if err := f.Restore(&snapshots[i], time.Unix(1, 0)); err != nil {
								b.Error(err)
							}
							mark := feed.Message{Worker: name(i), Epoch: 1, Seq: snapshots[i].Next, Mark: true, State: feed.Exact}
							f.Apply(&mark, time.Unix(1, 0))
						}
					})
				}
				all.Wait()
				if n := held(); n != blocks || f.Stats().Ranks[feed.Exact] != ranks {
					b.Fatalf("%d blocks, %d ranks exact", n, f.Stats().Ranks[feed.Exact])
				}
			}
			b.ReportMetric((process.OwnCPU()-before).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// BenchmarkApplyVLLM: how many block operations a second does one core take from vLLM's bytes,
// decoded, hashed and applied? Each message stores a prompt of 64 blocks of 16 tokens that is new
// and removes another of 64, at a rank whose engine has room for 131,072 blocks and is full; the
// index holds two million. The bar is 1.5 M.
//
//	go test -run - -bench ApplyVLLM ./internal/kv/feed
func BenchmarkApplyVLLM(b *testing.B) {
	const length, prompts = 64, 4096
	f, x := full(b)
	messages := storesAndRemovals(3, prompts, length)
	var batch kvevent.Batch
	seq := 0
	apply := func() {
		if err := kvevent.VLLM.Decode(messages[seq%prompts], kvevent.Limits{}, &batch); err != nil {
			b.Fatal(err)
		}
		if got := f.Apply(&feed.Message{Worker: "new", Epoch: 1, Seq: uint64(seq), Batch: &batch}, time.Unix(1, 0)); got.Verdict != feed.Applied {
			b.Fatal(got)
		}
		seq++
	}
	for range prompts {
		apply()
	}
	b.SetBytes(int64(len(messages[0])))
	b.ReportAllocs()
	before := process.OwnCPU()
	for b.Loop() {
		apply()
	}
	b.ReportMetric(float64(b.N)*2*length/(process.OwnCPU()-before).Seconds()/1e6, "Mblockops/cpu-s")
	if n := x.Stats().Evicted; n != 0 {
		b.Fatal(n, " blocks were forgotten")
	}
}

// full returns a feed with two million blocks of four ranks, and with a rank "new" that
// holds none.
func full(b *testing.B) (*feed.Feed, *kvindex.Index) {
	b.Helper()
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 30})
	members := fleet.New(fleet.Hooks{})
	f := feed.New(feed.Config{}, members, x)
	for _, w := range []string{name(0), name(1), name(2), name(3), "new"} {
		if _, err := members.Put(fleet.Worker{Name: w, Model: "m", Address: "10.0.0.1:80", Ranks: 1, Epoch: 1, BlockSize: 16}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 4 {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		for seq := range 2 << 20 / 4 / 256 {
			e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16}
			for range 256 {
				e.Hashes, e.Blocks = append(e.Hashes, kvevent.EngineHash(rng.Uint64())), append(e.Blocks, blockhash.Block(rng.Uint64()))
			}
			apply(f, i, uint64(seq), e)
		}
	}
	return f, x
}

// apply applies a batch of one event to rank i.
func apply(f *feed.Feed, i int, seq uint64, e kvevent.Event) {
	batch := &kvevent.Batch{Events: []kvevent.Event{e}}
	f.Apply(&feed.Message{Worker: name(i), Epoch: 1, Seq: seq, Batch: batch}, time.Unix(1, 0))
}

func name(i int) string { return fmt.Sprintf("w%d", i) }

// replica returns a feed with an empty index, and what counts its blocks.
func replica(b *testing.B, ranks int) (*feed.Feed, func() int64) {
	b.Helper()
	var f *feed.Feed
	x := kvindex.New(kvindex.Config{})
	members := fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { f.RankGone(id) }})
	f = feed.New(feed.Config{}, members, x)
	for i := range ranks {
		if _, err := members.Put(fleet.Worker{Name: name(i), Model: "m", Address: "10.0.0.1:80", Ranks: 1, Epoch: 1, BlockSize: 16}); err != nil {
			b.Fatal(err)
		}
	}
	return f, func() int64 { return x.Stats().Pairs }
}

// filled returns snapshots of so many ranks that hold so many blocks each: conversations of 256
// blocks, the first 32 of which half of all ranks share.
func filled(b *testing.B, ranks, blocks int) (all []feed.Snapshot, bytes int) {
	b.Helper()
	f, _ := replica(b, ranks)
	for i := range ranks {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		for seq := 0; seq < blocks/256; seq++ {
			shared := rand.New(rand.NewPCG(2, uint64(seq)))
			e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16}
			for j := range 256 {
				block := rng.Uint64()
				if j < 32 && i%2 == 0 {
					block = shared.Uint64()
				}
				e.Hashes, e.Blocks = append(e.Hashes, kvevent.EngineHash(rng.Uint64())), append(e.Blocks, blockhash.Block(block))
			}
			apply(f, i, uint64(seq), e)
		}
		s, ok := f.Snapshot(name(i), 1, 0)
		if !ok {
			b.Fatal("there is no snapshot")
		}
		all, bytes = append(all, s), bytes+len(s.Dump)
	}
	return all, bytes
}
