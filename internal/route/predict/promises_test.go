package predict

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// TestPromisesAreBounded makes more promises than there is room for. The others are counted, and all memory
// but the spare is given back.
func TestPromisesAreBounded(t *testing.T) {
	var p promises
	p.init()
	chain := make([]blockhash.Sequence, 1<<16)
	const requests = 200 // of half a MiB
	for i := range requests {
		p.make(fmt.Sprint(i), 0, chain, 0, time.Time{})
	}
	if got := p.bytes.Load(); got > maxPromised || p.lost.Load() == 0 {
		t.Errorf("%d bytes, %d requests without a promise", got, p.lost.Load())
	}

	for i := range requests {
		p.drop(fmt.Sprint(i))
	}
	if got := p.bytes.Load(); got != 0 {
		t.Errorf("%d bytes are left of large promises", got)
	}
}

// TestPromisesBesideEachOther makes, takes and drops promises at once.
func TestPromisesBesideEachOther(t *testing.T) {
	var p promises
	p.init()
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 2000 {
				id := fmt.Sprint(g, " ", i)
				p.make(id, 0, []blockhash.Sequence{blockhash.Sequence(g), blockhash.Sequence(i)}, 1, time.Time{})
				if i%2 == 0 {
					p.drop(id)
					continue
				}
				made := p.take(id)
				if made == nil || made.known != 1 || made.Chain[0] != blockhash.Sequence(g) || made.Chain[1] != blockhash.Sequence(i) {
					t.Errorf("%s: %+v", id, made)
				}
				p.recycle(id, made)
				p.drop(id)
			}
		})
	}
	all.Wait()
	for i := range p.shards {
		if n := len(p.shards[i].byID); n != 0 {
			t.Errorf("%d promises are left", n)
		}
	}
	if got := p.bytes.Load(); got > promiseShards*sparePromises*8*8 {
		t.Errorf("%d bytes are spare", got)
	}
}
