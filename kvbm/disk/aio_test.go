//go:build linux && (amd64 || arm64)

package disk

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// openDirect opens a file of so many pages for asynchronous I/O.
func openDirect(t *testing.T, pages, most int) *aioFile {
	t.Helper()
	before := goleak.IgnoreCurrent()
	f, err := openBlocks(filepath.Join(t.TempDir(), "file"), true)
	if errors.Is(err, syscall.EINVAL) {
		t.Skipf("this file system has no O_DIRECT: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(int64(pages) * pageBytes); err != nil {
		t.Fatal(err)
	}
	a, err := openAIO(f, most)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t, before)
	})
	return a
}

// page returns memory that O_DIRECT accepts.
func page(t *testing.T, pages int) []byte {
	t.Helper()
	b, err := mapBuffer(pages * pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmapBuffer(b) })
	return b
}

// TestAIO: many goroutines write and read pages, with fewer requests than there are goroutines.
func TestAIO(t *testing.T) {
	const pages, goroutines, rounds = 64, 16, 200
	a := openDirect(t, pages, 4)
	var wait sync.WaitGroup
	for g := range goroutines {
		written, read := page(t, 2), page(t, 2)
		wait.Go(func() {
			for range rounds {
				n := 1 + rand.IntN(2)
				at := int64(g*pages/goroutines+rand.IntN(2)) * pageBytes
				for i := range n * pageBytes {
					written[i] = byte(rand.Uint32())
				}
				if _, err := a.WriteAt(written[:n*pageBytes], at); err != nil {
					t.Error(err)
				}
				if _, err := a.ReadAt(read[:n*pageBytes], at); err != nil || !bytes.Equal(read[:n*pageBytes], written[:n*pageBytes]) {
					t.Errorf("at %d: %v, or other bytes", at, err)
				}
			}
		})
	}
	wait.Wait()
}

// TestAIOErrors: errors of the kernel and the end of the file appear as the errors of a read.
func TestAIOErrors(t *testing.T) {
	a := openDirect(t, 2, 1)
	b := page(t, 3)
	if n, err := a.ReadAt(b, 0); n != 2*pageBytes || !errors.Is(err, io.EOF) {
		t.Errorf("beyond the end: %d bytes, %v", n, err)
	}
	if n, err := a.ReadAt(b, 9*pageBytes); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %d bytes, %v", n, err)
	}
	if _, err := a.WriteAt(b, -pageBytes); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("before the file: %v", err)
	}

	path := filepath.Join(t.TempDir(), "read-only")
	if err := os.WriteFile(path, make([]byte, pageBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := openAIO(f, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.WriteAt(b[:pageBytes], 0); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a file that is open for reading: %v", err)
	}
}
