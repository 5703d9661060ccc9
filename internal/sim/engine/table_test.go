package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TestTable compares the table with a map, over random changes. Most hashes have one of few homes, so that searches are long.
func TestTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	var table table
	want := map[kvevent.EngineHash]int32{}
	for step := range 200_000 {
		h := kvevent.EngineHash(rng.IntN(40)<<20 | rng.IntN(12))
		switch rng.IntN(5) {
		case 0, 1:
			_, taken := want[h]
			if table.add(h, int32(step)) == taken {
				t.Fatalf("step %d: %v was added, and is there: %v", step, h, taken)
			}
			if !taken {
				want[h] = int32(step)
			}
		case 2, 3:
			table.remove(h)
			delete(want, h)
		default:
			if rng.IntN(2000) == 0 {
				table.clear()
				clear(want)
			}
		}

		h = kvevent.EngineHash(rng.IntN(40)<<20 | rng.IntN(12))
		block, ok := table.get(h)
		if wanted, there := want[h]; ok != there || ok && block != wanted || table.n != len(want) {
			t.Fatalf("step %d: %v is block %d (%v), want %d (%v); %d of %d", step, h, block, ok, wanted, there, table.n, len(want))
		}
	}
}
