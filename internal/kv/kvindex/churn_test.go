package kvindex

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/race"
)

// BenchmarkChurn: is the heap flat, and the bound kept, while 100 times as many blocks as the index can hold go
// through it? Four ranks store prompts of 20 to 1,000 blocks in 1 to 64 at a time; a third of the prompts go on
// from one stored before, and rank 3 is dropped now and then. pairs, B/pair and heap are of the end; spread is
// the largest of ten heaps, one after each tenth, over the smallest. The time is of no interest, but the
// operations by CPU second are.
//
//	go test -run - -bench Churn -benchtime 1x -timeout 1h ./internal/kv/kvindex
func BenchmarkChurn(b *testing.B) {
	maxBytes, times := int64(64<<20), 100
	if testing.Short() {
		maxBytes, times = 2<<20, 10
	}
	for b.Loop() {
		churn(b, maxBytes, times)
	}
}

// TestChurn is a small part of BenchmarkChurn.
func TestChurn(t *testing.T) {
	race.Skip(t)
	churn(t, 1<<20, 10)
}

func churn(tb testing.TB, maxBytes int64, times int) {
	before := live()
	x := New(Config{MaxBytes: maxBytes})
	rng := rand.New(rand.NewPCG(1, 2))
	capacity := int(maxBytes / 40)
	var smallest, largest uint64
	start, stored := process.OwnCPU(), 0
	for part := range 10 {
		for end := capacity * times / 10 * (part + 1); stored < end; {
			id, length := fleet.RankID(rng.IntN(4)), 20+rng.IntN(980)
			blocks, hashes := prompt(uint64(rng.IntN(3*capacity/500)), length)
			for at := 0; at < length; {
				n := min(length-at, 1+rng.IntN(64))
				x.Store(id, fleet.Device, Chain{Parent: hashes[max(at-1, 0)], HasParent: at > 0, Hashes: hashes[at : at+n], Blocks: blocks[at : at+n]})
				at += n
				if used := x.budget.used.Load(); used > maxBytes {
					tb.Fatalf("%d bytes of %d", used, maxBytes)
				}
			}
			if stored += length; rng.IntN(2000) == 0 {
				x.Drop(3)
			}
		}
		if heap := live() - before; part == 1 {
			smallest, largest = heap, heap
		} else if part > 1 {
			smallest, largest = min(smallest, heap), max(largest, heap)
		}
	}
	s := x.Stats()
	spread := float64(largest) / float64(smallest)
	if spread > 1.1 || int64(largest) > maxBytes+maxBytes/20 {
		tb.Errorf("the heap went from %d to %d bytes, of %d allowed", smallest, largest, maxBytes)
	}
	if b, ok := tb.(*testing.B); ok {
		b.ReportMetric(float64(stored)/(process.OwnCPU()-start).Seconds()/1e6, "Mblockops/cpu-s")
		b.ReportMetric(float64(s.Pairs), "pairs")
		b.ReportMetric(float64(s.Bytes)/float64(s.Pairs), "B/pair")
		b.ReportMetric(float64(largest)/(1<<20), "MiB-heap")
		b.ReportMetric(spread, "spread")
	}
	runtime.KeepAlive(x)
}
