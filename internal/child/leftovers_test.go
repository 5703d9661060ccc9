package child_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/test/testkit"
)

// share makes and opens files of shared memory whose names begin with the prefix, and sockets in the folder, and goes on until it
// is killed. Its child makes some too, in a session of its own, and outlives it.
func share(role, prefix, sockets string) {
	for left(prefix+"held") == nil { // the test makes it last, when the holder has begun
		time.Sleep(time.Millisecond)
	}
	name := strings.ReplaceAll(role, " ", "-")
	file := open(prefix+name+"-mapped", os.O_RDWR|os.O_CREATE)
	if err := file.Truncate(4096); err != nil {
		panic(err)
	}
	_, err := syscall.Mmap(int(file.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	_ = file.Close()
	kept := []*os.File{
		open(prefix+name+"-open", os.O_RDWR|os.O_CREATE),
		open(prefix+name+"-borrowed", os.O_RDWR|os.O_CREATE),
		open(prefix+name+"-replaced", os.O_RDWR|os.O_CREATE),
		open(prefix+"before", os.O_RDWR), // of the test, from before
		open(prefix+"model", os.O_RDONLY),
		open(prefix+"held", os.O_RDWR), // of the test, which has it open to the end
		open(prefix+"lent", os.O_RDWR), // of the test, which closes it later
	}
	l, err := net.Listen("unix", filepath.Join(sockets, name))
	if err != nil {
		panic(err)
	}

	if role == "sharer" {
		kid := exec.Command(os.Args[0], prefix, sockets)
		kid.Env = append(os.Environ(), as("sharer's child"))
		kid.Stdout = os.Stdout
		kid.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := kid.Start(); err != nil {
			panic(err)
		}
		fmt.Println("child", kid.Process.Pid)
	} else {
		fmt.Println("up")
	}
	signal.Ignore(syscall.SIGTERM)
	time.Sleep(time.Hour)
	runtime.KeepAlive(kept)
	runtime.KeepAlive(l)
}

func open(path string, how int) *os.File {
	file, err := os.OpenFile(path, how, 0o600)
	if err != nil {
		panic(err)
	}
	return file
}

// TestLeftoversAreRemoved kills a program that has files of shared memory and sockets, or the process that started it. The files
// that it and its child have made are removed. Files that were there before, that others have open, or that were only read stay.
func TestLeftoversAreRemoved(t *testing.T) {
	needsProc(t)
	for _, kill := range []string{"program", "parent", "stop"} {
		t.Run(kill, func(t *testing.T) {
			t.Parallel()
			prefix := fmt.Sprintf("/dev/shm/stator-test-%d-%s-", os.Getpid(), kill)
			sockets := t.TempDir()
			t.Cleanup(func() { removeAll(prefix) })
			_ = open(prefix+"before", os.O_RDWR|os.O_CREATE).Close()

			p, l, lent := startSharer(t, kill, prefix, sockets)
			pids := family(t, l, map[string]int{"program": 1, "stop": 1, "parent": 2}[kill])
			staying := []string{"before", "held", "lent", "model", "sharer-borrowed", "sharer-replaced"}
			made := []string{"sharer's-child-borrowed", "sharer's-child-mapped", "sharer's-child-open", "sharer's-child-replaced", "sharer-mapped", "sharer-open"}
			if got, want := left(prefix), slices.Sorted(slices.Values(slices.Concat(staying, made))); !slices.Equal(got, want) {
				t.Fatalf("there are %q, want %q", got, want)
			}
			time.Sleep(time.Second) // the holder looks four times
			later(t, prefix, lent)

			switch kill {
			case "stop":
				p.Stop(t.Context())
			default:
				if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("left are %q, want %q", left(prefix), staying)
				}
			})
			testkit.Eventually(t, "all is removed", func() bool {
				there, err := os.ReadDir(sockets)
				return err == nil && len(there) == 0 && slices.Equal(left(prefix), staying)
			})
			for _, pid := range pids {
				testkit.Eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return gone(pid) })
			}
		})
	}
}

// startSharer starts a sharer behind a holder, or behind a parent with a holder. The test has one of its files open.
func startSharer(t *testing.T, kill, prefix, sockets string) (p *child.Process, l *lines, lent *os.File) {
	t.Helper()
	if kill == "parent" {
		p, l = start(t, child.Config{}, "sharing keeper", prefix, sockets)
		l.awaitAny(t, "child ") // its holder has begun
	} else {
		p, l = startHeld(t, child.Config{StopTime: 50 * time.Millisecond}, "sharer", prefix, sockets)
	}

	_ = open(prefix+"model", os.O_RDWR|os.O_CREATE).Close()
	lent = open(prefix+"lent", os.O_RDWR|os.O_CREATE)
	held := open(prefix+"held", os.O_RDWR|os.O_CREATE)
	t.Cleanup(func() { _ = held.Close() })
	return p, l, lent
}

// later changes files of the sharer after the holder has found them: it opens one, and replaces another.
func later(t *testing.T, prefix string, lent *os.File) {
	t.Helper()
	_ = lent.Close()
	borrowed := open(prefix+"sharer-borrowed", os.O_RDONLY)
	t.Cleanup(func() { _ = borrowed.Close() })
	if err := os.Remove(prefix + "sharer-replaced"); err != nil {
		t.Fatal(err)
	}
	_ = open(prefix+"sharer-replaced", os.O_RDWR|os.O_CREATE).Close()
}

// awaitAny waits for a line that begins with the text.
func (l *lines) awaitAny(t *testing.T, begin string) {
	t.Helper()
	testkit.Eventually(t, "a line "+begin, func() bool {
		return slices.ContainsFunc(l.all(), func(line string) bool { return strings.HasPrefix(line, begin) })
	})
}

// left returns the rest of the names of files of shared memory that begin with the prefix.
func left(prefix string) (names []string) {
	found, err := filepath.Glob(prefix + "*")
	if err != nil {
		return nil
	}
	for _, path := range found {
		names = append(names, strings.TrimPrefix(path, prefix))
	}
	slices.Sort(names)
	return names
}

func removeAll(prefix string) {
	for _, name := range left(prefix) {
		_ = os.Remove(prefix + name)
	}
}
