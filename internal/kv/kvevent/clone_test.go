package kvevent

import (
	"reflect"
	"runtime"
	"testing"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// TestClone changes the original after it was cloned, and compares the memory of clones with what CloneBytes
// returns.
func TestClone(t *testing.T) {
	make1 := func() *Batch {
		b := &Batch{Rank: 1, Seconds: 2, Unknown: 3, Events: []Event{{Kind: Stored, BlockSize: 16, Window: 4}, {Kind: Cleared}}}
		for i := range 100 {
			b.Events = append(b.Events, Event{Kind: Removed, Hashes: []EngineHash{EngineHash(i)}, Blocks: []blockhash.Block{7}})
		}
		return b
	}
	b := make1()
	c := b.Clone()
	b.Events[5].Hashes[0] = 99
	b.Events[5].Blocks[0] = 99
	b.Events[6].Kind = Stored
	if want := make1(); !reflect.DeepEqual(c.Events, want.Events) || c.Rank != 1 || c.Seconds != 2 || c.Unknown != 3 {
		t.Errorf("the clone is %+v", c)
	}

	clones := make([]*Batch, 1000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range clones {
		clones[i] = b.Clone()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	needs := int(after.HeapAlloc-before.HeapAlloc) / len(clones)
	if needs > b.CloneBytes()*5/4 {
		t.Errorf("a clone needs %d bytes, and %d are counted", needs, b.CloneBytes())
	}
	runtime.KeepAlive(clones)
}
