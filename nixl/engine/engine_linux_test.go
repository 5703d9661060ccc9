package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMemoryMustBeSealed refuses memory whose size could change under the mapping, and memory that peers cannot write to.
func TestMemoryMustBeSealed(t *testing.T) {
	const size = 8192
	for name, c := range map[string]struct {
		seals, size int
		want        string
	}{
		"sealed":         {seals, size, ""},
		"without seals":  {0, size, "seal it"},
		"can shrink":     {unix.F_SEAL_GROW | unix.F_SEAL_SEAL, size, "seal it"},
		"can be changed": {unix.F_SEAL_GROW | unix.F_SEAL_SHRINK, size, "seal it"},
		"not writable":   {seals | unix.F_SEAL_WRITE, size, "sealed against writes"},
		"too small":      {seals, size - 1, "8191 bytes, fewer than the 8192"},
	} {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "test")
		if err := file.Truncate(int64(c.size)); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, c.seals); err != nil {
			t.Fatal(err)
		}

		m, err := mapSealed(file, size)
		if c.want == "" {
			if err != nil || len(m.Bytes()) != size {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		file.Close()
	}

	file, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := mapSealed(file, size); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("a plain file: %v", err)
	}
}

// TestNew has an error that states what to install.
func TestNew(t *testing.T) {
	if _, err := New("/nowhere"); err == nil || !strings.Contains(err.Error(), "nixl-cu12") {
		t.Errorf("%v", err)
	}
}
