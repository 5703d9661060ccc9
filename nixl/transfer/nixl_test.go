package transfer

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/nixl/wire"
)

// cycles is the number of transfers of the leak test.
var cycles = flag.Int("nixl.transfers", 10_000, "number of transfers of the leak test")

// trials is the number of times that a transfer is disturbed. Percentiles need 20.
var trials = flag.Int("nixl.trials", 3, "number of trials of each test that disturbs transfers")

// large is a layout with blocks of 256 KiB.
var large = block.Layout{Model: "m", Layers: 16, PageTokens: 16, Outer: 2, Inner: 256, DType: "float16", TPSize: 1, Hashing: "h"}

// built is the folder with the program that tests run, which TestMain removes; empty before it is built.
var built string

var program = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "stator-transfer")
	if err != nil {
		return "", err
	}
	built = folder
	path := filepath.Join(folder, "stator-transfer")
	build := exec.Command("go", "build", "-o", path, "github.com/stator-project/stator/cmd/stator-transfer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build stator-transfer: %w: %s", err, out)
	}
	return path, nil
})

// node is a helper with real NIXL and its memory.
type node struct {
	*Helper
	memory []byte
}

// way is UCX with environment variables for the child.
type way struct {
	ucx wire.Backend
	env []string
}

// These ways work without special hardware. Over shared memory, UCX cannot detect the end of a peer.
var (
	tcp    = way{Network(), []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=lo"}}
	shared = way{
		wire.Backend{Plugin: "UCX", Params: map[string]string{"ucx_error_handling_mode": "none"}}, []string{"UCX_TLS=posix,sysv,cma,self"},
	}
	ways = map[string]way{"shared memory": shared, "tcp": tcp}
)

// newNode starts stator-transfer, or skips the test where NIXL is not installed.
func newNode(t *testing.T, slots int, by way, change func(c *Config)) *node {
	t.Helper()

	if os.Getenv("NIXL_LIB_DIR") == "" {
		t.Skip("NIXL_LIB_DIR names no folder with libnixl_capi.so: run make test-nixl, which installs it into the checkout")
	}
	library, err := FindLibrary("")
	if err != nil {
		t.Fatal(err)
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}

	n := &node{}
	cfg := Config{
		Program: path, Library: library, Name: "node", Layout: large, Slots: slots, Backends: []wire.Backend{by.ucx}, Env: by.env,
	}
	cfg.Memory, n.memory = mapped(t, slots*large.Bytes())
	if change != nil {
		change(&cfg)
	}
	n.Helper, err = Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// join makes b known to a, and returns its name.
func join(t *testing.T, a, b *node) string {
	t.Helper()

	name, err := a.AddPeer(t.Context(), b.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// slot returns the bytes of a slot.
func (n *node) slot(i int32) []byte {
	return n.memory[int(i)*large.Bytes():][:large.Bytes()]
}

// fill writes random bytes that depend on a seed.
func (n *node) fill(seed uint64) {
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = source.Read(n.memory)
}

// every returns the slots from first to last, in a random order.
func every(first, count int) []int32 {
	var list []int32
	for _, i := range rand.Perm(count) {
		list = append(list, int32(first+i))
	}
	return list
}

// TestNIXLCopiesBlocks has two processes copy blocks in random orders, in both directions, over shared memory and TCP, and compares all
// bytes.
func TestNIXLCopiesBlocks(t *testing.T) {
	const slots = 32
	for name, by := range ways {
		t.Run(name, func(t *testing.T) {
			a, b := newNode(t, slots, by, nil), newNode(t, slots, by, nil)
			peer := join(t, a, b)
			join(t, a, b) // has no effect
			for round := range 5 {
				for _, write := range []bool{false, true} {
					a.fill(uint64(2 * round))
					b.fill(uint64(2*round + 1))
					x := Transfer{Peer: peer, Write: write, Local: every(0, slots)[:20], Remote: every(0, slots)[:20], Timeout: soon}
					if err := a.Transfer(t.Context(), x); err != nil {
						t.Fatal(err)
					}
					compareSlots(t, a, b, &x)
				}
			}
		})
	}
}

// compareSlots checks that each pair of slots has the same bytes, and the sum of the source.
func compareSlots(t *testing.T, a, b *node, x *Transfer) {
	t.Helper()

	for i, s := range x.Local {
		if mine, theirs := a.slot(s), b.slot(x.Remote[i]); !bytes.Equal(mine, theirs) {
			t.Fatalf("local slot %d has sum %08x, and remote slot %d %08x", s, block.Sum(mine), x.Remote[i], block.Sum(theirs))
		}
	}
}

// TestNIXLRefusals checks errors of the real child.
func TestNIXLRefusals(t *testing.T) {
	a := newNode(t, 4, tcp, nil)
	b := newNode(t, 4, tcp, nil)
	peer := join(t, a, b)
	err := a.Transfer(t.Context(), Transfer{Peer: peer, Local: []int32{0}, Remote: []int32{4}, Timeout: soon})
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "remote slot 4 does not exist") {
		t.Errorf("%v", err)
	}

	for name, change := range map[string]func(c *Config){
		"nixl-cu12==1.5.1":  func(c *Config) { c.Library = "/nowhere/libnixl_capi.so" },
		"create_backend":    func(c *Config) { c.Env = []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=absent0"} },
		"get_plugin_params": func(c *Config) { c.Backends = []wire.Backend{{Plugin: "ABSENT"}} },
	} {
		c := a.cfg
		change(&c)
		h, err := Start(t.Context(), c)
		if err == nil {
			h.Close()
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// slow is a transfer over TCP that lasts long enough to be disturbed: 64 MiB.
const slowSlots = 256

// disturb begins to read all slots of a peer over TCP, and acts when the first bytes have arrived.
func disturb(t *testing.T, a, b *node, peer string, timeout time.Duration, act func()) error {
	t.Helper()

	clear(a.memory)
	b.fill(5)
	result := make(chan error, 1)
	go func() {
		err := a.Transfer(t.Context(), Transfer{Peer: peer, Local: every(0, slowSlots), Remote: every(0, slowSlots), Timeout: timeout})
		result <- err
	}()
	for begin := time.Now(); a.written() == 0 && time.Since(begin) < soon; {
		time.Sleep(100 * time.Microsecond)
	}
	act()
	return <-result
}

// written returns how many slots have other bytes than zeros at their beginning.
func (n *node) written() (count int) {
	for i := range int32(len(n.memory) / large.Bytes()) {
		if !bytes.Equal(n.slot(i)[:16], make([]byte, 16)) {
			count++
		}
	}
	return count
}

// TestNIXLPeerIsKilled kills a peer while it is read. The transfer fails long before its timeout, and its slots are quarantined until the
// caller states that the peer is dead.
func TestNIXLPeerIsKilled(t *testing.T) {
	var noticed []time.Duration
	for range *trials {
		a, b := newNode(t, slowSlots, tcp, nil), newNode(t, slowSlots, tcp, nil)
		peer := join(t, a, b)
		var killed time.Time
		err := disturb(t, a, b, peer, soon, func() { killed = time.Now(); kill(t, b.PID(), syscall.SIGKILL) })
		if err == nil {
			continue // it was done before
		}

		noticed = append(noticed, time.Since(killed))
		failure := expectFailure(t, err, ErrBackend)
		if errors.Is(err, ErrDeadline) || len(a.Quarantined()) != slowSlots || isSafe(failure) {
			t.Errorf("%d slots are quarantined, want all %d, without the deadline", len(a.Quarantined()), slowSlots)
		}
		if err := a.PeerDied(t.Context(), peer); err != nil {
			t.Error(err)
		}
		expectSafe(t, failure)
		expectNoWrites(t, a)
		a.Close()
		b.Close()
	}
	expectDisturbed(t, len(noticed))
	t.Logf("time from the kill to the error: %s", percentiles(noticed))
}

// expectDisturbed checks that some transfers were under way when something happened to them.
func expectDisturbed(t *testing.T, n int) {
	t.Helper()

	t.Logf("%d of %d transfers were under way", n, *trials)
	if n == 0 {
		t.Error("no transfer was disturbed")
	}
}

// percentiles returns a text. A few trials have no percentiles.
func percentiles(took []time.Duration) string {
	const enough = 20
	if len(took) < enough {
		return fmt.Sprintf("%d trials are too few for percentiles: make test-nixl has %d", len(took), enough)
	}
	slices.Sort(took)
	return fmt.Sprintf("p50 %v, p90 %v, most %v", took[len(took)/2], took[len(took)*9/10], took[len(took)-1])
}

func kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Error(err)
	}
}

// watchTime is the time for which tests look for late writes.
const watchTime = 500 * time.Millisecond

// expectNoWrites clears the memory and checks that it stays so.
func expectNoWrites(t *testing.T, n *node) {
	t.Helper()

	clear(n.memory)
	time.Sleep(watchTime)
	if written := lateSlots(n); written > 0 {
		t.Errorf("%d slots were written after they were free", written)
	}
}

// lateSlots counts slots with any byte that is not zero.
func lateSlots(n *node) (count int) {
	zero := make([]byte, large.Bytes())
	for i := range int32(len(n.memory) / large.Bytes()) {
		if !bytes.Equal(n.slot(i), zero) {
			count++
		}
	}
	return count
}

// TestNIXLPeerIsStopped stops a peer while it is read, so the transfer reaches its timeout. Without a fence, the peer's bytes arrive when
// it goes on: the quarantine is for this case.
func TestNIXLPeerIsStopped(t *testing.T) {
	var late []int
	for range *trials {
		a, b, failure := stopPeer(t)
		if failure != nil {
			clear(a.memory)
			kill(t, b.PID(), syscall.SIGCONT)
			expectSafe(t, failure)
			late = append(late, lateSlots(a))
			expectNoWrites(t, a)
		}
		a.Close()
		b.Close()
	}
	expectDisturbed(t, len(late))
	slices.Sort(late)
	t.Logf("of %d slots, so many were written after the transfer was given up, and before the quarantine ended: %v", slowSlots, late)
}

// TestNIXLFence stops a peer while it is read, and ends the own child after the timeout. When the peer goes on, nothing arrives.
func TestNIXLFence(t *testing.T) {
	var took []time.Duration
	aborted := 0
	for range *trials {
		a, b, failure := stopPeer(t)
		if failure != nil {
			begin := time.Now()
			a.Fence()
			took = append(took, time.Since(begin))
			if !isSafe(failure) {
				t.Error("the quarantine goes on after the fence")
			}
			clear(a.memory)
			kill(t, b.PID(), syscall.SIGCONT)
			expectNoWrites(t, a)
			if b.Restarts() > 0 || b.PID() == 0 {
				aborted++
			}
		}
		a.Close()
		b.Close()
	}
	expectDisturbed(t, len(took))
	t.Logf("time of the fence: %s; %d peers aborted when they went on", percentiles(took), aborted)
}

// stopPeer stops a peer while it is read, and waits for the timeout. Without a failure the transfer was done before.
func stopPeer(t *testing.T) (a, b *node, failure *Failure) {
	t.Helper()

	const timeout = 300 * time.Millisecond
	a, b = newNode(t, slowSlots, tcp, nil), newNode(t, slowSlots, tcp, nil)
	peer := join(t, a, b)
	pid := b.PID()
	err := disturb(t, a, b, peer, timeout, func() { freeze(t, pid) })
	if err == nil {
		kill(t, pid, syscall.SIGCONT)
		return a, b, nil
	}
	failure = expectFailure(t, err, ErrDeadline)
	if len(a.Quarantined()) != slowSlots || isSafe(failure) {
		t.Errorf("%d slots are quarantined, want all %d", len(a.Quarantined()), slowSlots)
	}
	return a, b, failure
}

// TestNIXLWriteToStoppedPeer writes to a peer that is stopped. The local slots are quarantined too, because their bytes still leave.
func TestNIXLWriteToStoppedPeer(t *testing.T) {
	a, b := newNode(t, slowSlots, tcp, nil), newNode(t, slowSlots, tcp, nil)
	peer := join(t, a, b)
	a.fill(9)
	freeze(t, b.PID())
	x := Transfer{Peer: peer, Write: true, Local: every(0, slowSlots), Remote: every(0, slowSlots), Timeout: 200 * time.Millisecond}
	err := a.Transfer(t.Context(), x)
	failure := expectFailure(t, err, ErrDeadline)
	if len(a.Quarantined()) != slowSlots || isSafe(failure) {
		t.Errorf("%d slots are quarantined", len(a.Quarantined()))
	}
	kill(t, b.PID(), syscall.SIGCONT)
	expectSafe(t, failure)
	compareSlots(t, a, b, &x)
}

// TestNIXLRestart kills the own child during a transfer. The transfer fails, its slots are free, and blocks are copied again when both
// sides have exchanged the new endpoint.
func TestNIXLRestart(t *testing.T) {
	a, b := newNode(t, slowSlots, tcp, nil), newNode(t, slowSlots, tcp, nil)
	err := disturb(t, a, b, join(t, a, b), soon, func() { kill(t, a.PID(), syscall.SIGKILL) })
	if !errors.Is(err, ErrEnded) || errors.As(err, new(*Failure)) {
		t.Errorf("%v, want the end of the child", err)
	}
	expectNoWrites(t, a)

	// The peer may abort when its reader dies, which is a known fault of UCX. It then starts again, too, with another endpoint.
	x := Transfer{Local: every(0, slowSlots), Remote: every(0, slowSlots), Timeout: soon}
	for deadline := time.Now().Add(2 * soon); ; time.Sleep(50 * time.Millisecond) {
		x.Peer, err = a.AddPeer(t.Context(), b.Endpoint())
		if err == nil {
			err = a.Transfer(t.Context(), x)
		}
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if a.Restarts() == 0 {
		t.Error("the child is the one that was killed")
	}
	compareSlots(t, a, b, &x)
}

// TestNIXLDoesNotLeak runs many transfers and compares the memory and the file descriptors of the child in the second half: growth in the
// first half comes from caches.
func TestNIXLDoesNotLeak(t *testing.T) {
	const slots = 64
	for name, by := range ways {
		t.Run(name, func(t *testing.T) {
			a, b := newNode(t, slots, by, nil), newNode(t, slots, by, nil)
			peer := join(t, a, b)
			a.fill(1)
			b.fill(2)
			var took []time.Duration
			points := []point{}
			for i := range *cycles {
				if i%(*cycles/4) == 0 {
					points = append(points, measure(t, a, i))
				}
				begin := time.Now()
				x := Transfer{Peer: peer, Write: i%2 == 1, Local: every(0, slots)[:4], Remote: every(0, slots)[:4], Timeout: soon}
				if err := a.Transfer(t.Context(), x); err != nil {
					t.Fatal(err)
				}
				took = append(took, time.Since(begin))
				if i%100 == 0 {
					compareSlots(t, a, b, &x)
				}
			}
			points = append(points, measure(t, a, *cycles))
			report(t, points, took)
		})
	}
}

// point is the size of a child after some transfers.
type point struct {
	transfers, rss, fds, threads int
}

// measure reads the resident bytes, the file descriptors and the threads of the child.
func measure(t *testing.T, n *node, transfers int) point {
	t.Helper()

	proc := fmt.Sprintf("/proc/%d/", n.PID())
	p := point{transfers: transfers}
	var size, resident int
	text, err := os.ReadFile(proc + "statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &resident)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.rss = resident * os.Getpagesize()
	for folder, count := range map[string]*int{"fd": &p.fds, "task": &p.threads} {
		entries, err := os.ReadDir(proc + folder)
		if err != nil {
			t.Fatal(err)
		}
		*count = len(entries)
	}
	return p
}

// report prints the points and the percentiles, and fails on growth in the second half.
func report(t *testing.T, points []point, took []time.Duration) {
	t.Helper()

	for _, p := range points {
		t.Logf("%6d transfers: RSS %.1f MiB, %d file descriptors, %d threads", p.transfers, float64(p.rss)/(1<<20), p.fds, p.threads)
	}
	slices.Sort(took)
	t.Logf("%d transfers of 4 blocks of 256 KiB: p50 %v, p90 %v, p99 %v", len(took), took[len(took)/2], took[len(took)*9/10],
		took[len(took)*99/100])

	const slack = 8 << 20 // of the allocator
	half, last := points[len(points)/2], points[len(points)-1]
	if last.fds > half.fds+2 || last.rss > half.rss+slack {
		t.Errorf("from %d to %d transfers: %d more file descriptors, %d more bytes", half.transfers, last.transfers, last.fds-half.fds,
			last.rss-half.rss)
	}
}

// TestNIXLReconnectsAreBounded adds and removes a live peer, by which NIXL leaks sockets, until the child is replaced.
func TestNIXLReconnectsAreBounded(t *testing.T) {
	const most = 20
	a := newNode(t, 4, tcp, func(c *Config) { c.MaxReconnects = most })
	b := newNode(t, 4, tcp, nil)
	first := measure(t, a, 0).fds
	leaked := 0
	for i := range most {
		peer := join(t, a, b)
		if err := a.Transfer(t.Context(), Transfer{Peer: peer, Local: []int32{0}, Remote: []int32{1}, Timeout: soon}); err != nil {
			t.Fatal(err)
		}
		if i == most-1 {
			leaked = measure(t, a, 0).fds - first
		}
		if err := a.RemovePeer(t.Context(), peer); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(soon); (a.Restarts() == 0 || a.PID() == 0) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	after := measure(t, a, 0).fds
	t.Logf("%d reconnections: %d file descriptors more; after the restart %d, at first %d", most, leaked, after, first)
	if after > first+2 {
		t.Errorf("%d file descriptors after the restart, and %d at first", after, first)
	}
}
