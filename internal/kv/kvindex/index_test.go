package kvindex

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/race"
)

// prompt makes a chain of n blocks that no other number shares.
func prompt(number uint64, n int) (blocks []blockhash.Block, hashes []uint64) {
	blocks, hashes = make([]blockhash.Block, n), make([]uint64, n)
	for i := range blocks {
		blocks[i] = blockhash.Hash([]uint32{uint32(number), uint32(number >> 32), uint32(i)}, 1337)
	}
	for i, s := range blockhash.Chain(nil, blocks) {
		hashes[i] = uint64(s) * 3
	}
	return blocks, hashes
}

// fill stores prompts of 512 blocks until each of n ranks holds blocks of them, all the same.
func fill(x *Index, ranks, blocks int) {
	for at := 0; at < blocks; at += 512 {
		b, h := prompt(uint64(at), min(512, blocks-at))
		for r := range fleet.RankID(ranks) {
			x.Store(r, fleet.Device, Chain{Hashes: h, Blocks: b})
		}
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	x := New(Config{})
	b, h := prompt(1, 100)
	for r := range fleet.RankID(64) {
		x.Store(r, fleet.Device, Chain{Hashes: h[:int(r)+1], Blocks: b[:int(r)+1]})
	}
	var out Overlap
	if n := testing.AllocsPerRun(100, func() { x.Lookup(b, &out) }); n != 0 {
		t.Errorf("%v allocations per lookup, want 0", n)
	}
	if got := out.Of(9)[fleet.Device]; got != 10 || len(out.Ranks()) != 64 {
		t.Errorf("rank 9 holds %d blocks of %d ranks", got, len(out.Ranks()))
	}
}

// TestPredictAllocatesStretchesAlone: if new predictions drive out the oldest ones, a prediction
// allocates one chunk, which belongs to lookups too and so to the garbage collector, and nothing
// else but a table now and then.
func TestPredictAllocatesStretchesAlone(t *testing.T) {
	race.Skip(t)
	x := New(Config{})
	number, at := uint64(0), time.Unix(1000, 0)
	chain := make([]blockhash.Sequence, chunkBlocks)
	predict := func() {
		for i := range chain {
			number++
			chain[i] = blockhash.Sequence(number * 0x9e3779b97f4a7c15)
		}
		at = at.Add(time.Millisecond)
		x.Predict(0, chain, 0, at.Add(time.Second), 4096)
	}
	for range 1000 {
		predict()
	}
	if n := testing.AllocsPerRun(1000, predict); n > 1.2 {
		t.Errorf("%v allocations per prediction, want 1", n)
	}
	if n := x.Stats().Predicted; n != 4096 {
		t.Errorf("%d blocks are predicted, want 4096", n)
	}
	audit(t, x)
}

// TestHotPrefixSurvivesPressure: a prefix that is looked up stays when ten times the capacity
// is stored once and never used.
func TestHotPrefixSurvivesPressure(t *testing.T) {
	race.Skip(t)
	x := New(Config{MaxBytes: 1 << 19})
	hot, hashes := prompt(1<<40, 64)
	x.Store(0, fleet.Device, Chain{Hashes: hashes, Blocks: hot})
	var out Overlap
	for i := range uint64(2000) {
		b, h := prompt(i, 64)
		x.Store(1, fleet.Device, Chain{Hashes: h, Blocks: b})
		x.Lookup(hot, &out)
	}
	if got := out.Of(0)[fleet.Device]; got != 64 {
		t.Errorf("%d of 64 hot blocks are left", got)
	}
	if s := x.Stats(); s.Bytes > s.MaxBytes || s.Pairs < 5000 {
		t.Errorf("a full index should be full and within its bytes: %+v", s)
	}
	audit(t, x)
}

// TestConcurrent: lookups beside stores, removals, drops and predictions. Its failures are found by the
// race detector, and by the audit.
func TestConcurrent(t *testing.T) {
	x := New(Config{MaxBytes: 1 << 20})
	var wg sync.WaitGroup
	for r := range fleet.RankID(4) {
		wg.Go(func() {
			for i := range uint64(300) {
				b, h := prompt(i%40, 50)
				x.Store(r, fleet.Tier(i%2), Chain{Hashes: h, Blocks: b})
				x.Predict(r, blockhash.Chain(nil, b), 0, time.Unix(int64(i), 0), 0)
				x.Remove(r, fleet.Tier(i%2), h[25:])
				if i%100 == 99 {
					x.Drop(r)
				}
			}
		})
		wg.Go(func() {
			var out Overlap
			for i := range uint64(3000) {
				b, _ := prompt(i%40, 50)
				x.Lookup(b, &out)
				x.Expire(time.Unix(int64(i/10), 0))
			}
		})
	}
	wg.Wait()
	audit(t, x)
}

// TestLookupMissesNothing: a prompt that stays is found whole, while others that share its tables come and go, so that
// slots move under the lookups.
func TestLookupMissesNothing(t *testing.T) {
	x := New(Config{})
	kept, hashes := prompt(1<<40, 700)
	for i := range kept { // every second one on two tiers, so that a lookup reads every node
		x.Store(0, fleet.Device, Chain{Parent: hashes[max(i-1, 0)], HasParent: i > 0, Hashes: hashes[i : i+1], Blocks: kept[i : i+1]})
		if i%2 == 0 {
			x.Store(0, fleet.Host, Chain{Hashes: hashes[i : i+1]})
		}
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for r := range fleet.RankID(2) {
		wg.Go(func() {
			for number := uint64(r) << 32; ; number++ {
				select {
				case <-stop:
					return
				default:
				}
				b, h := prompt(number, 60)
				x.Predict(2+r, blockhash.Chain(nil, b), 0, time.Unix(int64(number&0xffff), 0), 3000)
				x.Store(2+r, fleet.Device, Chain{Hashes: h[:30], Blocks: b[:30]})
				if number&0xffff >= 50 {
					_, old := prompt(number-50, 60)
					x.Remove(2+r, fleet.Device, old[:30])
				}
			}
		})
	}
	var out Overlap
	for range steps(1_000) {
		x.Lookup(kept, &out)
		if got := out.Of(0)[fleet.Device]; got != len(kept) {
			t.Errorf("%d of %d blocks are found", got, len(kept))
			break
		}
	}
	close(stop)
	wg.Wait()
	audit(t, x)
}

// BenchmarkStore: how many blocks does one core learn a second? Each iteration is one event
// of 64 blocks, stored and later removed, in an index of 500,000 pairs.
//
//	go test -run - -bench Store ./internal/kv/kvindex
func BenchmarkStore(b *testing.B) {
	for _, kind := range []string{"new", "shared"} {
		b.Run("content="+kind, func(b *testing.B) {
			x := New(Config{MaxBytes: 1 << 30})
			fill(x, 1, 500_000)
			type event struct {
				blocks []blockhash.Block
				hashes []uint64
			}
			events := make([]event, 4096)
			for i := range events {
				number := uint64(1<<40 + i)
				if kind == "shared" {
					number = uint64(i % 900 * 512)
				}
				events[i].blocks, events[i].hashes = prompt(number, 64)
			}
			b.ReportAllocs()
			start := process.OwnCPU()
			i := 0
			for b.Loop() {
				e := &events[i%len(events)]
				x.Store(1, fleet.Device, Chain{Hashes: e.hashes, Blocks: e.blocks})
				x.Remove(1, fleet.Device, events[(i+2048)%len(events)].hashes)
				i++
			}
			b.ReportMetric(float64(i)*128/(process.OwnCPU()-start).Seconds()/1e6, "Mblockops/cpu-s")
		})
	}
}

// BenchmarkFill: how many blocks does one core learn a second while the tables grow, from empty to
// two million blocks of one rank?
//
//	go test -run - -bench Fill ./internal/kv/kvindex
func BenchmarkFill(b *testing.B) {
	const prompts, length = 4096, 512
	blocks, hashes := make([][]blockhash.Block, prompts), make([][]uint64, prompts)
	for i := range prompts {
		blocks[i], hashes[i] = prompt(uint64(i), length)
	}
	b.ReportAllocs()
	start := process.OwnCPU()
	for b.Loop() {
		x := New(Config{MaxBytes: 1 << 30})
		for i := range prompts {
			x.Store(1, fleet.Device, Chain{Hashes: hashes[i], Blocks: blocks[i]})
		}
	}
	b.ReportMetric(float64(b.N)*prompts*length/(process.OwnCPU()-start).Seconds()/1e6, "Mblockops/cpu-s")
}

// BenchmarkFootprint: how many bytes of live heap does a (block, rank) pair cost, engine
// hashes included, at 2 million pairs? The time is of no interest.
//
//	go test -run - -bench Footprint -benchtime 1x ./internal/kv/kvindex
func BenchmarkFootprint(b *testing.B) {
	for _, holders := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("holders=%d", holders), func(b *testing.B) {
			for b.Loop() {
				before := live()
				x := New(Config{MaxBytes: 1 << 30})
				fill(x, holders, 2_000_000/holders)
				s := x.Stats()
				b.ReportMetric(float64(live()-before)/float64(s.Pairs), "B/pair")
				b.ReportMetric(float64(s.Bytes)/float64(s.Pairs), "accounted-B/pair")
				runtime.KeepAlive(x)
			}
		})
	}
}

func live() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
