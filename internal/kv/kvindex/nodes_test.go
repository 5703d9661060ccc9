package kvindex

import (
	"sync"
	"testing"
)

// TestSearchFindsWhatMoves: a search finds a node while it moves towards its home, and never returns the run of another
// node.
func TestSearchFindsWhatMoves(t *testing.T) {
	const (
		rounds = 60_000
		size   = 4 * lineSlots
		held   = 6 // all begin at slot 0
		gone   = 3 // how many of them are removed: then the others move
	)
	runs := make([]*holderRun, held)
	for i := range runs {
		runs[i] = &holderRun{}
	}
	var n nodes
	shared := &n.shards[0].table
	full := func() *table {
		t := &table{slots: make([]slot, size)}
		for i, r := range runs {
			t.slots[i].word.Store(word(uint64(i+1), 0))
			t.slots[i].run.Store(r)
		}
		return t
	}
	shared.Store(full())

	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			table := full()
			shared.Store(table)
			for key := range uint64(gone) {
				at, _ := table.at(key + 1)
				table.remove(at)
			}
		}
	})

	for range rounds {
		for i, want := range runs {
			got, _ := n.find(uint64(i + 1))
			if got != want && (got != nil || i >= gone) {
				t.Fatalf("node %d: found %p, want %p", i, got, want)
			}
		}
	}
	close(stop)
	writer.Wait()
}
