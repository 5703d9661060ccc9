package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/kvbm/pool"
	"github.com/stator-project/stator/test/testkit"
)

// faulty is a file whose reads and writes fail or wait.
type faulty struct {
	file
	write, read atomic.Pointer[error]
	gate        atomic.Pointer[chan struct{}] // reads and writes wait until it is closed
	waiting     atomic.Int32
}

func (f *faulty) pass(fail *atomic.Pointer[error]) error {
	if gate := f.gate.Load(); gate != nil {
		f.waiting.Add(1)
		<-*gate
		f.waiting.Add(-1)
	}
	if err := fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *faulty) WriteAt(b []byte, at int64) (int, error) {
	if err := f.pass(&f.write); err != nil {
		n, _ := f.file.WriteAt(b[:len(b)/2/pageBytes*pageBytes], at) // a full disk takes a part of it
		return n, err
	}
	return f.file.WriteAt(b, at)
}

func (f *faulty) ReadAt(b []byte, at int64) (int, error) {
	if err := f.pass(&f.read); err != nil {
		return 0, err
	}
	return f.file.ReadAt(b, at)
}

// withFault returns the configuration of a tier whose file of that name is faulty.
func withFault(cfg Config, name string) (Config, *faulty) {
	f := &faulty{}
	cfg.files = realFiles()
	cfg.files.wrap = func(n string, opened file) file {
		if n != name {
			return opened
		}
		f.file = opened
		return f
	}
	return cfg, f
}

// TestFullDisk lets writes fail: the tier refuses blocks for a time, loads go on, and it recovers.
func TestFullDisk(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		t.Run(cause.Error(), func(t *testing.T) {
			now := time.Now()
			cfg, f := withFault(config(t.TempDir(), 4), blocksName)
			cfg.Now = func() time.Time { return now }
			d := open(t, cfg)
			store(t, d, 1)

			f.write.Store(&cause)
			data := content(key(2), 0, testBlock)
			if err := d.Store(t.Context(), key(2), data, 0); !errors.Is(err, cause) {
				t.Fatalf("%v, want %v", err, cause)
			}
			for range 10 {
				if err := d.Store(t.Context(), key(2), data, 0); !errors.Is(err, ErrFailing) || !errors.Is(err, cause) {
					t.Fatalf("right afterwards: %v", err)
				}
			}
			if s := d.Stats(); !s.Failing || s.WriteErrors != 1 || !errors.Is(s.LastError, cause) || s.Slots.Reset != 3 {
				t.Errorf("%+v", s)
			}
			if err := load(t, d, 1); err != nil {
				t.Errorf("loads go on: %v", err)
			}

			now = now.Add(leastPause)
			if err := d.Store(t.Context(), key(2), data, 0); !errors.Is(err, cause) || errors.Is(err, ErrFailing) {
				t.Errorf("after the pause: %v, want a write", err)
			}
			now = now.Add(leastPause)
			if err := d.Store(t.Context(), key(2), data, 0); !errors.Is(err, ErrFailing) {
				t.Errorf("the second pause is longer: %v", err)
			}

			f.write.Store(nil)
			now = now.Add(leastPause)
			store(t, d, 2)
			store(t, d, 3)
			if s := d.Stats(); s.Failing {
				t.Errorf("after a success: %+v", s)
			}
		})
	}
}

// TestUnreadableBlock is dropped, and its slot can be used again. The tier is degraded for a minute.
func TestUnreadableBlock(t *testing.T) {
	now := time.Now()
	cfg, f := withFault(config(t.TempDir(), 1), blocksName)
	cfg.Now = func() time.Time { return now }
	d := open(t, cfg)
	store(t, d, 1)

	var cause error = syscall.EIO
	f.read.Store(&cause)
	if err := load(t, d, 1); !errors.Is(err, cause) {
		t.Errorf("%v, want %v", err, cause)
	}
	f.read.Store(nil)
	if err := load(t, d, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v, want %v", err, ErrNotFound)
	}
	store(t, d, 2)
	if err := load(t, d, 2); err != nil {
		t.Error(err)
	}
	now = now.Add(degradedTime - 1)
	if s := d.Stats(); s.ReadErrors != 1 || !s.Degraded || s.Failing {
		t.Errorf("%+v", s)
	}
	now = now.Add(1)
	if s := d.Stats(); s.Degraded || !errors.Is(s.LastError, cause) {
		t.Errorf("%+v", s)
	}
}

