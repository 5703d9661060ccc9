package feed_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
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
			before := cpu(b)
			for b.Loop() {
				f, held := replica(b, ranks)
				var all sync.WaitGroup
				for worker := range 2 {
					all.Go(func() {
						for i := worker; i < ranks; i += 2 {
							if err := f.Restore(name(i), 1, 0, &snapshots[i], time.Unix(1, 0)); err != nil {
								b.Error(err)
							}
							f.Complete(name(i), 1, 0, snapshots[i].Next, time.Unix(1, 0))
						}
					})
				}
				all.Wait()
				if n := held(); n != blocks || f.Stats().Ranks[feed.Exact] != ranks {
					b.Fatalf("%d blocks, %d ranks exact", n, f.Stats().Ranks[feed.Exact])
				}
			}
			b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// cpu is the time that this process has had of both cores: what others do on the machine changes
// it less than the clock.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
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
				e.Hashes, e.Blocks = append(e.Hashes, kvevent.Engine(rng.Uint64())), append(e.Blocks, blockhash.Block(block))
			}
			f.Apply(name(i), 1, 0, uint64(seq), &kvevent.Batch{Events: []kvevent.Event{e}}, time.Unix(1, 0))
		}
		s, ok := f.Snapshot(name(i), 1, 0)
		if !ok {
			b.Fatal("there is no snapshot")
		}
		all, bytes = append(all, s), bytes+len(s.Dump)
	}
	return all, bytes
}
