package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// growing returns conversations in rounds of random order. Each begins with 600 tokens and grows by 100 to 500 a turn.
func growing(conversations, rounds int, rng *rand.Rand) []trace.Arrival {
	lengths := make([]int, conversations)
	for i := range lengths {
		lengths[i] = 600
	}
	var out []trace.Arrival
	for range rounds {
		for _, c := range rng.Perm(conversations) {
			lengths[c] += 100 + rng.IntN(400)
			ids := make([]uint64, (lengths[c]+31)/32)
			for b := range ids {
				ids[b] = uint64(c)<<16 | uint64(b)
			}
			out = append(out, trace.Arrival{
				At: time.Duration(len(out)) * time.Millisecond, Prompt: trace.Blocks{IDs: ids, Size: 32, Length: lengths[c]}, Output: 8,
			})
		}
	}
	return out
}

// TestPromisesHoldWhereQueuedPromptsEvict: prompts that wait in an engine's queue evict each other's blocks before the
// engine comes to them. What decisions promise has room for them.
func TestPromisesHoldWhereQueuedPromptsEvict(t *testing.T) {
	for _, concurrent := range []int{1, 8, 16} {
		var promised, found float64
		for seed := range uint64(6) {
			r := mustRun(t, Config{
				Workers: 2, Concurrency: concurrent, Seed: seed,
				Engine: engine.Config{BlockSize: 32, Blocks: 384, MaxNumSeqs: 4},
			}, growing(12, 12, rand.New(rand.NewPCG(seed, 9))))
			promised += r.Predicted
			found += r.PrefixReuse
		}
		t.Logf("%d requests at a time: promised ÷ found is %.2f", concurrent, promised/found)
		if ratio := promised / found; ratio < 0.9 || ratio > 1.1 {
			t.Errorf("%d requests at a time: %.3f of the prompts were promised and %.3f found", concurrent, promised/6, found/6)
		}
	}
}
