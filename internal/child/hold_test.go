package child_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/test/testkit"
)

// startHeld runs this binary in a role behind a holder.
func startHeld(t *testing.T, cfg child.Config, r string, args ...string) (*child.Process, *lines) {
	t.Helper()
	cfg.Holder = held(r)
	return start(t, cfg, "hold", args...)
}

// needsProc skips a test of what only Linux does.
func needsProc(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux finds all descendants")
	}
}

// family waits for a family of n and returns their process ids.
func family(t *testing.T, l *lines, n int) (pids []int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d processes", n), func() bool {
		pids = nil
		for _, line := range l.all() {
			var pid int
			if _, err := fmt.Sscanf(line, "child %d", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
		return len(pids) >= n && slices.Contains(l.all(), "up")
	})
	return pids
}

// TestDescendantsDieWithAKilledParent: when the process that started a program is killed, the program, its children,
// and an orphan in another session are gone.
func TestDescendantsDieWithAKilledParent(t *testing.T) {
	needsProc(t)
	p, l := start(t, child.Config{}, "holding keeper")
	pids := family(t, l, 4)

	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}

	for _, pid := range pids {
		testkit.Eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return gone(pid) })
	}
}

// TestHolderPassesOnTheResult: a held program looks to its parent as one that was started directly.
func TestHolderPassesOnTheResult(t *testing.T) {
	for code, want := range map[string]string{"0": "<nil>", "3": "exit status 3"} {
		p, _ := startHeld(t, child.Config{}, "exit", code)
		if err := p.Wait(); fmt.Sprint(err) != want {
			t.Errorf("exit code %s: %v", code, err)
		}
	}

	p, _ := startHeld(t, child.Config{}, "stubborn")
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); fmt.Sprint(err) != "signal: killed" {
		t.Errorf("killed: %v", err)
	}

	p, err := child.Start(child.Config{Path: "/no/such/program", Holder: held("exit"), Env: []string{as("hold")}})
	if p != nil || fmt.Sprint(err) != "start /no/such/program: fork/exec /no/such/program: no such file or directory" &&
		fmt.Sprint(err) != "start /no/such/program: exec: \"/no/such/program\": stat /no/such/program: no such file or directory" {
		t.Errorf("%v, %v", p, err)
	}
}

// TestStopOfAHeldProgram: SIGTERM reaches the program, and one that ignores it is killed with all that it has started.
func TestStopOfAHeldProgram(t *testing.T) {
	p, l := startHeld(t, child.Config{StopTime: time.Minute}, "gentle")
	l.await(t, "up")
	p.Stop(t.Context())
	if err := p.Wait(); err != nil || !slices.Equal(l.all(), []string{"up", "bye"}) {
		t.Errorf("%q, %v", l.all(), err)
	}

	p, l = startHeld(t, child.Config{StopTime: 50 * time.Millisecond}, "stubborn")
	l.await(t, "up")
	p.Stop(t.Context())
	if err := p.Wait(); fmt.Sprint(err) != "signal: killed" {
		t.Errorf("after the stop time: %v", err)
	}
}

// TestDescendantsOfAHeldProgram: when a held program ends, an orphan in another session is gone too.
func TestDescendantsOfAHeldProgram(t *testing.T) {
	needsProc(t)
	p, l := startHeld(t, child.Config{StopTime: time.Minute}, "family")
	pids := family(t, l, 3)
	p.Stop(t.Context())
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}

// TestHolderIsKilled: the program does not outlive its holder, and the parent sees the end.
func TestHolderIsKilled(t *testing.T) {
	needsProc(t)
	p, l := startHeld(t, child.Config{}, "stubborn")
	l.await(t, "up")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	var holder int
	_, after, _ := strings.Cut(string(status), ") ")
	if _, err := fmt.Sscan(after, &state, &holder); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(holder, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); fmt.Sprint(err) != "signal: killed" {
		t.Error(err)
	}
	// The kernel kills the program when its holder ends, which may be a moment after Wait has seen that end.
	testkit.Eventually(t, "the program is gone", func() bool { return gone(p.PID()) })
}

