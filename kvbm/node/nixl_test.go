package node

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/direct"
	"github.com/stator-project/stator/kvbm/session"
	"github.com/stator-project/stator/test/testkit"
)

// nixlFetches is the number of fetches of the leak test, and nixlTrials how often a peer is killed.
var (
	nixlFetches = flag.Int("nixl.fetches", 1000, "number of fetches of the leak test")
	nixlTrials  = flag.Int("nixl.kills", 5, "number of peers that are killed; the pauses before their next starts double")
)

// nixlPrograms returns the programs for NIXL, or skips the test if it is not installed.
func nixlPrograms(t *testing.T) *NIXL {
	t.Helper()
	library := os.Getenv("NIXL_LIB_DIR")
	if library == "" {
		t.Skip("NIXL_LIB_DIR names no folder with libnixl_capi.so: run make test-nixl, which installs it into the checkout")
	}
	path := filepath.Join(t.TempDir(), "stator-transfer")
	build := exec.Command("go", "build", "-o", path, "github.com/stator-project/stator/cmd/stator-transfer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build stator-transfer: %v: %s", err, out)
	}
	return &NIXL{Program: path, Library: library}
}

// withNIXL has a node use NIXL.
func withNIXL(programs *NIXL) func(*Config) { return func(c *Config) { c.NIXL = programs } }

// child waits until the child of a node runs, and returns its process id.
func (r *running) child(t *testing.T) (pid int) {
	t.Helper()
	testkit.Eventually(t, "stator-transfer runs", func() bool {
		s := r.node.Status().NIXL
		if s != nil {
			pid = s.PID
		}
		return pid != 0
	})
	return pid
}

