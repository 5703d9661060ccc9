package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/host"
	"github.com/stator-project/stator/nixl/wire"
)

var testLayout = block.Layout{Model: "m", Layers: 2, PageTokens: 16, Outer: 2, Inner: 128, DType: "float16", TPSize: 1, Hashing: "h"}

const testSlots = 16

// soon is the time within which anything that does not wait on purpose has happened, on a loaded machine too.
const soon = 20 * time.Second

// fixture is a helper with a fake child.
type fixture struct {
	*Helper
	memory []byte

	mu      sync.Mutex
	started []string // names of the agents
}

func newFixture(t *testing.T, change func(c *Config)) *fixture {
	t.Helper()

	before := goleak.IgnoreCurrent()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{}
	cfg := Config{
		Program: program, Library: "none", Name: "node", Layout: testLayout, Slots: testSlots, Env: []string{fakeChild + "=1"},
		Backends: []wire.Backend{{Plugin: "FAKE"}},
		Started: func(endpoint []byte) {
			f.mu.Lock()
			defer f.mu.Unlock()
			e, err := wire.ParseEndpoint(endpoint)
			if err != nil {
				t.Error(err)
				return
			}
			f.started = append(f.started, e.Agent)
		},
	}
	cfg.Memory, f.memory = mapped(t, testSlots*testLayout.Bytes())
	if change != nil {
		change(&cfg)
	}
	f.Helper, err = Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		goleak.VerifyNone(t, before)
	})
	return f
}

// mapped returns a sealed memory and its bytes.
func mapped(t testing.TB, size int) (*os.File, []byte) {
	t.Helper()

	arena, err := host.New(host.Config{Slots: 1, SlotBytes: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arena.Close() })
	return arena.File(), arena.Slot(0)
}

// add adds a fake peer of that name.
func (f *fixture) add(t *testing.T, name string) {
	t.Helper()

	if _, err := f.AddPeer(t.Context(), fakeEndpoint(t, name, testLayout)); err != nil {
		t.Fatal(err)
	}
}