// TestSlowDisk lets all reads and writes wait: callers return at their deadlines, the next ones at once, and nothing reads or
// writes the memory of callers that returned. Afterwards all goes on.
func TestSlowDisk(t *testing.T) {
	cfg, f := withFault(config(t.TempDir(), 8), blocksName)
	d := open(t, cfg)
	store(t, d, 1)

	gate := make(chan struct{})
	f.gate.Store(&gate)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // all calls must begin before
	defer cancel()
	began := time.Now()

	var wait sync.WaitGroup
	buffers := make([][]byte, cfg.Workers+cfg.Queue)
	for i := range buffers {
		buffers[i] = make([]byte, testBlock)
		wait.Go(func() {
			if err := d.Load(ctx, key(1), buffers[i]); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("load: %v", err)
			}
		})
		wait.Go(func() {
			data := content(key(10+i), 0, testBlock)
			if err := d.Store(ctx, key(10+i), data, 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("store: %v", err)
			}
			clear(data) // the caller uses its memory for something else
		})
	}
	wait.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("callers waited for %v", took)
	}

	if err := load(t, d, 1); !errors.Is(err, ErrBusy) {
		t.Errorf("load with a full queue: %v", err)
	}
	if err := d.Store(t.Context(), key(99), buffers[0], 0); !errors.Is(err, ErrBusy) {
		t.Errorf("store with a full queue: %v", err)
	}
	if n := f.waiting.Load(); n != int32(2*cfg.Workers) {
		t.Errorf("%d goroutines wait for the disk, want %d", n, 2*cfg.Workers)
	}

	f.gate.Store(nil)
	close(gate)
	testkit.Eventually(t, "free requests", func() bool { return len(d.reads.free) == len(buffers) && len(d.writes.free) == len(buffers) })
	for i, b := range buffers {
		if !bytes.Equal(b, make([]byte, testBlock)) {
			t.Errorf("the memory of caller %d was written after its return", i)
		}
		if err := load(t, d, 10+i); err != nil && !errors.Is(err, ErrNotFound) {
			t.Errorf("block %d: %v", 10+i, err)
		}
	}
	if s := d.Stats(); s.Expired != uint64(2*len(buffers)) || s.Busy != 2 || s.Slots.Active+s.Slots.Partial+s.Slots.Complete != 0 {
		t.Errorf("%+v", s)
	}
	if err := load(t, d, 1); err != nil {
		t.Error(err)
	}
}

// TestReadsPassWritesThatWait has all writing goroutines wait for the disk.
func TestReadsPassWritesThatWait(t *testing.T) {
	cfg, f := withFault(config(t.TempDir(), 8), blocksName)
	d := open(t, cfg)
	store(t, d, 1)

	gate := make(chan struct{})
	f.gate.Store(&gate)
	var wait sync.WaitGroup
	for i := range cfg.Workers {
		wait.Go(func() { store(t, d, 10+i) })
	}
	testkit.Eventually(t, "writes", func() bool { return f.waiting.Load() == int32(cfg.Workers) })
	f.gate.Store(nil)
	if err := load(t, d, 1); err != nil {
		t.Error(err)
	}
	close(gate)
	wait.Wait()
}

// TestFlushDropsWritesInProgress flushes while a block is written.
func TestFlushDropsWritesInProgress(t *testing.T) {
	cfg, f := withFault(config(t.TempDir(), 2), blocksName)
	d := open(t, cfg)
	gate := make(chan struct{})
	f.gate.Store(&gate)
	result := make(chan error)
	go func() { result <- d.Store(context.Background(), key(1), content(key(1), 0, testBlock), 0) }()
	testkit.Eventually(t, "a write", func() bool { return f.waiting.Load() == 1 })

	if _, err := d.Flush(); err != nil {
		t.Error(err)
	}
	close(gate)
	if err := <-result; !errors.Is(err, ErrFlushed) || d.Has(key(1)) {
		t.Errorf("%v; the block is there: %v", err, d.Has(key(1)))
	}
}

