package disk

import (
	"context"
	"flag"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stator-project/stator/test/process"
)

// The process may have a little more memory than after the tier was filled ten times: stacks and buffers are all in use by then.
// The higher bound is for short runs, in which the memory of the race detector grows.
const (
	warmUp      = 10
	longChurn   = 100
	mostGrowth  = 0.05
	mostAtFirst = 0.2
)

var churn = flag.Int("blocks.churn", 10, "times its capacity that TestChurn stores into a tier")

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestChurn stores many times the capacity of a tier and loads a part of it again. The memory of the process and its open files
// must not grow.
func TestChurn(t *testing.T) {
	const slots, size = 256, 256<<10 - headerBytes
	d := open(t, Config{Dir: t.TempDir(), Bytes: slots * (256 << 10), BlockBytes: size, Space: testSpace})
	var next atomic.Int64
	src := content(key(0), 0, size)
	buffers := make([][]byte, 16) // for each goroutine
	for i := range buffers {
		buffers[i] = content(key(0), 0, size)
	}

	// round stores a number of blocks.
	round := func(blocks int64) {
		last := next.Load() + blocks
		var wait sync.WaitGroup
		for _, dst := range buffers {
			wait.Go(func() {
				for n := next.Add(1); n < last; n = next.Add(1) {
					if err := d.Store(context.Background(), key(int(n)), src, 0); err != nil {
						t.Error(err)
						return
					}
					if n%8 == 0 && d.Load(context.Background(), key(int(n)), dst) != nil && d.Has(key(int(n))) {
						t.Errorf("block %d is not readable", n)
					}
				}
			})
		}
		wait.Wait()
		debug.FreeOSMemory()
	}

	round(slots * warmUp)
	before, files := resident(t), descriptors(t)
	highest, lowest := before, before
	for range *churn {
		round(slots)
		now := resident(t)
		highest = max(highest, now)
		lowest = min(lowest, now)
	}

	s := d.Stats()
	t.Logf("%d blocks stored in %d slots: resident memory %.1f MiB before, %.1f to %.1f MiB; open files %d before, %d after; "+
		"%d blocks evicted, the log was rewritten %d times",
		s.Stores, slots, mib(before), mib(lowest), mib(highest), files, descriptors(t), s.Slots.Evicted, s.Rewrites)
	if files != descriptors(t) {
		t.Errorf("%d files were open, now %d", files, descriptors(t))
	}
	bound := mostGrowth
	if *churn < longChurn {
		bound = mostAtFirst
	}
	if grown := float64(highest)/float64(before) - 1; grown > bound {
		t.Errorf("resident memory grew by %.1f %%, more than %.0f %%", 100*grown, 100*bound)
	}
}

func resident(t *testing.T) int64 {
	t.Helper()
	bytes, err := process.Resident(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
