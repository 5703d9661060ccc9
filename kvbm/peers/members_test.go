package peers

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/test/testkit"
)

// serveBlocks serves a store with blocks as a node, and returns its address.
func serveBlocks(t *testing.T, node string, keys []block.Key) (address string, stop func()) {
	t.Helper()
	s, memory := newStore(t, len(keys)+1)
	put(t, s, memory, keys)
	return serve(t, s, node)
}

// TestPeersComeAndGo: blocks of a peer that is found are loaded, blocks of a removed peer are not, and blocks of a peer that is found
// again are. A peer that is in the configuration too stays.
func TestPeersComeAndGo(t *testing.T) {
	keysA, keysB := someKeys(0, 10), someKeys(100, 20)
	a, _ := serveBlocks(t, "a", keysA)
	b, _ := serveBlocks(t, "b", keysB)
	p := follow(t, nil, a)
	has(t, p, keysA, 10)
	if p.Match(keysB) != 0 {
		t.Error("a peer is used before it is found")
	}

	found := []Found{{"b", b}, {"a", a}}
	p.Set(found)
	has(t, p, keysB, 20)
	if n := checkLoad(t, p, 5*time.Second, keysB); n != 20 {
		t.Errorf("%d blocks came from the peer that was found", n)
	}
	for i := range 3 {
		p.Set(nil)
		if n := checkLoad(t, p, 5*time.Second, keysB); n != 0 {
			t.Errorf("round %d: %d blocks came from a peer that was removed", i, n)
		}
		p.Set(found)
		has(t, p, keysB, 20)
	}
	has(t, p, keysA, 10)
	if s := p.Stats(); s.Peers != 2 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	want := []Status{{Address: a, Node: "a", State: Usable, Blocks: 10}, {Address: b, Node: "b", State: Usable, Blocks: 20}}
	if got := p.Status(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v", got)
	}
}

// TestPeerIsRemovedInTransfer: the fetch from a peer that is removed ends, and the rest comes from another peer. It is no failure of the
// peer.
func TestPeerIsRemovedInTransfer(t *testing.T) {
	keys := someKeys(0, 40)
	a, _ := serveBlocks(t, "a", keys)
	b, _ := serveBlocks(t, "b", keys)
	var r relay
	frozen := r.start(t, a)
	p := follow(t, func(c *Config) { c.Every = time.Hour })
	p.Set([]Found{{"a", frozen}, {"b", b}})
	testkit.Eventually(t, "both have answered", func() bool { return p.Stats().Reachable == 2 })

	r.left.Store(20 * int64(layout.Bytes()))
	go func() {
		for r.left.Load() > 0 {
			time.Sleep(time.Millisecond)
		}
		p.Set([]Found{{"b", b}})
	}()
	begin := time.Now()
	if n := checkLoad(t, p, 30*time.Second, keys); n != 40 {
		t.Errorf("%d blocks came; %+v", n, p.Stats())
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the fetch from the peer that was removed ended after %v", took)
	}
	if s := p.Stats(); s.Failed != 0 || s.Peers != 1 {
		t.Errorf("%+v", s)
	}
}

// TestPeersChangeAllTheTime changes the peers while blocks are loaded. No load gets other bytes, and no goroutine is left.
func TestPeersChangeAllTheTime(t *testing.T) {
	keys := someKeys(0, 30)
	var found []Found
	for i := range 4 {
		address, _ := serveBlocks(t, fmt.Sprint(i), keys[:10+5*i])
		found = append(found, Found{fmt.Sprint(i), address})
	}
	p := follow(t, func(c *Config) { c.Every = time.Millisecond })

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	began := time.Now()
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			p.Set(found[i%len(found):])
			time.Sleep(time.Duration(i%7) * time.Millisecond)
		}
	})
	came := 0
	for took := time.Duration(0); took < 500*time.Millisecond || came == 0 && took < time.Minute; took = time.Since(began) {
		came += checkLoad(t, p, time.Second, keys)
		p.Status()
		p.Stats()
	}
	stop()
	all.Wait()
	if came == 0 {
		t.Error("no block came: the test shows nothing")
	}
	p.Set(found)
	has(t, p, keys, 25)
}

// TestFoundBeforeRunAndAfter: peers found before Run are used by it, and peers found after its end start nothing.
func TestFoundBeforeRunAndAfter(t *testing.T) {
	keys := someKeys(0, 5)
	a, _ := serveBlocks(t, "a", keys)
	p, err := New(Config{Token: token, Node: "fetcher", Layout: layout, Every: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p.Set([]Found{{"x", "127.0.0.1:1"}})
	p.Set([]Found{{"a", a}})
	if s := p.Status(); len(s) != 1 || s[0].State != Waiting {
		t.Errorf("%+v", s)
	}

	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { p.Run(ctx) })
	has(t, p, keys, 5)
	stop()
	run.Wait()
	p.Set([]Found{{"b", a + "0"}})
	if s := p.Status(); len(s) != 1 || s[0].Node != "a" || p.Match(keys) != 0 {
		t.Errorf("%+v", s)
	}
}

// TestMostPeers: above the bound the addresses of the configuration are used, and then the nodes that are first by name. It is logged once.
func TestMostPeers(t *testing.T) {
	var log bytes.Buffer
	p, err := New(Config{
		Addresses: []string{"s:1", "s:2", "s:1"}, Token: token, Node: "n", Layout: layout, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	var found []Found
	for i := range 2 * Most {
		found = append(found, Found{Node: fmt.Sprintf("n%04d", 2*Most-i), Address: fmt.Sprintf("10.0.0.1:%d", 2*Most-i)})
	}
	found = append(found, Found{"n0001", "s:2"}, Found{"n0002", "10.0.0.1:2"})
	for range 2 {
		p.Set(found)
		s := p.Status()
		if len(s) != Most || s[0].Address != "s:1" || s[1].Node != "n0001" || s[2].Node != "n0001" || s[Most-1].Node != fmt.Sprintf("n%04d", Most-2) {
			t.Errorf("%d peers: %+v ... %+v", len(s), s[:3], s[len(s)-1])
		}
		if n := p.Stats().Unused; n != Most+2 {
			t.Errorf("%d are not used", n)
		}
		p.Set(nil)
	}
	if n := strings.Count(log.String(), "more nodes with KV blocks than one uses"); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
}

// TestStatusOfPeers: the status of a peer has why it is not used.
func TestStatusOfPeers(t *testing.T) {
	address, stop := serveBlocks(t, "a", someKeys(0, 4))
	p := follow(t, func(c *Config) { c.Layout.PageTokens = 32 }, address)
	testkit.Eventually(t, "the reason is there", func() bool {
		s := p.Status()[0]
		return s.State == Failing && strings.Contains(s.Reason, "pageTokens is 16 here and 32 there")
	})
	p = follow(t, func(c *Config) { c.Node = "a" }, address)
	testkit.Eventually(t, "the node has found itself", func() bool { return p.Status()[0].State == Self })

	p = follow(t, nil, address)
	testkit.Eventually(t, "the peer answers", func() bool { return p.Status()[0] == Status{Address: address, State: Usable, Blocks: 4} })
	stop()
	testkit.Eventually(t, "the peer is gone", func() bool {
		s := p.Status()[0]
		return s.State == Failing && s.Reason != "" && s.Blocks == 0
	})
}
