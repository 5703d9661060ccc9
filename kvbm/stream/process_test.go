package stream_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/race"
	"github.com/stator-project/stator/test/testkit"
	"go.uber.org/goleak"
)

const role = "STATOR_STREAM_SERVER"

// TestMain also is the server of other processes: it prints its address, and serves until its standard input ends.
func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		os.Exit(m.Run())
	}
	source, _ := someBlocks(layout, 600)
	server, err := stream.NewServer(stream.ServerConfig{Token: token, Node: "server", Layout: layout, Source: source})
	if err != nil {
		panic(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(ln.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	_ = server.Serve(ctx, ln)
}

// startServer starts a server as a process.
func startServer(t *testing.T) (cmd *exec.Cmd, address string) {
	t.Helper()
	return testkit.Process(t, role+"=1")
}

// TestKilledPeer kills the peer in the middle of transfers, at ten moments: the error comes soon, and the next transfer fails too.
func TestKilledPeer(t *testing.T) {
	before := goleak.IgnoreCurrent()
	defer goleak.VerifyNone(t, before)
	const enough, most = 3, 100
	failed := 0
	for i := 0; i < 10 || failed < enough && i < most; i++ { // on a busy machine, more transfers may end before the kill
		cmd, address := startServer(t)
		c := connect(t, address, nil)
		_, keys := someBlocks(layout, 600)
		dst := slots(600)
		if err := c.Fetch(t.Context(), keys[:1], dst[:1])[0].Err; err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Duration(i%10)*3*time.Millisecond, func() { _ = cmd.Process.Kill() })
		began := time.Now()
		results := c.Fetch(t.Context(), keys, dst)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("the result came after %v", took)
		}
		if errors.Is(results[599].Err, context.DeadlineExceeded) {
			t.Error("the death of the peer was found by the deadline only")
		}
		if results[599].Err != nil {
			failed++
		}
		_ = cmd.Wait()
		if err := c.Fetch(t.Context(), keys[:1], dst[:1])[0].Err; err == nil {
			t.Error("a transfer from a dead peer succeeded")
		}
		c.Close()
	}
	if failed < enough {
		t.Errorf("the peer died in %d of %d transfers", failed, most)
	}
}

// TestFrozenPeer stops the peer in the middle of a transfer: the transfer ends at its deadline. When the peer goes on, nothing is written into the
// slices of before, and the client connects again.
func TestFrozenPeer(t *testing.T) {
	before := goleak.IgnoreCurrent()
	defer goleak.VerifyNone(t, before)
	cmd, address := startServer(t)
	m, keys := someBlocks(layout, 600)
	c := connect(t, address, nil)
	defer c.Close()
	dst := slots(600)
	for _, moment := range []time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond} {
		if err := c.Fetch(t.Context(), keys[:1], dst[:1])[0].Err; err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(moment, func() { _ = cmd.Process.Signal(syscall.SIGSTOP) })
		const deadline = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		began := time.Now()
		for ctx.Err() == nil {
			c.Fetch(ctx, keys, dst)
		}
		cancel()
		if took := time.Since(began); took > deadline+10*time.Second {
			t.Errorf("a transfer with a deadline of %v ended after %v", deadline, took)
		}

		// A transfer that begins now gets nothing at all.
		ctx, cancel = context.WithTimeout(t.Context(), deadline)
		err := c.Fetch(ctx, keys[:1], dst[:1])[0].Err
		cancel()
		if !errors.Is(err, stream.ErrStalled) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a transfer from a frozen peer: %v", err)
		}

		for i := range dst {
			clear(dst[i])
		}
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		for i := range dst {
			if block.Sum(dst[i]) != block.Sum(make([]byte, layout.Bytes())) {
				t.Fatalf("slice %d was written after its transfer had ended", i)
			}
		}
		same(t, m, keys, dst, c.Fetch(t.Context(), keys, dst))
	}
}

// usage returns the open files and goroutines of this process, and its memory in bytes.
func usage(t *testing.T) (files, goroutines int, memory int64) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	debug.FreeOSMemory()
	memory, err = process.Resident(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return len(list), runtime.NumGoroutine(), memory
}

// TestNothingLeaks does 10,000 transfers, or 1,500 under the race detector, among them some that are cancelled, and some with new connections.
func TestNothingLeaks(t *testing.T) {
	m, keys := someBlocks(layout, 64)
	_, address := serve(t, m, nil, nil)
	c := connect(t, address, nil)
	do := func(n int) {
		var wait sync.WaitGroup
		for part := range 4 {
			wait.Go(func() {
				dst := slots(8)
				for i := range n / 4 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					switch {
					case i%50 == 0:
						other := newClient(t, address, nil)
						other.Fetch(ctx, keys[:8], dst)
						other.Close()
					case i%10 == 0:
						time.AfterFunc(100*time.Microsecond, cancel)
						c.Fetch(ctx, keys[part*8:][:8], dst)
					default:
						if err := c.Fetch(ctx, keys[part*8:][:8], dst)[7].Err; err != nil {
							t.Error(err)
						}
					}
					cancel()
				}
			})
		}
		wait.Wait()
	}

	transfers := race.Fewer(1500, 10_000)
	if testing.Short() {
		transfers = 1500
	}
	do(transfers / 5)
	time.Sleep(100 * time.Millisecond)
	files, goroutines, memory := usage(t)
	do(transfers)
	testkit.Eventually(t, "no files, goroutines or memory are left", func() bool {
		filesAfter, goroutinesAfter, memoryAfter := usage(t)
		t.Logf("files %d → %d, goroutines %d → %d, memory %d → %d KiB", files, filesAfter, goroutines, goroutinesAfter, memory>>10, memoryAfter>>10)
		return filesAfter <= files+2 && goroutinesAfter <= goroutines+2 && memoryAfter <= memory+16<<20
	})
	testkit.Eventually(t, "no block is held", func() bool { return m.held.Load() == 0 })
}