// flush drops the blocks of a node's host memory.
func (r *running) flush(t *testing.T) {
	t.Helper()
	if _, err := r.node.Flush(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
}

// most is the number of blocks that an engine writes or reads by one call.
const most = 64

// putAll writes blocks as an engine does.
func putAll(t *testing.T, c *session.Client, keys []block.Key) {
	t.Helper()
	for part := range slices.Chunk(keys, most) {
		put(t, c, part)
	}
}

// transfers returns the metric of fetches by way and result.
func (r *running) transfers(t *testing.T, transport, result string) (n float64) {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "stator_kvstore_peer_transfers_total" && labels["transport"] == transport && labels["result"] == result {
				n = m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// TestNIXLTwoNodes: blocks of one node come to another one by NIXL, with all their bytes. The stream is there to compare the times with.
func TestNIXLTwoNodes(t *testing.T) {
	programs := nixlPrograms(t)
	for _, c := range []struct {
		name     string
		programs *NIXL
		settings []string // of UCX
	}{
		{"stream", nil, nil},
		{"NIXL with what UCX chooses", programs, nil},
		{"NIXL over TCP", programs, []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=lo"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, setting := range c.settings {
				key, value, _ := strings.Cut(setting, "=")
				t.Setenv(key, value)
			}
			list := []string{testkit.Address(t), testkit.Address(t)}
			a := start(t, "a", list[0], list, withNIXL(c.programs))
			b := start(t, "b", list[1], list, withNIXL(c.programs))
			keys := someKeys(200)
			engineA, engineB := a.engine(t), b.engine(t)
			putAll(t, engineA, keys)
			if c.programs != nil {
				a.child(t)
				b.child(t)
			}

			found(t, engineB, keys, 200)
			const rounds = 21
			var took []time.Duration
			for range rounds {
				began := time.Now()
				l, err := engineB.Fetch(t.Context(), keys)
				if err != nil || len(l.Slots) != len(keys) {
					t.Fatalf("%d blocks came: %v", len(l.Slots), err)
				}
				took = append(took, time.Since(began))
				if err := l.Release(time.Millisecond); err != nil {
					t.Fatal(err)
				}
				if n := fetch(t, engineB, keys); n != len(keys) { // which compares the bytes
					t.Errorf("%d blocks are there", n)
				}
				b.flush(t)
			}
			slices.Sort(took)
			t.Logf("200 blocks of 64 KiB: median %v, %v to %v", took[rounds/2], took[0], took[rounds-1])
			if c.programs == nil {
				return
			}
			if ok := b.transfers(t, "nixl", "ok"); ok < rounds || b.transfers(t, "nixl", "failed")+b.transfers(t, "tcp", "ok") > 0 {
				t.Errorf("%g fetches by NIXL: %+v", ok, b.node.Status().NIXL)
			}
			if s := a.node.Status(); s.NIXL.Held != 0 || s.Store.Slots.Active != 0 {
				t.Errorf("%d blocks are held, and %d in use", s.NIXL.Held, s.Store.Slots.Active)
			}
		})
	}
}

// fetchByNIXL fetches blocks until they come by NIXL, and drops them.
func (r *running) fetchByNIXL(t *testing.T, c *session.Client, keys []block.Key) {
	t.Helper()
	r.child(t)
	testkit.Eventually(t, "blocks come by NIXL", func() bool {
		before := r.transfers(t, "nixl", "ok")
		found(t, c, keys, len(keys))
		if n := fetch(t, c, keys); n != len(keys) {
			t.Fatalf("%d blocks came", n)
		}
		r.flush(t)
		return r.transfers(t, "nixl", "ok") > before
	})
	found(t, c, keys, len(keys))
}

// startTwo starts two nodes that list each other. The first one has blocks, and the second one an engine.
func startTwo(t *testing.T, programs *NIXL, keys []block.Key) (a, b *running, engineB *session.Client) {
	t.Helper()
	list := []string{testkit.Address(t), testkit.Address(t)}
	a = start(t, "a", list[0], list, withNIXL(programs))
	b = start(t, "b", list[1], list, withNIXL(programs))
	engineA := a.engine(t)
	engineB = b.engine(t)
	putAll(t, engineA, keys)
	return a, b, engineB
}

// TestNIXLChildIsKilled kills the stator-transfer of the node that has the blocks in the middle of fetches: the blocks come by TCP, with all their
// bytes. After its pause the peer is read by NIXL again.
func TestNIXLChildIsKilled(t *testing.T) {
	programs := nixlPrograms(t)
	t.Setenv("UCX_TLS", "tcp")
	t.Setenv("UCX_NET_DEVICES", "lo")
	keys := someKeys(200)
	a, b, engineB := startTwo(t, programs, keys)
	for trial := range *nixlTrials {
		a.child(t)
		b.fetchByNIXL(t, engineB, keys)
		pid := a.child(t)
		time.AfterFunc(time.Duration(rand.IntN(30))*time.Millisecond, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		for range 10 {
			if n := fetch(t, engineB, keys); n != 200 {
				t.Errorf("trial %d: %d blocks came", trial, n)
			}
			b.flush(t)
		}
	}
	s := b.node.Status().NIXL
	if s.NIXLFailed == 0 {
		t.Error("no transfer met the end of its peer")
	}
	t.Logf("%d killed: %d fetches by NIXL, %d failed, %d by TCP, %d fences", *nixlTrials, s.NIXLOK, s.NIXLFailed, s.TCPOK, s.Fences)
}

// TestNIXLChildIsStopped stops the stator-transfer of the node that has the blocks: a fetch fences its own child in time and gets the blocks by
// TCP. No byte changes when the stopped process goes on.
func TestNIXLChildIsStopped(t *testing.T) {
	programs := nixlPrograms(t)
	t.Setenv("UCX_TLS", "tcp")
	t.Setenv("UCX_NET_DEVICES", "lo")
	keys := someKeys(200)
	a, b, engineB := startTwo(t, programs, keys)
	pid := a.child(t)
	b.fetchByNIXL(t, engineB, keys)

	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	t.Cleanup(goOn)
	began := time.Now()
	l, err := engineB.Fetch(t.Context(), keys)
	if err != nil || len(l.Slots) != len(keys) {
		t.Fatalf("%d blocks came: %v", len(l.Slots), err)
	}
	took := time.Since(began)
	goOn()
	for range 50 {
		for k, i := range l.Slots {
			if !bytes.Equal(engineB.Slot(i), content(keys[k])) {
				t.Fatalf("block %d has other bytes", k)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := l.Release(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	s := b.node.Status().NIXL
	if s.Fences != 1 || s.NIXLFailed != 1 || s.TCPOK != 1 {
		t.Errorf("%+v", s)
	}
	t.Logf("the fetch took %v", took)
}

// descriptors returns the number of file descriptors of a process.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestNIXLFetchesDoNotLeak counts the file descriptors of this process and of both children.
func TestNIXLFetchesDoNotLeak(t *testing.T) {
	programs := nixlPrograms(t)
	keys := someKeys(8)
	a, b, engineB := startTwo(t, programs, keys)
	pids := []int{os.Getpid(), a.child(t), b.child(t)}
	found(t, engineB, keys, 8)
	testkit.Eventually(t, "both nodes have their connections", func() bool {
		return sample(t, a.metrics, "stator_kvstore_peers reachable") == 1 && sample(t, b.metrics, "stator_kvstore_peers reachable") == 1
	})
	var before, after [3]int
	for i := range *nixlFetches {
		if n := fetch(t, engineB, keys); n != 8 {
			t.Fatalf("fetch %d: %d blocks came", i, n)
		}
		b.flush(t)
		if i == *nixlFetches/10 {
			for k, pid := range pids {
				before[k] = descriptors(t, pid)
			}
		}
	}
	for k, pid := range pids {
		after[k] = descriptors(t, pid)
	}
	s := b.node.Status().NIXL
	if after != before || s.NIXLOK < uint64(*nixlFetches) || s.NIXLFailed+s.TCPOK > 0 {
		t.Errorf("file descriptors %v before and %v after: %+v", before, after, s)
	}
	t.Logf("%d fetches: file descriptors of the test, and of both children: %v, then %v", *nixlFetches, before, after)
}

// nodeRole is the environment variable that makes the test's program a node, with its address as value.
const nodeRole = "STATOR_KV_TEST_NODE"

// TestMain also is the node of another process: it has 200 blocks, prints a line, and runs until its standard input ends.
func TestMain(m *testing.M) {
	if address := os.Getenv(nodeRole); address != "" {
		if err := runNode(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.Main(m)
}

// runNode is the other process.
func runNode(address string) error {
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "kv.sock")
	n, err := New(Config{
		Model: "m", Socket: socket, HostBytes: 256 * int64(layout.Bytes()), Node: "other", PeerListen: address, PeerToken: testToken,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		NIXL: &NIXL{Program: os.Getenv("STATOR_KV_TEST_TRANSFER"), Library: os.Getenv("NIXL_LIB_DIR")},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	var c *session.Client
	for c == nil {
		c, err = session.Dial(ctx, socket, session.User{Name: "engine", Layout: layout})
		if err != nil {
			time.Sleep(time.Millisecond)
		}
	}
	for keys := range slices.Chunk(someKeys(200), most) {
		slots, err := c.Reserve(ctx, len(keys))
		if err != nil {
			return err
		}
		for k, i := range slots {
			copy(c.Slot(i), content(keys[k]))
		}
		if err := c.Commit(ctx, slots, keys, 0); err != nil {
			return err
		}
	}
	for n.Status().NIXL.PID == 0 {
		time.Sleep(time.Millisecond)
	}

	fmt.Println(n.Status().NIXL.PID)
	_, _ = os.Stdin.Read(make([]byte, 1))
	cancel()
	return <-ended
}

// startOther starts a node as a process, and returns when it has its blocks.
func startOther(t *testing.T, programs *NIXL, address string) *exec.Cmd {
	t.Helper()
	cmd, _ := testkit.Process(t, nodeRole+"="+address, "STATOR_KV_TEST_TRANSFER="+programs.Program)
	return cmd
}

// TestNIXLNodeIsKilled kills the process that has the blocks, with its child, in the middle of fetches. Blocks that have come have the
// right bytes, and the next process with this address is used.
func TestNIXLNodeIsKilled(t *testing.T) {
	programs := nixlPrograms(t)
	t.Setenv("UCX_TLS", "tcp")
	t.Setenv("UCX_NET_DEVICES", "lo")
	address := testkit.Address(t)
	b := start(t, "b", testkit.Address(t), []string{address}, withNIXL(programs))
	engineB := b.engine(t)
	keys := someKeys(200)
	for trial := range max(*nixlTrials, 1) {
		cmd := startOther(t, programs, address)
		b.fetchByNIXL(t, engineB, keys)
		time.AfterFunc(time.Duration(rand.IntN(40))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		for range 10 {
			fetch(t, engineB, keys) // which compares the bytes of the blocks that have come
			b.flush(t)
		}
		_ = cmd.Wait()
		t.Logf("trial %d: %+v", trial, *b.node.Status().NIXL)
	}
	if s := b.node.Status().NIXL; s.NIXLFailed == 0 {
		t.Error("no fetch met the end of its peer")
	}
}

// TestWithoutNIXL: if the library of NIXL is missing on a node, or NIXL is configured on one of two, blocks come by TCP, with the reason.
func TestWithoutNIXL(t *testing.T) {
	for name, c := range map[string]struct{ ofA, ofB *NIXL }{
		"no library here":      {nil, &NIXL{Program: os.Args[0], Library: "/nowhere"}},
		"no library anywhere":  {&NIXL{Program: os.Args[0], Library: "/nowhere"}, &NIXL{Program: os.Args[0], Library: "/nowhere"}},
		"configured elsewhere": {&NIXL{Program: os.Args[0], Library: "/nowhere"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			list := []string{testkit.Address(t), testkit.Address(t)}
			a := start(t, "a", list[0], list, withNIXL(c.ofA))
			b := start(t, "b", list[1], list, withNIXL(c.ofB))
			keys := someKeys(20)
			engineA, engineB := a.engine(t), b.engine(t)
			putAll(t, engineA, keys)
			found(t, engineB, keys, 20)
			if n := fetch(t, engineB, keys); n != 20 {
				t.Errorf("%d blocks came", n)
			}

			s := b.node.Status().NIXL
			if (s != nil) != (c.ofB != nil) {
				t.Fatalf("the status of NIXL is %+v", s)
			}
			if s == nil {
				return
			}
			isShown := slices.ContainsFunc(s.Peers, func(p direct.PeerStats) bool { return strings.Contains(p.Reason, "/nowhere") })
			if s.PID != 0 || !strings.Contains(s.Reason, "/nowhere") || !isShown {
				t.Errorf("%+v", s)
			}
			if n := b.transfers(t, "tcp", "ok"); n != 1 {
				t.Errorf("%g fetches by TCP", n)
			}
		})
	}
}