// TestSlowLog lets the log wait: a bounded number of records waits with it, and others are left out.
func TestSlowLog(t *testing.T) {
	cfg, f := withFault(config(t.TempDir(), 4), indexName)
	d := open(t, cfg)
	store(t, d, 1)
	gate := make(chan struct{})
	f.gate.Store(&gate)

	var wait sync.WaitGroup
	wait.Go(func() { d.Pin(key(1), time.Time{}) })
	testkit.Eventually(t, "the log", func() bool { return f.waiting.Load() == 1 })
	for range maxBatch + 10 {
		d.Pin(key(1), time.Time{})
	}
	if s := d.Stats(); s.LogLost != 10 {
		t.Errorf("%+v", s)
	}
	close(gate)
	wait.Wait()
	d.Close()
	if d = open(t, cfg); d.Stats().Restored != 1 {
		t.Errorf("%+v", d.Stats())
	}
}

// TestLogErrors loses records and no more.
func TestLogErrors(t *testing.T) {
	cfg, f := withFault(config(t.TempDir(), 4), indexName)
	d := open(t, cfg)
	store(t, d, 1)
	var cause error = syscall.ENOSPC
	f.write.Store(&cause)
	store(t, d, 2)
	if s := d.Stats(); s.LogErrors != 1 || s.LogLost != 1 || !errors.Is(s.LastError, cause) {
		t.Errorf("%+v", s)
	}
	f.write.Store(nil)
	store(t, d, 3)
	d.Close()

	d = open(t, cfg)
	for n, want := range map[int]error{1: nil, 2: ErrNotFound, 3: nil} {
		if err := load(t, d, n); !errors.Is(err, want) {
			t.Errorf("block %d: %v, want %v", n, err, want)
		}
	}
}

// TestWithoutDirect opens a tier whose file system refuses O_DIRECT, at open or at the first read.
func TestWithoutDirect(t *testing.T) {
	cfg := config(t.TempDir(), 4)
	cfg.files = realFiles()
	cfg.files.openBlocks = func(path string, direct bool) (*os.File, error) {
		if direct {
			return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EINVAL}
		}
		return openBlocks(path, false)
	}
	d := open(t, cfg)
	store(t, d, 1)
	if err := load(t, d, 1); err != nil || d.Stats().Direct {
		t.Errorf("%v, direct: %v", err, d.Stats().Direct)
	}
}

// TestTooLarge asks for more than the file system has. Nothing is left of the attempt.
func TestTooLarge(t *testing.T) {
	cfg := config(t.TempDir(), 4)
	f, err := os.Create(cfg.Dir + "/probe")
	if err != nil {
		t.Fatal(err)
	}
	_, available, err := space(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()

	cfg.Bytes = 2 * available
	cfg.BlockBytes = maxBlockBytes
	_, err = Open(cfg)
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "bytes are needed and") {
		t.Errorf("%v", err)
	}
	info, err := os.Stat(cfg.Dir + "/" + blocksName)
	if err != nil || info.Size() != 0 {
		t.Errorf("%v, %v", info, err)
	}
	open(t, config(cfg.Dir, 4))
}

// TestTwoOwners opens one folder twice. The error names the process that has it.
func TestTwoOwners(t *testing.T) {
	cfg := config(t.TempDir(), 4)
	d := open(t, cfg)
	_, err := Open(cfg)
	if want := fmt.Sprintf("process %d", os.Getpid()); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	d.Close()
	open(t, cfg)
}

// TestCallerReturnsDuringEviction ends the context of a Store while the function for evicted blocks runs. The caller then uses its
// memory for something else, which must not become the block.
func TestCallerReturnsDuringEviction(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan struct{})
	cfg := config(t.TempDir(), 1)
	cfg.Evicted = func(pool.Evicted, []byte) {
		cancel()
		<-returned
	}
	d := open(t, cfg)
	store(t, d, 1)

	data := content(key(2), 0, testBlock)
	if err := d.Store(ctx, key(2), data, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	clear(data)
	close(returned)
	testkit.Eventually(t, "the slot", func() bool { return d.Stats().Slots.Reset == 1 })
	if d.Has(key(2)) {
		t.Error("the block is there without its bytes")
	}
}