func fakeEndpoint(t *testing.T, name string, layout block.Layout) []byte {
	t.Helper()

	text, err := json.Marshal(&wire.Endpoint{
		Version: wire.EndpointVersion, Agent: name, Layout: layout, Slots: 64, Stride: layout.Bytes(), Base: 4096, Metadata: []byte("m"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// read reads a slot of a peer.
func (f *fixture) read(t *testing.T, peer string, local, remote int32, timeout time.Duration) error {
	t.Helper()
	return f.Transfer(t.Context(), Transfer{Peer: peer, Local: []int32{local}, Remote: []int32{remote}, Timeout: timeout})
}

// expectFailure checks that an error reports a transfer with a quarantine, and returns it.
func expectFailure(t *testing.T, err, want error) *Failure {
	t.Helper()

	var failure *Failure
	if !errors.As(err, &failure) || !errors.Is(err, want) {
		t.Fatalf("%v, want a failure because of %v", err, want)
	}
	return failure
}

// isSafe reports whether the slots of a failure are free.
func isSafe(f *Failure) bool {
	select {
	case <-f.Safe:
		return true
	default:
		return false
	}
}

func expectSafe(t *testing.T, f *Failure) {
	t.Helper()

	select {
	case <-f.Safe:
	case <-time.After(soon):
		t.Fatal("the slots are quarantined for ever")
	}
}

// awaitRestart waits until a child of a later number is ready.
func (f *fixture) awaitRestart(t *testing.T, restarts int) {
	t.Helper()

	for deadline := time.Now().Add(soon); f.Restarts() < restarts || f.PID() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d restarts, want %d", f.Restarts(), restarts)
		}
	}
}

func TestTransfer(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "copy-1")
	err := f.Transfer(t.Context(), Transfer{Peer: "copy-1", Local: []int32{3, 5}, Remote: []int32{33, 55}, Timeout: soon})
	if err != nil {
		t.Fatal(err)
	}
	size := testLayout.Bytes()
	if f.memory[3*size] != 33 || f.memory[6*size-1] != 55 || f.memory[4*size] != 0 {
		t.Error("the memory has other bytes than the slots of the peer")
	}
}

// TestDeadlineQuarantines abandons a transfer that never ends. Its slot is refused until the child is gone; the next child has another
// name and no peers.
func TestDeadlineQuarantines(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "stuck")
	f.add(t, "copy")
	err := f.read(t, "stuck", 7, 1, 50*time.Millisecond)
	failure := expectFailure(t, err, ErrDeadline)
	if !slices.Equal(f.Quarantined(), []int32{7}) || !slices.Equal(failure.Slots, []int32{7}) {
		t.Errorf("quarantined %v, slots %v", f.Quarantined(), failure.Slots)
	}

	for _, write := range []bool{false, true} {
		err := f.Transfer(t.Context(), Transfer{Peer: "copy", Write: write, Local: []int32{7}, Remote: []int32{1}, Timeout: soon})
		if !errors.Is(err, ErrSlots) {
			t.Errorf("a transfer with a quarantined slot: %v", err)
		}
	}
	if err := f.read(t, "copy", 8, 2, soon); err != nil {
		t.Errorf("another slot: %v", err)
	}
	if isSafe(failure) {
		t.Error("the quarantine has ended while the transfer runs")
	}
	if err := f.RemovePeer(t.Context(), "stuck"); !errors.Is(err, ErrSlots) {
		t.Errorf("a peer is removed while NIXL uses it: %v", err)
	}

	f.Fence()
	expectSafe(t, failure)
	f.awaitRestart(t, 1)
	if len(f.Quarantined()) > 0 {
		t.Errorf("%v are quarantined after the fence", f.Quarantined())
	}
	if err := f.read(t, "copy", 7, 1, soon); !errors.Is(err, ErrNoPeer) {
		t.Errorf("a peer of the child before: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.started) != 2 || f.started[0] == f.started[1] {
		t.Errorf("agents %v", f.started)
	}
}

// TestLateSuccessEndsQuarantine abandons a transfer that ends later.
func TestLateSuccessEndsQuarantine(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "late")
	err := f.read(t, "late", 2, 9, 20*time.Millisecond)
	failure := expectFailure(t, err, ErrDeadline)
	if isSafe(failure) {
		t.Error("the quarantine ended before the transfer")
	}
	expectSafe(t, failure)
	if f.memory[2*testLayout.Bytes()] != 9 || len(f.Quarantined()) > 0 {
		t.Errorf("byte %d, quarantined %v", f.memory[2*testLayout.Bytes()], f.Quarantined())
	}
	if err := f.read(t, "late", 2, 10, soon); err != nil {
		t.Errorf("the slot again: %v", err)
	}
}

// TestFailedTransfers checks the errors of transfers that fail before and after their beginning. A dead peer ends the quarantine.
func TestFailedTransfers(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "refuses")
	f.add(t, "fails")
	err := f.read(t, "refuses", 1, 1, soon)
	if !errors.Is(err, ErrBackend) || errors.As(err, new(*Failure)) || len(f.Quarantined()) > 0 {
		t.Errorf("before the beginning: %v, quarantined %v", err, f.Quarantined())
	}

	err = f.read(t, "fails", 1, 1, soon)
	failure := expectFailure(t, err, ErrBackend)
	if !strings.Contains(err.Error(), "cause of the fake") || isSafe(failure) {
		t.Errorf("after the beginning: %v", err)
	}
	if err := f.PeerDied(t.Context(), "fails"); err != nil {
		t.Error(err)
	}
	expectSafe(t, failure)
}

// TestDeadPeerWhoseTransferRuns keeps the quarantine of an abandoned transfer until NIXL has reported its end.
func TestDeadPeerWhoseTransferRuns(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "stuck")
	err := f.read(t, "stuck", 4, 1, 20*time.Millisecond)
	failure := expectFailure(t, err, ErrDeadline)
	if err := f.PeerDied(t.Context(), "stuck"); err != nil {
		t.Fatal(err)
	}
	if isSafe(failure) {
		t.Error("the quarantine ended while NIXL may write")
	}
	if err := f.read(t, "stuck", 5, 1, soon); !errors.Is(err, ErrNoPeer) {
		t.Errorf("a transfer with a dead peer: %v", err)
	}
	f.add(t, "unstick")
	expectSafe(t, failure)
}

