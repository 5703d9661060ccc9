package disk

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// fullFolder is the environment variable by which TestFullFileSystem starts its own binary as a process that may mount a file system.
const fullFolder = "STATOR_TEST_FULL_DISK"

// TestFullFileSystem fills the file system of a tier, whose files have their room already. So blocks are stored and loaded, until the log
// must be written again, for which there is no room: then blocks are missing after a restart, which needs room as well.
func TestFullFileSystem(t *testing.T) {
	if dir := os.Getenv(fullFolder); dir != "" {
		fullDisk(t, dir)
		return
	}

	cmd := exec.Command(os.Args[0], "-test.run=^TestFullFileSystem$", "-test.timeout=60s", "-test.v")
	cmd.Env = append(os.Environ(), fullFolder+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this host lets no process have namespaces of its own, in which it could mount a small file system: %v", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("%s", out)
	}
}

func fullDisk(t *testing.T, dir string) {
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m")
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skipf("this host lets no process mount a file system in namespaces of its own: %v", err)
	}
	if err != nil {
		t.Fatalf("mount a file system of 4 MiB: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // it ends with the process in any case
	const slots = 16
	cfg := config(filepath.Join(dir, "tier"), slots)
	d := open(t, cfg)
	ballast := fillDisk(t, dir)

	stored := 0
	for ; d.Stats().LogErrors == 0; stored++ {
		if stored == 30_000 {
			t.Fatalf("the log goes on: %+v", d.Stats())
		}
		store(t, d, stored)
	}
	if stored < 10_000 {
		t.Errorf("the log has room for %d records only", stored)
	}
	for range 2 * slots {
		store(t, d, stored)
		stored++
	}
	for n := stored - slots; n < stored; n++ {
		if err := load(t, d, n); err != nil {
			t.Errorf("block %d: %v", n, err)
		}
	}
	if s := d.Stats(); !errors.Is(s.LastError, syscall.ENOSPC) || s.Failing {
		t.Errorf("%+v", s)
	}
	d.Close()
	if _, err := Open(cfg); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "rewrite the index: reserve") {
		t.Errorf("a restart without room: %v", err)
	}

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	d = open(t, cfg)
	for n := range stored { // load compares the bytes of the blocks that are there
		if err := load(t, d, n); err == nil && n >= stored-slots {
			t.Errorf("block %d was in no log, and is there after a restart", n)
		}
	}
	for n := range slots {
		store(t, d, stored+n)
	}
	d.Close()
	d = open(t, cfg)
	for n := range slots {
		if err := load(t, d, stored+n); err != nil {
			t.Errorf("block %d after a restart with room: %v", stored+n, err)
		}
	}
}

// fillDisk writes a file until the file system is full, and returns its path.
func fillDisk(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, strings.NewReader(strings.Repeat("x", 8<<20))); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the file system is not full: %v", err)
	}
	return path
}
