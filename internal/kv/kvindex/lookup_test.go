package kvindex

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// BenchmarkLookup: what does a prompt of 6,250 blocks cost, all held by every holder, in an
// index of 2 million pairs, while block operations are applied beside it?
//
// prompts=1 asks for one prompt again and again; prompts=all for each of the index's in turn,
// so that its nodes are in no cache. p50 is the median of the single lookups: other processes
// on the machine move the mean and leave it. With 64 holders there are 64 times fewer nodes.
//
//	go test -run - -bench Lookup ./internal/kv/kvindex
func BenchmarkLookup(b *testing.B) {
	const depth, pairs = 6250, 2_000_000
	for _, holders := range []int{1, 64} {
		x := New(Config{MaxBytes: 1 << 30})
		prompts := make([][]blockhash.Block, max(1, pairs/holders/depth))
		for i := range prompts {
			blocks, hashes := prompt(uint64(i), depth)
			prompts[i] = blocks
			for at := 0; at < depth; at += 512 {
				end := min(at+512, depth)
				for r := range fleet.RankID(holders) {
					x.Store(r, fleet.Device, Chain{Parent: hashes[max(at-1, 0)], HasParent: at > 0, Hashes: hashes[at:end], Blocks: blocks[at:end]})
				}
			}
		}
		for _, ask := range []string{"1", "all"} {
			for _, ops := range []int{0, 1_000_000} {
				b.Run(fmt.Sprintf("blocks=%d/holders=%d/prompts=%s/background=%d", depth, holders, ask, ops), func(b *testing.B) {
					done := background(x, ops)
					asked := prompts
					if ask == "1" {
						asked = prompts[:1]
					}
					times := lookups(b, x, asked, holders)
					slices.Sort(times)
					b.ReportMetric(done()/1e6, "Mblockops/s")
					b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "p50-µs")
					b.ReportMetric(float64(times[len(times)*9/10].Nanoseconds())/1e3, "p90-µs")
					b.ReportMetric(depth, "depth")
				})
			}
		}
	}
}

// BenchmarkLookupOnCores: do lookups scale with cores, while a million block operations a second are applied beside
// them? Prompts have 250 blocks (4,000 tokens), which 16 of 64 ranks hold.
//
//	make bench-cores
func BenchmarkLookupOnCores(b *testing.B) {
	const depth, holders, prompts = 250, 16, 512
	x := New(Config{MaxBytes: 1 << 30})
	var all [prompts][]blockhash.Block
	for i := range all {
		blocks, hashes := prompt(uint64(i), depth)
		all[i] = blocks
		for h := range holders {
			x.Store(fleet.RankID((i+4*h)%64), fleet.Device, Chain{Hashes: hashes, Blocks: blocks})
		}
	}

	done := background(x, 1_000_000)
	var clients atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		var out Overlap
		for i := int(clients.Add(1)) * 17; p.Next(); i++ {
			x.Lookup(all[i%prompts], &out)
			if len(out.Ranks()) != holders {
				b.Error("the blocks are not there")
				return
			}
		}
	})
	b.ReportMetric(done()/1e6, "Mblockops/s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lookups/s")
}

func lookups(b *testing.B, x *Index, prompts [][]blockhash.Block, holders int) (times []time.Duration) {
	var out Overlap
	i := 0
	for b.Loop() {
		blocks := prompts[i%len(prompts)]
		start := time.Now()
		x.Lookup(blocks, &out)
		times = append(times, time.Since(start))
		if len(out.Ranks()) != holders || out.Of(0)[fleet.Device] != len(blocks) {
			b.Fatal("the blocks are not there")
		}
		i++
	}
	return times
}

// background applies the given number of block operations a second to another rank: half of them stores, half removals. done ends it and
// returns the block operations per second.
func background(x *Index, ops int) (done func() float64) {
	if ops == 0 {
		return func() float64 { return 0 }
	}
	var stop atomic.Bool
	finished := make(chan float64)
	go func() {
		var blocks [512][]blockhash.Block
		var hashes [512][]uint64
		for i := range blocks {
			blocks[i], hashes[i] = prompt(1<<40|uint64(i), 64)
		}
		start, n := time.Now(), 0
		for i := 0; !stop.Load(); i++ {
			for float64(n) > time.Since(start).Seconds()*float64(ops) && !stop.Load() {
				time.Sleep(100 * time.Microsecond)
			}
			x.Store(100, fleet.Device, Chain{Hashes: hashes[i%512], Blocks: blocks[i%512]})
			x.Remove(100, fleet.Device, hashes[(i+256)%512])
			n += 128
		}
		finished <- float64(n) / time.Since(start).Seconds()
	}()
	return func() float64 {
		stop.Store(true)
		return <-finished
	}
}
