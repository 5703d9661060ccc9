package route_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestBlocksOfSeveralSizes has engines with blocks of 16, 32 and 48 tokens. Conversations grow turn by turn, and each promise is compared
// with the engine's own rule: whole blocks of its size, and never the last token of the prompt. The blocks are known by events or predicted.
func TestBlocksOfSeveralSizes(t *testing.T) {
	t.Run("events", func(t *testing.T) { compareBlockSizes(t, 0) })
	t.Run("predictions", func(t *testing.T) { compareBlockSizes(t, time.Hour) })
}

// compareBlockSizes compares with predictions of that length; 0 for events.
func compareBlockSizes(t *testing.T, predicted time.Duration) {
	sizes := []int{16, 32, 48}
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := newFleet(t, x, len(sizes))
	r := route.New(route.Config{Seed: 1, PredictFor: func(fleet.Rank) time.Duration { return predicted }}, f, x)
	cfg := serving.Config{Prompt: letters{}, BlockSize: 16, CoarseSizes: sizes[1:]}
	if err := r.SetModels(map[string]*serving.Config{"sim": &cfg}); err != nil {
		t.Fatal(err)
	}
	for i, rank := range f.Snapshot().Ranks {
		if _, err := f.Update(rank.Worker.Name, func(w *fleet.Worker) { w.BlockSize, w.Blocks = sizes[i], 1<<20/sizes[i] }); err != nil {
			t.Fatal(err)
		}
	}
	prompts := map[string][]string{} // that each engine has computed
	cached := func(worker, text string, size int) (tokens int) {
		for _, old := range prompts[worker] {
			n := 0
			for n < min(len(old)/size*size, len(text)-1) && old[n] == text[n] {
				n++
			}
			tokens = max(tokens, n/size*size)
		}
		return tokens
	}

	rng, now := rand.New(rand.NewPCG(7, 7)), start
	talks := make([]string, 6)
	hits, picked := 0, map[string]int{}
	for range 400 {
		who := rng.IntN(len(talks))
		talk := &talks[who]
		if len(*talk) > 900 {
			*talk = ""
		}
		if *talk == "" {
			*talk = strings.Repeat(string(rune('A'+who))+" system prompt ", 4+rng.IntN(3))
		}
		for range 20 + rng.IntN(60) {
			*talk += string(rune('a' + rng.IntN(26)))
		}

		now = now.Add(time.Second)
		d := r.Decide(batchOf(1, *talk), now)
		rank, _ := f.Snapshot().Rank(d.Worker, 0)
		size := rank.Worker.BlockSize
		if want := cached(d.Worker, *talk, size); d.Cached != want {
			t.Fatalf("%s with blocks of %d tokens promises %d of %d tokens; want %d\n%v", d.Worker, size, d.Cached, len(*talk), want, d)
		}
		if booked := rank.Load.Booked(); booked.DecodeBlocks != int64((len(*talk)+size-1)/size) {
			t.Errorf("%d blocks of %d tokens are booked for %d tokens", booked.DecodeBlocks, size, len(*talk))
		}
		hits, picked[d.Worker] = hits+min(1, d.Cached), picked[d.Worker]+1

		if predicted == 0 {
			report(x, rank, *talk)
			r.SettlePrefills(now)
			if booked := rank.Load.Booked(); booked.PrefillTokens != 0 && len(*talk)/size > d.Cached/size {
				t.Errorf("the prefill has not ended with the event of its last block: %d tokens", booked.PrefillTokens)
			}
		}
		r.End(d.ID, now)
		prompts[d.Worker] = append(prompts[d.Worker], *talk)
	}
	if hits < 300 || len(picked) != len(sizes) {
		t.Errorf("%d of 400 prompts were found, on %v", hits, picked)
	}
}
