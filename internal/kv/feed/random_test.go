package feed_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// randomEngine stores, evicts, clears and restarts at random.
type randomEngine struct {
	rng   *rand.Rand
	epoch uint64
	clock float64
	held  map[kvevent.EngineHash]bool
	sent  []*kvevent.Batch // since the epoch began
}

// chain returns the four blocks of a prompt. The digits of name, base 4, are the blocks. A block's
// hash consists of the digits up to it, so that each block has one parent.
func chain(name uint64) (hashes []kvevent.EngineHash, blocks []blockhash.Block) {
	for n := uint64(1); n <= 4; n++ {
		part := name >> (2 * (4 - n)) & (1<<(2*n) - 1) // the first n digits
		hashes = append(hashes, kvevent.EngineHash(n<<32|part))
		blocks = append(blocks, blockhash.Block(part&3+1))
	}
	return hashes, blocks
}

func (e *randomEngine) next() *kvevent.Batch {
	e.clock++
	b := &kvevent.Batch{Seconds: e.clock}
	for range 1 + e.rng.IntN(3) {
		hashes, blocks := chain(e.rng.Uint64N(256))
		switch e.rng.IntN(24) {
		case 0:
			clear(e.held)
			b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Cleared})
		case 1, 2, 3, 4, 5, 6, 7, 8:
			h := hashes[e.rng.IntN(4)]
			delete(e.held, h)
			b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{h}})
		default:
			for _, h := range hashes {
				e.held[h] = true
			}
			b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Stored, Hashes: hashes, Blocks: blocks, BlockSize: 16})
		}
	}
	e.sent = append(e.sent, b)
	return b
}

// TestRandomDeliveries loses, doubles, swaps and delays batches of an engine that restarts at
// random. A router that replays what is missing, or restores a snapshot, ends with exactly the blocks
// of the engine. Once an epoch is over none of its blocks are in the index.
func TestRandomDeliveries(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	fail := func(step int, text string) { t.Fatalf("seed %d, step %d: %s", seed, step, text) }
	agent, router := newWorld(), newWorld()
	e := &randomEngine{rng: rng, held: map[kvevent.EngineHash]bool{}}
	restart := func() {
		e.epoch++
		e.sent = nil
		clear(e.held)
		for _, w := range []*world{agent, router} {
			if _, err := w.fleet.Put(fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Epoch: e.epoch, BlockSize: 16}); err != nil {
				t.Fatal(err)
			}
		}
	}
	restart()
	var inFlight []feed.Message
	now := time.Unix(1000, 0)
	recoverFrom := func(step int) {
		oldest := max(0, len(e.sent)-rng.IntN(20)) // of the batches that can be replayed
		m, _ := router.fleet.Snapshot().Rank("a", 0)
		if int(router.feed.Resume(m)) < oldest {
			s, ok := agent.feed.Snapshot("a", e.epoch, 0)
			if !ok {
				fail(step, "the agent has no snapshot")
			}
			if err := router.feed.Restore(&s, now); err != nil && !errors.Is(err, feed.ErrOld) {
				fail(step, err.Error())
			}
		}
		for seq := int(router.feed.Resume(m)); seq < len(e.sent); seq++ {
			router.feed.Apply(&feed.Message{Worker: "a", Epoch: e.epoch, Seq: uint64(seq), Batch: e.sent[seq]}, now)
		}
		end := feed.Message{Worker: "a", Epoch: e.epoch, Seq: uint64(len(e.sent)), Mark: true, State: feed.Exact}
		if router.feed.Apply(&end, now).Verdict == feed.Missing || router.feed.State(m) != feed.Exact {
			fail(step, "a recovery did not make it exact")
		}
	}
	for step := range 60_000 {
		now = now.Add(time.Millisecond)
		switch n := rng.IntN(200); {
		case n == 0:
			restart()
			if why := differs(router, e.held, rng); why != "" {
				fail(step, "after a restart: "+why)
			}
		case n < 90:
			seq := uint64(len(e.sent))
			b := e.next()
			m := feed.Message{Worker: "a", Epoch: e.epoch, Seq: seq, Batch: b}
			agent.feed.Apply(&m, now)
			for range []int{0, 1, 1, 1, 1, 1, 1, 2}[rng.IntN(8)] {
				inFlight = append(inFlight, m)
			}
		case n < 185 && len(inFlight) > 0:
			i := 0
			if rng.IntN(6) == 0 {
				i = rng.IntN(len(inFlight))
			}
			m := inFlight[i]
			inFlight = slices.Delete(inFlight, i, i+1)
			gap := router.feed.Apply(&m, now).Verdict == feed.Missing
			if gap && m.Epoch == e.epoch && rng.IntN(2) == 0 {
				recoverFrom(step)
			}
		case n < 190:
			router.feed.Lost("a", 0)
		case n < 192:
			router.feed.Forget("a", 0)
		}
		if step%50 == 0 {
			recoverFrom(step)
			if why := differs(router, e.held, rng); why != "" {
				fail(step, why)
			}
		}
	}
	if c := router.feed.Stats(); c.Gaps == 0 || c.Duplicates == 0 || c.WrongEpoch == 0 || c.Snapshots == 0 {
		t.Errorf("seed %d: the test shows too little: %+v", seed, c)
	}
}

// differs compares the index with the engine's blocks for 32 random prompts. It returns "" if they agree.
func differs(w *world, held map[kvevent.EngineHash]bool, rng *rand.Rand) string {
	m, _ := w.fleet.Snapshot().Rank("a", 0)
	var out kvindex.Overlap
	for range 32 {
		hashes, blocks := chain(rng.Uint64N(256))
		want := 0
		for want < len(hashes) && held[hashes[want]] {
			want++
		}
		w.index.Lookup(blocks, &out)
		if got := out.Of(m.ID)[fleet.Device]; got != want {
			return "the index and the engine disagree on the cached length of a prompt"
		}
	}
	return ""
}
