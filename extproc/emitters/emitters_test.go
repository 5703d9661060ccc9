package emitters_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/extproc/emitters"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/test/emittersim"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	chunk = 64
	block = 16
)

// reader is a running set.
type reader struct {
	*emitters.Set
	log  testkit.Log
	reg  *prometheus.Registry
	size atomic.Int64
}

func read(t *testing.T, list ...emitters.Emitter) *reader {
	t.Helper()
	r := &reader{reg: prometheus.NewRegistry()}
	r.size.Store(block)
	var err error
	r.Set, err = emitters.New(emitters.Config{
		Emitters: list, BlockSize: func(*fleet.Worker) int { return int(r.size.Load()) },
		Log: slog.New(slog.NewTextHandler(&r.log, nil)), Metrics: r.reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%+v\n%s", r.States(), r.log.String())
		}
		stop()
		running.Wait()
	})
	return r
}

func (r *reader) state(name string) emitters.State {
	for _, s := range r.States() {
		if s.Name == name {
			return s
		}
	}
	return emitters.State{}
}

// awaitEqual waits until an emitter is exact and the index has of all prompts what its cache has. On a machine that stands still for seconds
// the replay of a gap is given up, which the state shows. Then lead has another leader take the address; nil for tests without gaps.
func (r *reader) awaitEqual(t *testing.T, name string, c *emittersim.Cache, prompts [][]uint32, lead func()) {
	t.Helper()
	var last time.Time
	testkit.Eventually(t, name+" is exact and equal", func() bool {
		const pause = 5 * time.Second
		s := r.state(name)
		if lead != nil && s.State == feed.Stale && s.Reason == feed.GapGivenUp && time.Since(last) > pause {
			t.Logf("%s has given up a gap", name)
			last = time.Now()
			lead()
		}
		return s.State == feed.Exact && r.difference(name, c, prompts) == ""
	})
}

// difference describes the first prompt of which the index has another part than the cache; empty if there is none.
func (r *reader) difference(name string, c *emittersim.Cache, prompts [][]uint32) string {
	size := int(r.size.Load())
	for i, p := range prompts {
		blocks := blockhash.Append(nil, p, size, blockhash.Seed("", ""))
		if got, want := r.Held(name, blocks)*size, c.Held(p); got != want {
			return fmt.Sprintf("prompt %d: %d tokens, want %d", i, got, want)
		}
	}
	return ""
}

func prompts(n int) (list [][]uint32) {
	for i := range n {
		var p []uint32
		for j := range 5*chunk + 7 {
			p = append(p, uint32(j+100*(i%3)+1000*min(j/chunk, 2)*(i/3)))
		}
		list = append(list, p)
	}
	return list
}

// TestIndexEqualsTheCaches: two caches behind one coordinator store and remove chunks. Messages are lost and swapped, connections break,
// another leader takes the address, and chunks are named that no cache has. Afterwards the index has exactly what each cache has.
func TestIndexEqualsTheCaches(t *testing.T) {
	c := emittersim.Start(t, chunk, 1<<12)
	host, pool := c.Cache("kv@node:n1@m", "lmcache-l1"), c.Cache("kv@pool:fs@m", "lmcache-l2-fs")
	r := read(t,
		emitters.Emitter{Name: "host", Model: "m", Node: "n1", KVEvents: c.Events, KVReplay: c.Replay},
		emitters.Emitter{Name: "pool", Model: "m", KVEvents: c.Events, KVReplay: c.Replay})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	all, caches := prompts(9), []*emittersim.Cache{host, pool}

	for i := range 300 {
		cache, p := caches[rng.IntN(2)], all[rng.IntN(len(all))]
		switch n := rng.IntN(40); {
		case n < 4:
			c.Lose()
		case n < 8:
			c.Swap()
		case n < 9:
			c.Cut()
		case n < 10:
			c.Lead(caches...)
		case n < 11:
			cache.Clear()
		case n < 14:
			cache.Claim(p)
		case n < 22:
			cache.Remove(p, rng.IntN(4))
		default:
			cache.Store(p)
		}
		if i%100 == 50 {
			cache.Store(p)
			testkit.Eventually(t, "both subscribe", func() bool { return c.Subscribers() == 2 })
		}
	}
	lead := func() { c.Lead(caches...) }
	r.awaitEqual(t, "host", host, all, lead)
	r.awaitEqual(t, "pool", pool, all, lead)
	if s := r.state("host"); s.Place != "node n1" || !s.Connected || s.OtherTopics == 0 || s.Messages == 0 {
		t.Errorf("%+v", s)
	}

	r.size.Store(2 * block)
	r.awaitEqual(t, "host", host, all, lead)
	if n := testutil.CollectAndCount(r.reg, "stator_emitters_blocks", "stator_emitters_other_topics_total"); n != 4 {
		t.Errorf("%d metrics", n)
	}
}

