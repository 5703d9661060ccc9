package kvsource_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/test/testkit"
)

// TestIndexEqualsTheCache: an engine evicts under pressure and connections break. At the end the index
// stores exactly the blocks that the engine finds in its cache.
func TestIndexEqualsTheCache(t *testing.T) {
	sim, _ := startSim(t, anyPort, anyPort, nil)
	events := forward(t, sim.EventsEndpoint())

	index := kvindex.New(kvindex.Config{})
	var cacheFeed *feed.Feed
	members := fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { cacheFeed.RankGone(id) }})
	cacheFeed = feed.New(feed.Config{}, members, index)
	if _, err := members.Put(fleet.Worker{Name: "a", Model: "tiny", Address: sim.Addr(), Engine: "sim", Ranks: 1, BlockSize: 4, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	source, err := kvsource.New(kvsource.Config{Endpoint: events.endpoint(), Replay: sim.ReplayEndpoint(), RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, Probe: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	stream := &feed.Stream{Feed: cacheFeed, Worker: "a", Now: time.Now}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		_ = source.Run(ctx, stream)
	})

	rng := rand.New(rand.NewPCG(1, 2))
	var prompts []string
	for i := range 120 {
		text := strings.Repeat(fmt.Sprintf("shared %d ", rng.IntN(4)), 3) + fmt.Sprintf("own %d", i)
		prompts = append(prompts, text)
		ask(t, sim, text)
		if i%40 == 20 {
			events.cut()
		}
	}
	testkit.Eventually(t, "the index is up to date", func() bool {
		s := cacheFeed.States()
		return len(s) == 1 && s[0].State == feed.Exact && s[0].Blocks == sim.CachedBlocks()
	})
	rank := members.Snapshot().Ranks[0].ID
	var out kvindex.Overlap
	for _, text := range []string{prompts[119], prompts[118], "shared 2 shared 2 shared 2 and new"} {
		tokens := make([]uint32, 0, len(text))
		for _, c := range []byte(text) {
			tokens = append(tokens, uint32(c))
		}
		index.Lookup(blockhash.Append(nil, tokens, 4, blockhash.Seed("", "")), &out)
		want := 4 * out.Of(rank)[fleet.Device]
		if want == len(tokens) {
			want -= 4 // an engine computes at least one token
		}
		if got := cachedTokens(t, sim, text); got != want {
			t.Errorf("%q: the engine finds %d tokens, the index %d", text, got, want)
		}
	}
}
