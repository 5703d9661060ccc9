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

// engineLife is an engine that stores, evicts, clears and restarts at random.
type engineLife struct {
	rng   *rand.Rand
	epoch uint64
	clock float64
	held  map[kvevent.Engine]bool
	sent  []*kvevent.Batch // since the epoch began
}

// A block is named by its chain, so that each has one parent: the digits of the name, base 4,
// are the blocks of the chain.
func chain(name uint64) (hashes []kvevent.Engine, blocks []blockhash.Block) {
	for n := uint64(1); n <= 4; n++ {
		part := name >> (2 * (4 - n)) & (1<<(2*n) - 1) // the first n digits
		hashes = append(hashes, kvevent.Engine(n<<32|part))
		blocks = append(blocks, blockhash.Block(part&3+1))
	}
	return hashes, blocks
}

func (e *engineLife) next() *kvevent.Batch {
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
			b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.Engine{h}})
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

// TestRandomDeliveries: whatever is lost, doubled, swapped or late, of this epoch or of a dead one,
// a router that asks for what is missing, as replay or as snapshot, ends with what the engine
// holds; and from the moment that an epoch is over, it says none of its blocks.
func TestRandomDeliveries(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	fail := func(step int, text string) { t.Fatalf("seed %d, step %d: %s", seed, step, text) }
	agent, router := newWorld(), newWorld()
	e := &engineLife{rng: rng, held: map[kvevent.Engine]bool{}}
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
	type message struct {
		epoch, seq uint64
		batch      *kvevent.Batch
	}
	var onWay []message
	now := time.Unix(1000, 0)
	recoverFrom := func(step int) {
		remembered := max(0, len(e.sent)-rng.IntN(20)) // the replay reaches back so far
		m, _ := router.fleet.Snapshot().Rank("a", 0)
		if int(router.feed.Resume(m)) < remembered {
			s, ok := agent.feed.Snapshot("a", e.epoch, 0)
			if !ok {
				fail(step, "the agent has no snapshot")
			}
			if err := router.feed.Restore(&s, now); err != nil && !errors.Is(err, feed.ErrOld) {
				fail(step, err.Error())
			}
		}
		for seq := int(router.feed.Resume(m)); seq < len(e.sent); seq++ {
			router.feed.Apply("a", e.epoch, 0, uint64(seq), e.sent[seq], now)
		}
		if _, gap := router.feed.Complete("a", e.epoch, 0, uint64(len(e.sent)), now); gap || router.feed.State(m) != feed.Exact {
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
			agent.feed.Apply("a", e.epoch, 0, seq, b, now)
			for range []int{0, 1, 1, 1, 1, 1, 1, 2}[rng.IntN(8)] {
				onWay = append(onWay, message{e.epoch, seq, b})
			}
		case n < 185 && len(onWay) > 0:
			i := 0
			if rng.IntN(6) == 0 {
				i = rng.IntN(len(onWay))
			}
			m := onWay[i]
			onWay = slices.Delete(onWay, i, i+1)
			if _, gap := router.feed.Apply("a", m.epoch, 0, m.seq, m.batch, now); gap && m.epoch == e.epoch && rng.IntN(2) == 0 {
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

// differs compares what the index says of some prompts with what the engine holds.
func differs(w *world, held map[kvevent.Engine]bool, rng *rand.Rand) string {
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
			return "of a prompt the index says another length than the engine holds"
		}
	}
	return ""
}