// TestWithoutReplay: after a loss an emitter without a replay socket is stale, not exact, and no block is in the index that its cache has removed.
func TestWithoutReplay(t *testing.T) {
	c := emittersim.Start(t, chunk, 0)
	pool := c.Cache("any", "lmcache-l2-fs")
	r := read(t, emitters.Emitter{Name: "pool", Model: "m", Topic: "any", KVEvents: c.Events})
	testkit.Eventually(t, "it subscribes", func() bool { return c.Subscribers() == 1 && r.state("pool").Connected })
	all := prompts(2)
	pool.Store(all[0])
	r.awaitEqual(t, "pool", pool, all, nil)

	c.Lose()
	pool.Remove(all[0], 3)
	testkit.Eventually(t, "the loss is found, and the later blocks are there", func() bool {
		pool.Remove(all[1], 0)
		pool.Store(all[1])
		s := r.state("pool")
		return s.State == feed.Stale && s.Reason == feed.GapGivenUp && r.difference("pool", pool, all[1:]) == ""
	})
	if blocks := blockhash.Append(nil, all[0], block, blockhash.Seed("", "")); r.Held("pool", blocks)*block > pool.Held(all[0]) {
		t.Error("the index has blocks that the cache has removed")
	}

	// Its messages until the next connection are missing, so it is not exact before its cache has been empty once.
	c.Lead(pool)
	testkit.Eventually(t, "it is connected to another leader", func() bool { return c.Subscribers() == 1 && r.state("pool").Connected })
	if s := r.state("pool"); s.State == feed.Exact {
		t.Errorf("%+v", s)
	}
	testkit.Eventually(t, "it is exact after its cache was empty", func() bool {
		pool.Clear()
		return r.state("pool").State == feed.Exact
	})
	pool.Store(all[1])
	r.awaitEqual(t, "pool", pool, all, nil)
}

// TestWrongTopic: a socket whose messages are all of other topics is named in the log, once, and the blocks are not taken.
func TestWrongTopic(t *testing.T) {
	c := emittersim.Start(t, chunk, 64)
	other := c.Cache("kv@pool:fs@another", "lmcache-l2-fs")
	r := read(t, emitters.Emitter{Name: "pool", Model: "m", KVEvents: c.Events, KVReplay: c.Replay})
	for _, p := range prompts(2) {
		other.Store(p)
	}
	testkit.Eventually(t, "its messages are counted", func() bool { return r.state("pool").OtherTopics > 2 })
	if s := r.state("pool"); s.Blocks != 0 || s.Messages != 0 || strings.Count(r.log.String(), "kv@pool:fs@another") != 1 {
		t.Errorf("%+v\n%s", s, r.log.String())
	}
}

// TestNoEmitters: without emitters there is no set, and nothing is registered.
func TestNoEmitters(t *testing.T) {
	var log testkit.Log
	s, err := emitters.New(emitters.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if s != nil || err != nil || s.Outside() != nil || s.States() != nil {
		t.Errorf("%v %v", s, err)
	}
	s.Run(context.Background())
}
