package direct

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/host"
	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/nixl/transfer"
	"github.com/stator-project/stator/test/testkit"
)

func newNetwork(t *testing.T) *network {
	return &network{agents: map[string]*host.Arena{}}
}

// pair returns a node that fetches, one that serves, and the peer between them. change and behave are for the first.
func pair(t *testing.T, change func(c *Config), behave func(f *fake, t transfer.Transfer) error) (here, there *node, p *Peer) {
	t.Helper()
	n := newNetwork(t)
	there = newNode(t, n, 1024, nil, nil)
	there.serve(t, true)
	here = newNode(t, n, 256, change, behave)
	return here, there, here.peer(t, there)
}

// TestBlocksComeByNIXL fetches blocks of which some are not there. No block comes by TCP, and no block is held afterwards.
func TestBlocksComeByNIXL(t *testing.T) {
	log := &logged{}
	here, there, p := pair(t, func(c *Config) { c.Log = log.logger() }, nil)
	keys := someKeys(200)
	there.put(t, keys[:100])
	there.put(t, keys[101:])
	dst := here.slots(200)
	results := p.Fetch(t.Context(), keys, dst)
	if !errors.Is(results[100].Err, stream.ErrMissing) {
		t.Errorf("the block that is not there: %v", results[100].Err)
	}
	check(t, keys[:100], dst[:100], results[:100])
	check(t, keys[101:], dst[101:], results[101:])
	here.fetchAll(t, p, keys[:50])

	s := here.Stats()
	if s.NIXLOK != 2 || s.NIXLFailed+s.TCPOK+s.TCPFailed+s.Fences != 0 || len(s.Peers) != 1 || s.Peers[0].Transport != "nixl" || s.Peers[0].Reason != "" {
		t.Errorf("%+v", s)
	}
	if n := there.Stats().Held; n != 0 {
		t.Errorf("%d blocks are held", n)
	}
	if log.count("come by NIXL") != 1 {
		t.Errorf("the log:\n%s", log.text.String())
	}
}

// TestBlocksComeByTCP has all reasons for which blocks come by TCP. They come with the right bytes, the reason is logged once, and can be
// read.
func TestBlocksComeByTCP(t *testing.T) {
	backend := func(f *fake, _ transfer.Transfer) error { return fmt.Errorf("%w: status -2", transfer.ErrBackend) }
	for name, c := range map[string]struct {
		change func(c *Config)
		behave func(f *fake, t transfer.Transfer) error
		old    bool // the peer has no calls
		stops  bool // the peer has no child
		want   string
		failed uint64
	}{
		"no library": {change: func(c *Config) { c.Library = t.TempDir() }, want: "libnixl_capi.so"},
		"no program": {change: func(c *Config) { c.Program = "/nowhere/stator-transfer" }, want: "make build-transfer"},
		"the child does not start": {change: func(c *Config) {
			c.start = func(context.Context, transfer.Config) (helper, error) { return nil, errors.New("an undefined symbol") }
		}, want: "an undefined symbol"},
		"a peer of an earlier release": {old: true, want: "answers no calls", failed: 1},
		"a peer without a child":       {stops: true, want: "does not run on this node: a reason there", failed: 1},
		"NIXL fails":                   {behave: backend, want: "status -2", failed: 1},
		"another layout": {behave: func(*fake, transfer.Transfer) error { return transfer.ErrInvalid },
			want: "invalid request", failed: 1},
		"wrong bytes": {behave: func(f *fake, t transfer.Transfer) error {
			t.Remote[3]++
			return nil
		}, want: "another tag", failed: 1},
		"forged bytes with the right CRC32C": {behave: func(f *fake, t transfer.Transfer) error {
			f.net.mu.Lock()
			defer f.net.mu.Unlock()
			there := f.net.agents[t.Peer]
			forged := there.Slot(63)
			copy(forged, there.Slot(int(t.Remote[3])))
			// The polynomial itself, as five bytes in the order of the bits of CRC32C, changes no checksum.
			for i, b := range []byte{0xf1, 0x76, 0xec, 0x05, 0x01} {
				forged[i] ^= b
			}
			if block.Sum(forged) != block.Sum(there.Slot(int(t.Remote[3]))) {
				return errors.New("the checksums differ")
			}
			t.Remote[3] = 63
			return nil
		}, want: "another tag", failed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			there := newNode(t, n, 64, nil, nil)
			there.serve(t, !c.old)
			if c.stops {
				h := there.helper
				there.setHelper(nil, errors.New("a reason there"))
				t.Cleanup(func() { there.setHelper(h, nil) })
			}
			log := &logged{}
			here := newNode(t, n, 64, func(cfg *Config) {
				cfg.Log = log.logger()
				if c.change != nil {
					c.change(cfg)
				}
			}, c.behave)
			p := here.peer(t, there)
			keys := someKeys(10)
			there.put(t, keys)
			here.fetchAll(t, p, keys)
			here.fetchAll(t, p, keys)

			s := here.Stats()
			if s.NIXLOK != 0 || s.NIXLFailed != c.failed || s.TCPOK != 2 || s.TCPFailed != 0 || s.Peers[0].Transport == "nixl" {
				t.Errorf("%+v", s)
			}
			if !strings.Contains(s.Peers[0].Reason, c.want) || c.failed == 0 && !strings.Contains(s.Reason, c.want) {
				t.Errorf("reasons %q and %q", s.Reason, s.Peers[0].Reason)
			}
			if log.count("by TCP") != 1 || log.count(c.want) != 1 {
				t.Errorf("the log:\n%s", log.text.String())
			}
		})
	}
}

