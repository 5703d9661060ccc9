package transfer

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
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
	memory   []byte
	notified chan string
}

// transports are the ways of UCX that work without special hardware.
var transports = map[string]Transport{"shared memory": SharedMemory(), "tcp": TCP("lo")}

// newNode starts stator-transfer, or skips the test where NIXL is not installed.
func newNode(t *testing.T, slots int, transport Transport, change func(c *Config)) *node {
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

	n := &node{notified: make(chan string, 1024)}
	cfg := Config{
		Program: path, Library: library, Name: "node", Layout: large, Slots: slots, Telemetry: true,
		Backends: []wire.Backend{transport.Backend}, Env: transport.Env,
		Notified: func(peer string, data []byte) { n.notified <- peer + " " + string(data) },
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
// bytes. A notification arrives for each write.
func TestNIXLCopiesBlocks(t *testing.T) {
	const slots = 32
	for name, transport := range transports {
		t.Run(name, func(t *testing.T) {
			a, b := newNode(t, slots, transport, nil), newNode(t, slots, transport, nil)
			peer := join(t, a, b)
			join(t, a, b) // has no effect
			for round := range 5 {
				for _, write := range []bool{false, true} {
					a.fill(uint64(2 * round))
					b.fill(uint64(2*round + 1))
					x := Transfer{Peer: peer, Write: write, Local: every(0, slots)[:20], Remote: every(0, slots)[:20], Timeout: soon}
					if write {
						x.Notification = fmt.Appendf(nil, "round %d", round)
					}
					r, err := a.Transfer(t.Context(), x)
					if err != nil {
						t.Fatal(err)
					}
					if r.Took <= 0 {
						t.Errorf("no time was measured: %+v", r)
					}
					compareSlots(t, a, b, &x)
				}
				if got := <-b.notified; !strings.HasSuffix(got, fmt.Sprintf(" round %d", round)) {
					t.Errorf("notification %q", got)
				}
			}
			st, err := a.Status(t.Context())
			if err != nil || st.Succeeded != 10 || st.Bytes != 10*20*uint64(large.Bytes()) {
				t.Errorf("%+v, %v", st, err)
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

// TestNIXLFiles writes blocks to a file and reads them back in another order.
func TestNIXLFiles(t *testing.T) {
	const slots = 16
	posix := Transport{Backend: wire.Backend{Plugin: "POSIX"}}
	a := newNode(t, slots, posix, nil)
	file, err := os.Create(filepath.Join(t.TempDir(), "blocks"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(int64(slots * large.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := a.AddFile(t.Context(), "disk", file, slots); err != nil {
		t.Fatal(err)
	}

	a.fill(1)
	sums := map[int32]uint32{}
	write := Transfer{Peer: "disk", Write: true, Local: every(0, slots), Remote: every(0, slots), Timeout: soon}
	for i, s := range write.Local {
		sums[write.Remote[i]] = crc32.ChecksumIEEE(a.slot(s))
	}
	if _, err := a.Transfer(t.Context(), write); err != nil {
		t.Fatal(err)
	}
	a.fill(2)
	read := Transfer{Peer: "disk", Local: every(0, slots), Remote: every(0, slots), Timeout: soon}
	if _, err := a.Transfer(t.Context(), read); err != nil {
		t.Fatal(err)
	}
	for i, s := range read.Local {
		if got := crc32.ChecksumIEEE(a.slot(s)); got != sums[read.Remote[i]] {
			t.Errorf("block %d of the file differs after write and read", read.Remote[i])
		}
	}
	if err := a.RemovePeer(t.Context(), "disk"); err != nil {
		t.Error(err)
	}
}

// TestNIXLRefusals checks errors of the real child.
func TestNIXLRefusals(t *testing.T) {
	a := newNode(t, 4, TCP("lo"), nil)
	b := newNode(t, 4, TCP("lo"), nil)
	peer := join(t, a, b)
	_, err := a.Transfer(t.Context(), Transfer{Peer: peer, Local: []int32{0}, Remote: []int32{4}, Timeout: soon})
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "remote slot 4 does not exist") {
		t.Errorf("%v", err)
	}
	if err := a.AddFile(t.Context(), "disk", os.Stdin, 1); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "POSIX") {
		t.Errorf("a file without POSIX: %v", err)
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
		_, err := a.Transfer(t.Context(), Transfer{Peer: peer, Local: every(0, slowSlots), Remote: every(0, slowSlots), Timeout: timeout})
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
		a, b := newNode(t, slowSlots, TCP("lo"), nil), newNode(t, slowSlots, TCP("lo"), nil)
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
	a, b = newNode(t, slowSlots, TCP("lo"), nil), newNode(t, slowSlots, TCP("lo"), nil)
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
	a, b := newNode(t, slowSlots, TCP("lo"), nil), newNode(t, slowSlots, TCP("lo"), nil)
	peer := join(t, a, b)
	a.fill(9)
	freeze(t, b.PID())
	x := Transfer{Peer: peer, Write: true, Local: every(0, slowSlots), Remote: every(0, slowSlots), Timeout: 200 * time.Millisecond}
	_, err := a.Transfer(t.Context(), x)
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
	a, b := newNode(t, slowSlots, TCP("lo"), nil), newNode(t, slowSlots, TCP("lo"), nil)
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
			_, err = a.Transfer(t.Context(), x)
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
	for name, transport := range transports {
		t.Run(name, func(t *testing.T) {
			a, b := newNode(t, slots, transport, nil), newNode(t, slots, transport, nil)
			peer := join(t, a, b)
			a.fill(1)
			b.fill(2)
			var took []time.Duration
			points := []*wire.Status{}
			for i := range *cycles {
				if i%(*cycles/4) == 0 {
					points = append(points, status(t, a))
				}
				begin := time.Now()
				x := Transfer{Peer: peer, Write: i%2 == 1, Local: every(0, slots)[:4], Remote: every(0, slots)[:4], Timeout: soon}
				if _, err := a.Transfer(t.Context(), x); err != nil {
					t.Fatal(err)
				}
				took = append(took, time.Since(begin))
				if i%100 == 0 {
					compareSlots(t, a, b, &x)
				}
			}
			points = append(points, status(t, a))
			report(t, points, took)
		})
	}
}

func status(t *testing.T, n *node) *wire.Status {
	t.Helper()

	st, err := n.Status(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// report prints the points and the percentiles, and fails on growth in the second half.
func report(t *testing.T, points []*wire.Status, took []time.Duration) {
	t.Helper()

	for _, p := range points {
		t.Logf("%6d transfers: RSS %.1f MiB, %d file descriptors, %d threads", p.Posted, float64(p.RSSBytes)/(1<<20), p.FDs, p.Threads)
	}
	slices.Sort(took)
	t.Logf("%d transfers of 4 blocks of 256 KiB: p50 %v, p90 %v, p99 %v", len(took), took[len(took)/2], took[len(took)*9/10],
		took[len(took)*99/100])

	const slack = 8 << 20 // of the allocator
	half, last := points[len(points)/2], points[len(points)-1]
	if last.FDs > half.FDs+2 || last.RSSBytes > half.RSSBytes+slack {
		t.Errorf("from %d to %d transfers: %d more file descriptors, %d more bytes", half.Posted, last.Posted, last.FDs-half.FDs,
			int64(last.RSSBytes)-int64(half.RSSBytes))
	}
}

// TestNIXLReconnectsAreBounded adds and removes a live peer, by which NIXL leaks sockets, until the child is replaced.
func TestNIXLReconnectsAreBounded(t *testing.T) {
	const most = 20
	a := newNode(t, 4, TCP("lo"), func(c *Config) { c.MaxReconnects = most })
	b := newNode(t, 4, TCP("lo"), nil)
	first := status(t, a).FDs
	leaked := 0
	for i := range most {
		peer := join(t, a, b)
		if _, err := a.Transfer(t.Context(), Transfer{Peer: peer, Local: []int32{0}, Remote: []int32{1}, Timeout: soon}); err != nil {
			t.Fatal(err)
		}
		if i == most-1 {
			leaked = status(t, a).FDs - first
		}
		if err := a.RemovePeer(t.Context(), peer); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(soon); (a.Restarts() == 0 || a.PID() == 0) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	after := status(t, a).FDs
	t.Logf("%d reconnections: %d file descriptors more; after the restart %d, at first %d", most, leaked, after, first)
	if after > first+2 {
		t.Errorf("%d file descriptors after the restart, and %d at first", after, first)
	}
}
