package kvindex_test

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// Rank 0 stores three blocks of a prompt, rank 1 the first of them. Rank 0 then evicts the last one.
func ExampleIndex() {
	x := kvindex.New(kvindex.Config{})
	prompt := []blockhash.Block{11, 22, 33}
	x.Store(0, fleet.Device, kvindex.Chain{Hashes: []uint64{101, 102, 103}, Blocks: prompt})
	x.Store(1, fleet.Device, kvindex.Chain{Hashes: []uint64{901}, Blocks: prompt[:1]})

	var overlap kvindex.Overlap
	x.Lookup(prompt, &overlap)
	fmt.Println("stored:", overlap.Of(0)[fleet.Device], overlap.Of(1)[fleet.Device])

	x.Remove(0, fleet.Device, []uint64{103})
	x.Lookup(prompt, &overlap)
	fmt.Println("after the eviction:", overlap.Of(0)[fleet.Device], overlap.Of(1)[fleet.Device])
	// Output:
	// stored: 3 1
	// after the eviction: 2 1
}