// TestLateWrites has transfers that write on after they were given up. When Fetch returns, the child was fenced, and no byte arrives any
// more: the race detector would find it, and so would the comparison.
func TestLateWrites(t *testing.T) {
	for name, because := range map[string]error{"the deadline": transfer.ErrDeadline, "an error": transfer.ErrBackend} {
		t.Run(name, func(t *testing.T) {
			here, there, p := pair(t, nil, func(f *fake, t transfer.Transfer) error { return f.lateWrites(t, because) })
			keys := someKeys(100)
			there.put(t, keys)
			dst := here.slots(100)
			results := p.Fetch(t.Context(), keys, dst)
			for range 20 {
				check(t, keys, dst, results)
				time.Sleep(time.Millisecond)
			}
			if s := here.Stats(); s.Fences != 1 || s.Restarts != 1 || s.NIXLFailed != 1 || s.TCPOK != 1 {
				t.Errorf("%+v", s)
			}
			if n := there.Stats().Held; n != 0 {
				t.Errorf("%d blocks are held", n)
			}
		})
	}
}

// TestOneFenceForMany: transfers that fail at the same time are fenced once, and not the child that follows.
func TestOneFenceForMany(t *testing.T) {
	const fetches = 8
	var begun sync.WaitGroup
	begun.Add(fetches)
	here, there, p := pair(t, nil, func(f *fake, t transfer.Transfer) error {
		err := f.lateWrites(t, transfer.ErrDeadline)
		begun.Done()
		begun.Wait()
		return err
	})
	keys := someKeys(10 * fetches)
	there.put(t, keys)
	dst := here.slots(len(keys))
	var all sync.WaitGroup
	for i := range fetches {
		all.Go(func() {
			part := dst[10*i : 10*i+10]
			check(t, keys[10*i:10*i+10], part, p.Fetch(t.Context(), keys[10*i:10*i+10], part))
		})
	}
	all.Wait()
	if s := here.Stats(); s.Fences != 1 {
		t.Errorf("%d fences", s.Fences)
	}
}

// TestPeerThatHasEnded: if the peer states that its process has ended, the failed transfer needs no fence. The next fetch uses the new
// process.
func TestPeerThatHasEnded(t *testing.T) {
	var there *node
	ends := true
	here, there, p := pair(t, nil, func(f *fake, t transfer.Transfer) error {
		if !ends {
			return nil
		}
		ends = false
		there.helper.restart()
		return f.lateWrites(t, transfer.ErrBackend)
	})
	keys := someKeys(10)
	there.put(t, keys)
	here.fetchAll(t, p, keys)
	if s := here.Stats(); s.Fences != 0 || s.NIXLFailed != 1 || s.TCPOK != 1 || len(here.helper.died) != 1 {
		t.Errorf("%+v; died: %v", s, here.helper.died)
	}
	resume(p)
	here.fetchAll(t, p, keys)
	if s := here.Stats(); s.NIXLOK != 1 || s.TCPOK != 1 {
		t.Errorf("%+v", s)
	}
}

// TestHasEnded: only the process that has given an answer can state that its agent has ended.
func TestHasEnded(t *testing.T) {
	_, there, p := pair(t, nil, nil)
	there.put(t, someKeys(1))
	a, err := p.askSlots(t.Context(), someKeys(1))
	if err != nil {
		t.Fatal(err)
	}
	defer p.done(t.Context(), a.Lease)
	if p.hasEnded(&a) {
		t.Error("an agent that runs has ended")
	}
	there.helper.restart()
	if !p.hasEnded(&a) {
		t.Error("an agent that has ended runs")
	}
	other := a
	other.Node = "another process"
	if p.hasEnded(&other) {
		t.Error("a process states that the agent of another one has ended")
	}
}

