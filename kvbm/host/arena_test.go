//go:build linux

package host

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func newArena(t testing.TB, cfg Config) *Arena {
	t.Helper()
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func awaitReady(t testing.TB, a *Arena) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); a.ReadyBytes() < a.Bytes(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d bytes are ready", a.ReadyBytes(), a.Bytes())
		}
	}
}

// TestSlots writes all slots while the pages are touched. No slot reaches into another one, and no byte changes.
func TestSlots(t *testing.T) {
	defer goleak.VerifyNone(t)
	a := newArena(t, Config{Slots: 40, SlotBytes: 1<<20 - 100})
	for i := range a.Slots() {
		copy(a.Slot(i), bytes.Repeat([]byte{byte(i + 1)}, a.SlotBytes()))
	}
	awaitReady(t, a)
	for i := range a.Slots() {
		if s := a.Slot(i); len(s) != a.SlotBytes() || cap(s) != len(s) || !bytes.Equal(s, bytes.Repeat([]byte{byte(i + 1)}, len(s))) {
			t.Errorf("slot %d has %d bytes, or others than were written", i, len(s))
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// TestHugePages has them exactly if the node has enough, and ordinary pages otherwise.
func TestHugePages(t *testing.T) {
	text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if err != nil {
		text = []byte("0")
	}
	var free int
	if _, err := fmt.Sscan(string(text), &free); err != nil {
		t.Fatal(err)
	}

	a := newArena(t, Config{Slots: 3, SlotBytes: 1 << 20})
	defer a.Close()
	t.Logf("%d free huge pages; the arena has huge pages: %v", free, a.HugePages())
	if want := free >= 2; a.HugePages() != want {
		t.Errorf("huge pages: %v, want %v", a.HugePages(), want)
	}
	b, err := Open(a.File(), Config{Slots: 3, SlotBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.HugePages() != a.HugePages() {
		t.Errorf("the other side has huge pages: %v", b.HugePages())
	}

	c := newArena(t, Config{Slots: 3, SlotBytes: 1 << 20, NoHugePages: true})
	defer c.Close()
	if c.HugePages() {
		t.Error("huge pages against the configuration")
	}
	awaitReady(t, a)
	awaitReady(t, c)
}

// TestPassedFile sends the file through a socket. Both sides have the same memory, also after the owner's Close, and no side can
// change its size.
func TestPassedFile(t *testing.T) {
	cfg := Config{Slots: 4, SlotBytes: 5000}
	a := newArena(t, cfg)
	file := pass(t, a.File())
	b, err := Open(file, cfg)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()

	copy(a.Slot(3), "from the owner")
	if !bytes.HasPrefix(b.Slot(3), []byte("from the owner")) {
		t.Errorf("%q", b.Slot(3)[:20])
	}
	copy(b.Slot(0), "from the other side")
	if !bytes.HasPrefix(a.Slot(0), []byte("from the other side")) {
		t.Errorf("%q", a.Slot(0)[:20])
	}
	for _, size := range []int64{0, b.Bytes() + hugeBytes} {
		if err := b.File().Truncate(size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}

	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if !bytes.HasPrefix(b.Slot(3), []byte("from the owner")) {
		t.Errorf("after the owner's Close: %q", b.Slot(3)[:20])
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// pass sends a file through a socket and returns the received one.
func pass(t *testing.T, file *os.File) *os.File {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	out, err := net.DialUnix("unix", nil, listener.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()

	if _, _, err := out.WriteMsgUnix([]byte{0}, unix.UnixRights(int(file.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := in.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		t.Fatal(messages, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatal(fds, err)
	}
	return os.NewFile(uintptr(fds[0]), "received")
}

// TestForeignFiles are refused before they are mapped.
func TestForeignFiles(t *testing.T) {
	cfg := Config{Slots: 4, SlotBytes: 4096}
	memfd := func(size int64, flags, seals int) *os.File {
		fd, err := unix.MemfdCreate("test", flags)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "test")
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); seals != 0 && err != nil {
			t.Fatal(err)
		}
		return f
	}
	ordinary, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	if err := ordinary.Truncate(4 * 4096); err != nil {
		t.Fatal(err)
	}
	arena := newArena(t, Config{Slots: 4, SlotBytes: 4097, NoHugePages: true})
	defer arena.Close()

	sealing := unix.MFD_ALLOW_SEALING
	for name, c := range map[string]struct {
		file *os.File
		want error
		text string
	}{
		"an ordinary file":    {ordinary, ErrSeals, "no memfd"},
		"no seals":            {memfd(4*4096, 0, 0), ErrSeals, "F_SEAL_GROW"},
		"it could shrink":     {memfd(4*4096, sealing, unix.F_SEAL_GROW), ErrSeals, "F_SEAL_SHRINK"},
		"it could grow":       {memfd(4*4096, sealing, unix.F_SEAL_SHRINK), ErrSeals, "F_SEAL_GROW"},
		"too short":           {memfd(3*4096, sealing, seals), ErrSize, "12288 bytes, and the slots need 16384"},
		"too long":            {memfd(5*4096, sealing, seals), ErrSize, "20480 bytes"},
		"slots of other size": {arena.File(), ErrSize, "same configuration"},
	} {
		a, err := Open(c.file, cfg)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			a.Close()
		}
	}
}

func TestInvalidConfigs(t *testing.T) {
	for _, cfg := range []Config{{}, {Slots: 1}, {SlotBytes: 1}, {Slots: -1, SlotBytes: 1}, {Slots: maxSlots + 1, SlotBytes: 1}, {Slots: 1, SlotBytes: maxSlotBytes + 1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v: made", cfg)
		}
		if _, err := Open(os.Stdin, cfg); err == nil {
			t.Errorf("%+v: opened", cfg)
		}
	}
	if _, err := New(Config{Slots: maxSlots, SlotBytes: maxSlotBytes}); err == nil {
		t.Error("2^58 bytes: made")
	}
}

// TestCloseWhilePagesAreTouched does not wait for all of them.
func TestCloseWhilePagesAreTouched(t *testing.T) {
	defer goleak.VerifyNone(t)
	for range 20 {
		if err := newArena(t, Config{Slots: 64, SlotBytes: 1 << 20}).Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkCopy copies blocks into slots, and into ordinary memory of the same size.
func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{64 << 10, 512 << 10, 2 << 20} {
		slots := 64 << 20 / size
		a := newArena(b, Config{Slots: slots, SlotBytes: size})
		awaitReady(b, a)
		ordinary := bytes.Repeat([]byte{1}, slots*size)
		src := bytes.Repeat([]byte{2}, size)
		targets := map[string]func(i int) []byte{
			"slots": a.Slot, "ordinary": func(i int) []byte { return ordinary[i*size : (i+1)*size] },
		}
		for _, name := range []string{"slots", "ordinary"} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(size))
				i := 0
				for b.Loop() {
					copy(targets[name](i%slots), src)
					i++
				}
			})
		}
		a.Close()
	}
}

// TestIndex finds the slots of slices, and refuses slices that begin elsewhere.
func TestIndex(t *testing.T) {
	a := newArena(t, Config{Slots: 3, SlotBytes: 5000})
	other := newArena(t, Config{Slots: 3, SlotBytes: 5000})
	defer func() { _ = errors.Join(a.Close(), other.Close()) }()
	for i := range 3 {
		if got, ok := a.Index(a.Slot(i)[:100]); !ok || got != i {
			t.Errorf("slot %d is %d, %v", i, got, ok)
		}
		if got, ok := a.Index(other.Slot(i)); ok {
			t.Errorf("slot %d of another arena is %d", i, got)
		}
	}
	for name, data := range map[string][]byte{
		"the middle of a slot": a.Slot(1)[1:], "the heap": make([]byte, 5000), "nothing": nil, "what follows the slots": a.memory[3*8192:],
	} {
		if got, ok := a.Index(data); ok {
			t.Errorf("%s is slot %d", name, got)
		}
	}
}
