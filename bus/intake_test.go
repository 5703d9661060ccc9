package bus

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/test/race"
)

// TestMemoryIsFlatUnderChurn: the caches of eight engines are replaced a hundred times. The router's tables need as
// much memory then as after the first time.
func TestMemoryIsFlatUnderChurn(t *testing.T) {
	race.Skip(t)
	const blocks, settle, times = 1024, 5, 100
	before := heapBytes()
	f := newIntakeFleet(t, 1, blocks)
	in := newIntake(t, 1, func(m *feed.Message) {
		if f.feed.Apply(m, time.Unix(2, 0)).Verdict != feed.Applied {
			t.Errorf("batch %d of %s was not applied", m.Seq, m.Worker)
		}
	})
	var d batchDecoder
	churn := func() {
		for _, m := range f.messages(len(f.engines) * blocks / 4) {
			in.readMessage(&d, m)
		}
	}

	// After some rounds the buffers have their size.
	for range settle {
		churn()
	}
	first := heapBytes() - before
	for range times {
		churn()
	}
	last := heapBytes() - before
	if ratio := float64(last) / float64(first); ratio > 1.05 || ratio < 0.95 {
		t.Errorf("%d bytes were in use, and %d are after %d more churns", first, last, times)
	}
	t.Logf("%d bytes were in use, and %d are after %d more churns", first, last, times)
	runtime.KeepAlive(f)
	runtime.KeepAlive(in)
}

// heapBytes returns how much of the heap is in use.
func heapBytes() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestIntakeIsBoundedInBytes: what waits beyond the bound is dropped and counted, and room that was read is free again.
func TestIntakeIsBoundedInBytes(t *testing.T) {
	in := newIntake(t, 2, func(*feed.Message) {})
	message := &nats.Msg{Subject: "stator.v1.test.kv.n", Data: make([]byte, 1<<20)}
	for range 100 {
		in.enqueue(message)
	}
	const fit = maxWaiting / (1<<20 + messageCost)
	waiting := len(in.queues[0]) + len(in.queues[1])
	if dropped := testutil.ToFloat64(in.bus.reader.dropped); waiting != fit || dropped != 100-fit || in.waiting.Load() > maxWaiting {
		t.Errorf("%d messages of %d bytes wait, %g were dropped", waiting, in.waiting.Load(), dropped)
	}

	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for _, queue := range in.queues {
		readers.Go(func() { in.applyQueue(ctx, queue) })
	}
	for in.waiting.Load() > 0 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	stop()
	readers.Wait()
}

// TestEventWriterIsBoundedInBytes: batches beyond the bound are refused while nothing is published.
func TestEventWriterIsBoundedInBytes(t *testing.T) {
	b := &Bus{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	w := b.EventWriter("n")
	accepted := 0
	for range 2 * maxGathered / (512 << 10) {
		if w.Add(make([]byte, 512<<10)) == nil {
			accepted++
		}
	}
	if w.size() > maxGathered || accepted != maxGathered/(512<<10)-1 { // each needs some bytes for its length
		t.Errorf("%d batches with %d bytes wait", accepted, w.size())
	}
}
