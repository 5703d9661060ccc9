package workeragent

import (
	"runtime"
	"testing"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TestPastIsBounded: the remembered batches are bounded in number and in bytes. The oldest are dropped first.
func TestPastIsBounded(t *testing.T) {
	p := past{maxBatches: 100, maxBytes: 1 << 20}
	for seq := range uint64(105) {
		p.addBatch(seq, make([]byte, 10))
	}
	if n := len(p.batches); n != 100 || p.has(4) || !p.has(5) || !p.has(104) {
		t.Errorf("%d batches from %d", n, p.batches[0].seq)
	}
	if n := len(p.from(1<<60, 100)); n != 0 {
		t.Errorf("%d batches of the future", n)
	}

	for seq := range uint64(10) {
		p.addBatch(105+seq, make([]byte, 300<<10))
	}
	if n := len(p.batches); n != 3 || p.bytes > p.maxBytes || !p.has(114) {
		t.Errorf("%d large batches of %d bytes", n, p.bytes)
	}
	p.addBatch(115, make([]byte, 2<<20))
	if len(p.batches) != 0 || p.bytes != 0 {
		t.Errorf("one that exceeds the bound alone: %d batches, %d bytes", len(p.batches), p.bytes)
	}
}

// TestPastInPages: a page has as many batches as have room, and at least one.
func TestPastInPages(t *testing.T) {
	p := past{maxBatches: 100, maxBytes: 1 << 20}
	for seq := range uint64(10) {
		p.addBatch(seq, make([]byte, 100))
	}
	for _, c := range []struct {
		from       uint64
		room, want int
	}{{0, 1000, 10}, {0, 999, 9}, {7, 1000, 3}, {0, 1, 1}, {10, 1000, 0}} {
		if n := len(p.from(c.from, c.room)); n != c.want {
			t.Errorf("from %d in %d bytes: %d batches, want %d", c.from, c.room, n, c.want)
		}
	}
}

// TestPastMemory: 10,000 batches of 100 removals, as vLLM reports them under load, need the bytes that they are
// counted with. As decoded events they needed 114 MiB.
func TestPastMemory(t *testing.T) {
	batch := &kvevent.Batch{Seconds: 1}
	for i := range 100 {
		batch.Events = append(batch.Events, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{kvevent.EngineHash(i)}})
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	p := past{maxBatches: pastBatches, maxBytes: pastBytes}
	for seq := range uint64(pastBatches) {
		p.addBatch(seq, bus.EncodeBatch(&feed.Message{Worker: "n.w", Epoch: 1 << 60, Seq: seq, Batch: batch}))
	}

	runtime.GC()
	runtime.ReadMemStats(&after)
	needs := int(after.HeapAlloc) - int(before.HeapAlloc)
	if len(p.batches) != pastBatches || needs > p.bytes*11/10 || p.bytes > pastBytes {
		t.Errorf("%d batches counted as %d bytes need %d", len(p.batches), p.bytes, needs)
	}
	t.Logf("%d batches need %d bytes", len(p.batches), needs)
	runtime.KeepAlive(p)
}