// resume ends the pause of a peer.
func resume(p *Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Time{}
}

// TestRestarts has either child start again between fetches: endpoints are exchanged again, and the peer's old one is removed.
func TestRestarts(t *testing.T) {
	here, there, p := pair(t, nil, nil)
	keys := someKeys(10)
	there.put(t, keys)
	here.fetchAll(t, p, keys)
	there.helper.restart()
	here.fetchAll(t, p, keys)
	here.helper.restart()
	here.fetchAll(t, p, keys)
	if s := here.Stats(); s.NIXLOK != 3 || s.NIXLFailed+s.TCPOK != 0 {
		t.Errorf("%+v", s)
	}
	if len(here.helper.removed) != 1 || len(here.helper.peers) != 1 {
		t.Errorf("removed %v, left %v", here.helper.removed, here.helper.peers)
	}
	p.Close()
	if len(here.helper.peers) != 0 {
		t.Errorf("after Close there are %v", here.helper.peers)
	}
	here.fetchAll(t, p, keys)
	if s := here.Stats(); s.NIXLOK != 3 || s.TCPOK != 1 || len(s.Peers) != 0 {
		t.Errorf("after Close: %+v", s)
	}
}

// TestPausesGrow: a peer is not tried again within the pause after a failure. Pauses double up to 30 s, and are short again after a success.
func TestPausesGrow(t *testing.T) {
	fails := true
	here, there, p := pair(t, nil, func(*fake, transfer.Transfer) error {
		if fails {
			return transfer.ErrBackend
		}
		return nil
	})
	keys := someKeys(1)
	there.put(t, keys)
	pause := func() time.Duration {
		here.fetchAll(t, p, keys)
		p.mu.Lock()
		defer p.mu.Unlock()
		return time.Until(p.until)
	}
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, mostPause, mostPause} {
		if got := pause(); got > want || got < want-want/2-500*time.Millisecond {
			t.Errorf("a pause of %v, and not of %v", got, want)
		}
		before := here.Stats().NIXLFailed
		here.fetchAll(t, p, keys)
		if n := here.Stats().NIXLFailed; n != before {
			t.Error("the peer was tried within its pause")
		}
		resume(p)
	}
	fails = false
	pause()
	fails = true
	if got := pause(); got > time.Second {
		t.Errorf("a pause of %v after a success", got)
	}
}

// TestShortTime: a fetch with little time left begins no transfer, which would be fenced at its end.
func TestShortTime(t *testing.T) {
	here, there, p := pair(t, nil, func(f *fake, t transfer.Transfer) error { return f.lateWrites(t, transfer.ErrDeadline) })
	keys := someKeys(5)
	there.put(t, keys)
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	dst := here.slots(5)
	_ = p.Fetch(ctx, keys, dst)
	if s := here.Stats(); s.Fences+s.NIXLFailed != 0 {
		t.Errorf("%+v", s)
	}
}

// TestManyFetches fetches from many goroutines, of two peers of the same node, while transfers fail, children restart and figures are
// read. Each block has its bytes.
func TestManyFetches(t *testing.T) {
	var mu sync.Mutex
	source := rand.New(rand.NewPCG(1, 2))
	here, there, p := pair(t, nil, func(f *fake, t transfer.Transfer) error {
		mu.Lock()
		n := source.IntN(20)
		mu.Unlock()
		switch n {
		case 0:
			return f.lateWrites(t, transfer.ErrBackend)
		case 1:
			return f.lateWrites(t, transfer.ErrDeadline)
		case 2:
			return transfer.ErrEnded
		}
		return nil
	})
	other := here.peer(t, there)
	keys := someKeys(240)
	there.put(t, keys)
	dst := here.slots(240)

	stop := make(chan struct{})
	var rest sync.WaitGroup
	rest.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			there.helper.restart()
			_ = here.Stats()
			resume(p)
			resume(other)
		}
	})
	var all sync.WaitGroup
	for i := range 8 {
		x := []*Peer{p, other}[i%2]
		all.Go(func() {
			part := dst[30*i : 30*i+30]
			for range 50 {
				check(t, keys[30*i:30*i+30], part, x.Fetch(t.Context(), keys[30*i:30*i+30], part))
			}
		})
	}
	all.Wait()
	close(stop)
	rest.Wait()
	if s := here.Stats(); s.NIXLOK == 0 || s.NIXLFailed == 0 || s.Fences == 0 {
		t.Errorf("%+v", s)
	}
	testkit.Eventually(t, "all leases end", func() bool { return there.Stats().Held == 0 })
}