// TestCrash has the child end during transfers. All of them fail with its last output, and their slots are free.
func TestCrash(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "stuck")
	f.add(t, "crashes")
	err := f.read(t, "stuck", 1, 1, 20*time.Millisecond)
	quarantined := expectFailure(t, err, ErrDeadline)

	stuck := make(chan error, 1)
	go func() {
		err := f.read(t, "stuck", 2, 1, soon)
		stuck <- err
	}()
	err = f.read(t, "crashes", 3, 1, soon)
	for _, err := range []error{err, <-stuck} {
		// The second may have begun after the end.
		if errors.Is(err, ErrStarting) {
			continue
		}
		if !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "assertion of the fake") || !strings.Contains(err.Error(), "exit status 7") {
			t.Errorf("%v, want the end of the child with its output", err)
		}
		if errors.As(err, new(*Failure)) {
			t.Errorf("%v has a quarantine, but nothing is left that could write", err)
		}
	}
	expectSafe(t, quarantined)
	f.awaitRestart(t, 1)
	f.add(t, "copy")
	if err := f.read(t, "copy", 1, 1, soon); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

// TestStoppedChild has the agent itself notice that time is over, while the child does nothing. The fence works on a stopped process.
func TestStoppedChild(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "copy")
	freeze(t, f.PID())
	err := f.read(t, "copy", 1, 1, 50*time.Millisecond)
	failure := expectFailure(t, err, ErrDeadline)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.AddPeer(ctx, fakeEndpoint(t, "another", testLayout)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call of a stopped child: %v", err)
	}
	f.Fence()
	expectSafe(t, failure)
	f.awaitRestart(t, 1)
}

// freeze stops a process and waits until all its threads have stopped.
func freeze(t *testing.T, pid int) {
	t.Helper()

	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		running := slices.DeleteFunc(stats, func(path string) bool {
			text, _ := os.ReadFile(path)
			_, after, _ := strings.Cut(string(text), ") ")
			return strings.HasPrefix(after, "T")
		})
		if len(stats) > 0 && len(running) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d did not stop", pid)
		}
	}
}

// TestQueuedTransferIsNotBegunLate has a transfer wait behind one that blocks the child. Its time is over before it begins, so its slot
// becomes free without a fence.
func TestQueuedTransferIsNotBegunLate(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "blocks")
	f.add(t, "copy")
	first := make(chan error, 1)
	go func() {
		err := f.read(t, "blocks", 1, 1, soon)
		first <- err
	}()
	for len(f.inUse()) == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond) // the frame has arrived by now, or the test shows less

	err := f.read(t, "copy", 2, 1, 50*time.Millisecond)
	if err := <-first; err != nil {
		t.Error(err)
	}
	var failure *Failure
	if errors.As(err, &failure) {
		expectSafe(t, failure)
	}
	if !errors.Is(err, ErrDeadline) || f.memory[2*testLayout.Bytes()] != 0 {
		t.Errorf("%v, byte %d", err, f.memory[2*testLayout.Bytes()])
	}
}

// inUse returns the slots of all transfers.
func (f *fixture) inUse() (slots []int32) {
	s := f.sessionOrNil()
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.slots.uses {
		slots = append(slots, slot)
	}
	return slots
}

// Quarantined returns the slots that may still be written or read, sorted.
func (h *Helper) Quarantined() []int32 {
	s := h.sessionOrNil()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots.quarantined()
}

// quarantined returns the slots of transfers that were abandoned or have failed, sorted.
func (t *slotTable) quarantined() []int32 {
	var slots []int32
	for _, x := range t.transfers {
		if x.state != waiting {
			slots = append(slots, x.Local...)
		}
	}
	slices.Sort(slots)
	return slices.Compact(slots)
}

func TestCancelledContext(t *testing.T) {
	f := newFixture(t, nil)
	f.add(t, "stuck")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := f.Transfer(ctx, Transfer{Peer: "stuck", Local: []int32{1}, Remote: []int32{1}, Timeout: soon})
	expectFailure(t, err, context.DeadlineExceeded)
	if !slices.Equal(f.Quarantined(), []int32{1}) {
		t.Errorf("quarantined %v", f.Quarantined())
	}
}

