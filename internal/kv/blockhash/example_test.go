package blockhash_test

import (
	"fmt"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// Two prompts of ten tokens share their first block of four, and differ in the second. The last two tokens
// of each make no complete block.
func ExampleChain() {
	a := blockhash.Append(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 4, blockhash.Seed("", ""))
	b := blockhash.Append(nil, []uint32{1, 2, 3, 4, 0, 6, 7, 8, 9, 10}, 4, blockhash.Seed("", ""))

	first, second := blockhash.Chain(nil, a), blockhash.Chain(nil, b)
	for i := range first {
		fmt.Printf("block %d: %016x %016x equal %v\n", i, uint64(first[i]), uint64(second[i]), first[i] == second[i])
	}
	// Output:
	// block 0: cb38e4d7fb2dca5c cb38e4d7fb2dca5c equal true
	// block 1: 44a2b2379d6d3c3d f4729e4a9c97f618 equal false
}