// TestDetachedProcessIsAdopted: a detached program survives the process that started it. Another one adopts it by its
// identity, and stops it with all that it has started.
func TestDetachedProcessIsAdopted(t *testing.T) {
	needsProc(t)
	output := t.TempDir() + "/log"
	d, err := child.StartDetached(child.Config{Path: os.Args[0], Holder: held("family"), Env: []string{as("hold")}}, output)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the family is there", func() bool { return lastLine(output) == "up" })
	d.Leave()

	if other, ok := child.Adopt(child.Identity{PID: d.Identity().PID, Started: "another boot/1"}, d.PID()); ok {
		t.Errorf("another process with the same id is adopted: %+v", other)
	}
	again, ok := child.Adopt(d.Identity(), d.PID())
	if !ok || again.PID() != d.PID() || gone(d.PID()) {
		t.Fatalf("the process is not adopted: %v", ok)
	}
	again.Stop(t.Context())
	if err := again.Wait(); err == nil || !gone(again.PID()) {
		t.Errorf("after Stop: %v, gone %v", err, gone(again.PID()))
	}
	if got := lastLine(output); got != "the process ended: exit status 0" {
		t.Errorf("last line %q", got)
	}
	if _, ok := child.Adopt(d.Identity(), d.PID()); ok {
		t.Error("a process that has ended is adopted")
	}
}

// TestDetachedProcessEndsByItself: its end is seen, and a program that ignores SIGTERM is killed.
func TestDetachedProcessEndsByItself(t *testing.T) {
	needsProc(t)
	output := t.TempDir() + "/log"
	start := func(cfg child.Config, r string, args ...string) *child.Detached {
		cfg.Path, cfg.Args, cfg.Holder, cfg.Env = os.Args[0], args, held(r), []string{as("hold")}
		d, err := child.StartDetached(cfg, output)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}

	if err := start(child.Config{}, "exit", "3").Wait(); err == nil || lastLine(output) != "the process ended: exit status 3" {
		t.Errorf("%v, last line %q", err, lastLine(output))
	}
	d := start(child.Config{StopTime: 10 * time.Millisecond}, "stubborn")
	testkit.Eventually(t, "it is up", func() bool { return lastLine(output) == "up" })
	d.Stop(t.Context())
	if got := lastLine(output); got != "the process ended: signal: killed" || !gone(d.PID()) {
		t.Errorf("last line %q", got)
	}

	// Much output is bounded.
	_ = start(child.Config{}, "long", fmt.Sprint(3*child.DetachedOutput)).Wait()
	for _, path := range []string{output, output + ".1"} {
		info, err := os.Stat(path)
		if err != nil || info.Size() > child.DetachedOutput+64<<10 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

// lastLine returns the last line of the output of a process that has ended.
func lastLine(output string) string {
	lines := child.LastLines(output, false)
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// TestLastLinesAreOfOneProcess: the output of an earlier process in the file is left out.
func TestLastLinesAreOfOneProcess(t *testing.T) {
	output := filepath.Join(t.TempDir(), "log")
	text := "one\nthe process ended: exit status 1\n\rtwo 10%\rtwo 20%\nthree\n"
	for _, is := range []struct{ end, want string }{
		{"", "two 10%,two 20%,three"},
		{"the process ended: exit status 2\n", "two 10%,two 20%,three,the process ended: exit status 2"},
	} {
		if err := os.WriteFile(output, []byte(text+is.end), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(child.LastLines(output, is.end == ""), ","); got != is.want {
			t.Errorf("%q, want %q", got, is.want)
		}
	}
	if got := child.LastLines(output, true); len(got) != 0 {
		t.Errorf("a process that has printed nothing has %q", got)
	}
	if got := child.LastLines(output+"-absent", true); got != nil {
		t.Errorf("without a file: %q", got)
	}
}