// TestReconnects replaces the child after the configured number of removed peers.
func TestReconnects(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxReconnects = 2 })
	pid := f.PID()
	for range 2 {
		f.add(t, "copy")
		if err := f.RemovePeer(t.Context(), "copy"); err != nil {
			t.Fatal(err)
		}
	}
	f.awaitRestart(t, 1)
	if f.PID() == pid {
		t.Error("the child is the same")
	}
}

// TestReplacementWaitsForTransfers has a transfer run when the child is worn. It ends well, new ones are refused, and then the child is
// replaced.
func TestReplacementWaitsForTransfers(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxReconnects = 1 })
	f.add(t, "late")
	f.add(t, "copy")
	running := make(chan error, 1)
	go func() {
		err := f.read(t, "late", 1, 1, soon)
		running <- err
	}()
	for len(f.inUse()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := f.RemovePeer(t.Context(), "copy"); err != nil {
		t.Fatal(err)
	}
	if err := f.read(t, "late", 2, 1, soon); !errors.Is(err, ErrStarting) {
		t.Errorf("a new transfer: %v", err)
	}
	if err := <-running; err != nil {
		t.Errorf("the transfer that ran: %v", err)
	}
	f.awaitRestart(t, 1)
	f.Close()
	if err := f.read(t, "late", 2, 1, soon); !errors.Is(err, ErrEnded) {
		t.Errorf("after Close: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.MaxTransfers = 1 })
	other := testLayout
	other.Inner = 64
	_, err := f.AddPeer(t.Context(), fakeEndpoint(t, "copy", other))
	if !errors.Is(err, block.ErrLayout) || !strings.Contains(err.Error(), "inner is 128 here and 64 there") {
		t.Errorf("another layout: %v", err)
	}
	if _, err := f.AddPeer(t.Context(), []byte(`{"version":1}`)); !errors.Is(err, ErrInvalid) {
		t.Errorf("an endpoint without fields: %v", err)
	}

	f.add(t, "copy")
	f.add(t, "stuck")
	for name, x := range map[string]Transfer{
		"timeout":     {Peer: "copy", Local: []int32{1}, Remote: []int32{1}},
		"same number": {Peer: "copy", Local: []int32{1}, Remote: []int32{1, 2}, Timeout: soon},
		"local slot":  {Peer: "copy", Local: []int32{testSlots}, Remote: []int32{1}, Timeout: soon},
		"twice":       {Peer: "copy", Local: []int32{1, 1}, Remote: []int32{1, 2}, Timeout: soon},
	} {
		if err := f.Transfer(t.Context(), x); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := f.read(t, "stranger", 1, 1, soon); !errors.Is(err, ErrNoPeer) {
		t.Errorf("a peer that is not there: %v", err)
	}

	err = f.read(t, "stuck", 1, 1, 10*time.Millisecond)
	expectFailure(t, err, ErrDeadline)
	if err := f.read(t, "copy", 2, 1, soon); !errors.Is(err, ErrTooMany) {
		t.Errorf("beyond the bound: %v", err)
	}
}

// TestStartErrors has errors that name what to change.
func TestStartErrors(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	memory, _ := mapped(t, testSlots*testLayout.Bytes())
	good := Config{
		Program: program, Library: "none", Name: "node", Layout: testLayout, Slots: testSlots, Env: []string{fakeChild + "=1"},
		Backends: []wire.Backend{{Plugin: "FAKE"}}, Memory: memory,
	}
	for name, change := range map[string]func(c *Config){
		"no such file":   func(c *Config) { c.Program = "/nowhere/stator-transfer" },
		"backends":       func(c *Config) { c.Backends = nil },
		"stride":         func(c *Config) { c.Stride = 8 },
		"layout":         func(c *Config) { c.Layout.DType = "" },
		"last output":    func(c *Config) { c.Env = nil }, // the test binary itself, which has no flag --library
		"exit status":    func(c *Config) { c.Program = "/bin/false" },
		"name has":       func(c *Config) { c.Name = strings.Repeat("x", 300) },
		"must be from 1": func(c *Config) { c.Slots = 0 },
	} {
		c := good
		change(&c)
		if h, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
			if h != nil {
				h.Close()
			}
		}
	}
}
