package workeragent

import (
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// shareAndObey is an engine that leaves things behind when it is killed, as vLLM does: shared memory under a new name at each
// start, a Unix socket, and a process for its computing, with which it ends. name is the beginning of all names.
func shareAndObey(port, name string) error {
	file, err := os.CreateTemp("/dev/shm", filepath.Base(name)+"-*.mmap")
	if err != nil {
		return err
	}
	if err := file.Truncate(1 << 20); err != nil {
		return err
	}
	if _, err := syscall.Mmap(int(file.Fd()), 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err != nil {
		return err
	}
	_ = file.Close()

	l, err := net.Listen("unix", name+".sock")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	worker := osexec.Command(os.Args[0], "child")
	if err := worker.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(name+".pid", []byte(strconv.Itoa(worker.Process.Pid)), 0o600); err != nil {
		return err
	}
	go func() {
		_ = worker.Wait()
		os.Exit(1)
	}()
	return obey(port)
}

// TestKilledEnginesComeBack kills an engine ten times, and the process that it has started in between: it is always back, and
// nothing of an earlier process is left.
func TestKilledEnginesComeBack(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, fmt.Sprintf("stator-killed-%d", os.Getpid()))
	shared := filepath.Join("/dev/shm", filepath.Base(name)+"-*")
	at := testSite(t)
	s := runStable(t, at,
		engine.Launch{
			Kind: "exec", Name: "sharing", Model: "m", Self: os.Args[0], BlockSize: 16,
			Command: []string{os.Args[0], "sharing", "{port}", name},
		},
		engine.Launch{Kind: "sim", Name: "sim", Model: "m", Self: os.Args[0], BlockSize: 16},
	)
	t.Cleanup(func() {
		for _, path := range glob(t, shared) {
			_ = os.Remove(path)
		}
	})

	var last [2]int
	for round := range 10 {
		pids := [2]int{s.awaitNew(t, "sharing", last[0]), s.awaitNew(t, "sim", last[1])}
		last = pids
		worker := readPID(t, name+".pid")
		time.Sleep(600 * time.Millisecond) // an engine is found by its open files, twice in this time
		if files := glob(t, shared); len(files) != 1 {
			t.Errorf("round %d: shared memory %q, want that of one process", round, files)
		}
		if sockets := glob(t, filepath.Join(at.Sockets, "*")); len(sockets) != 2 {
			t.Errorf("round %d: sockets %q, want those of one process", round, sockets)
		}

		victim := pids[0]
		if round%2 == 1 {
			victim = worker
		}
		for _, pid := range []int{victim, pids[1]} {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		for _, pid := range []int{pids[0], pids[1], worker} {
			testkit.Eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return syscall.Kill(pid, 0) != nil })
		}
	}

	s.awaitNew(t, "sharing", last[0])
	worker := readPID(t, name+".pid")
	s.stop()
	if syscall.Kill(worker, 0) == nil {
		t.Errorf("process %d is left", worker)
	}
	left := append(glob(t, shared), glob(t, filepath.Join(at.Sockets, "*"))...)
	if left = append(left, glob(t, name+".sock")...); len(left) > 0 {
		t.Errorf("left after the agent: %q", left)
	}
}

// runStable runs an agent whose engines count as stable once they are ready, so that they are started again at once.
func runStable(t *testing.T, at engine.Site, launches ...engine.Launch) *fixture {
	return runProbing(t, at, Config{}, func(p *probing) { p.stable = time.Nanosecond }, launches...)
}

// awaitNew waits until the worker is ready with another process than the one with the last id, and returns its id.
func (s *fixture) awaitNew(t *testing.T, name string, last int) (pid int) {
	t.Helper()
	testkit.Eventually(t, name+" is back", func() bool {
		pid = s.agent.Processes()[name]
		return pid != 0 && pid != last && s.now(name).State == fleet.Ready
	})
	return pid
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
