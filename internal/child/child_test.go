package child_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/test/testkit"
)

// role is the variable that makes this test binary one of the children below.
const role = "STATOR_TEST_CHILD_ROLE"

func TestMain(m *testing.M) {
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // children of a race-enabled test end at once too
	if r := os.Getenv(role); r != "" {
		play(r, os.Args[1:])
		os.Exit(0)
	}
	testkit.Main(m)
}

// play runs the role of a child.
func play(role string, args []string) {
	switch role {
	case "exit":
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	case "say": // each argument as it is
		for _, a := range args {
			fmt.Fprint(os.Stdout, a)
		}
		fmt.Fprint(os.Stderr, "and an error")
	case "long": // a line of so many bytes, and two short ones
		n, _ := strconv.Atoi(args[0])
		fmt.Printf("before\n%s\nafter\n", strings.Repeat("x", n))
	case "environment":
		fmt.Println(os.Getenv("EXTRA"))
	case "inherit": // prints the text that it reads from the first inherited file
		text, err := io.ReadAll(os.NewFile(3, "inherited"))
		fmt.Println(string(text), err)
	case "gentle": // ends at SIGTERM
		in := make(chan os.Signal, 1)
		signal.Notify(in, syscall.SIGTERM)
		fmt.Println("up")
		<-in
		fmt.Println("bye")
	case "stubborn": // does not
		in := make(chan os.Signal, 1)
		signal.Notify(in, syscall.SIGTERM)
		fmt.Println("up")
		for range in {
		}
	case "mother": // leaves a child behind that holds its output, and ends at SIGTERM or at once
		kid := exec.Command(os.Args[0])
		kid.Env = append(os.Environ(), as("stubborn"))
		kid.Stdout, kid.Stderr = os.Stdout, os.Stderr
		if err := kid.Start(); err != nil {
			panic(err)
		}
		fmt.Println("child", kid.Process.Pid)
		if args[0] == "stay" {
			play("gentle", nil)
		}
	case "hold": // runs its arguments in a role, for a parent of this package
		become(args[0])
		os.Exit(child.Hold(args[1:]))
	case "leaver": // starts a child in a session of its own, and ends at once
		kid := exec.Command(os.Args[0])
		kid.Env = append(os.Environ(), as("stubborn"))
		kid.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := kid.Start(); err != nil {
			panic(err)
		}
		fmt.Println("child", kid.Process.Pid)
	case "family": // starts a leaver, whose child becomes an orphan, and a child of its own
		for _, r := range []string{"leaver", "stubborn"} {
			kid := exec.Command(os.Args[0])
			kid.Env = append(os.Environ(), as(r))
			kid.Stdout, kid.Stderr = os.Stdout, os.Stderr
			if err := kid.Start(); err != nil {
				panic(err)
			}
			fmt.Println("child", kid.Process.Pid)
			if r == "leaver" {
				_ = kid.Wait()
			}
		}
		play("gentle", nil)
	case "holding keeper": // runs a family by this package with a holder, and can only be killed
		p, err := child.Start(child.Config{Path: os.Args[0], Holder: held("family"), Env: []string{as("hold")}, Line: func(l string) { fmt.Println(l) }})
		if err != nil {
			panic(err)
		}
		fmt.Println("child", p.PID())
		play("stubborn", nil)
	case "sharing keeper": // runs a sharer by this package with a holder, and can only be killed
		p, err := child.Start(child.Config{Path: os.Args[0], Args: args, Holder: held("sharer"), Env: []string{as("hold")}, Line: func(l string) { fmt.Println(l) }})
		if err != nil {
			panic(err)
		}
		fmt.Println("child", p.PID())
		time.Sleep(time.Hour) // the sharer prints "up"
	case "sharer", "sharer's child":
		share(role, args[0], args[1])
	case "keeper": // runs a child by this package, and can only be killed
		p, err := child.Start(child.Config{Path: os.Args[0], Env: []string{as("stubborn")}})
		if err != nil {
			panic(err)
		}
		fmt.Println("child", p.PID())
		play("stubborn", nil)
	}
}

// as is the environment variable for a role.
func as(r string) string { return role + "=" + r }

// become gives the children of this process a role.
func become(r string) { _ = os.Setenv(role, r) }

// held is the command line of a holder that runs this binary in a role.
func held(r string) []string { return []string{os.Args[0], r} }

// lines collects the lines that a child writes.
type lines struct {
	mu  sync.Mutex
	got []string // guarded by mu
}

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, line)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got)
}

// await returns the first line that begins so.
func (l *lines) await(t *testing.T, prefix string) string {
	t.Helper()
	var found string
	testkit.Eventually(t, "a line with "+prefix, func() bool {
		i := slices.IndexFunc(l.all(), func(s string) bool { return strings.HasPrefix(s, prefix) })
		if i >= 0 {
			found = l.all()[i]
		}
		return i >= 0
	})
	return found
}

func start(t *testing.T, cfg child.Config, r string, args ...string) (*child.Process, *lines) {
	t.Helper()
	var l lines
	cfg.Path, cfg.Args, cfg.Env, cfg.Line = os.Args[0], args, append(cfg.Env, as(r)), l.add
	p, err := child.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(ended()) })
	return p, &l
}

// ended is a context that has ended, so that a Stop with it kills at once.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// gone reports whether no process of that id runs. A zombie that init has not yet reaped counts as gone.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// TestWaitReturnsTheExitCode: the error has the exit code, and is nil for 0.
func TestWaitReturnsTheExitCode(t *testing.T) {
	p, _ := start(t, child.Config{}, "exit", "0")
	if err := p.Wait(); err != nil {
		t.Errorf("exit code 0: %v", err)
	}
	p, _ = start(t, child.Config{}, "exit", "3")
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("exit code 3: %v", err)
	}
	p, _ = start(t, child.Config{}, "stubborn")
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("killed: %v", err)
	}
	select {
	case <-p.Exited():
	default:
		t.Error("Wait has returned, but Exited is open")
	}
}

// TestStartWithoutAProgram: the error names the program.
func TestStartWithoutAProgram(t *testing.T) {
	p, err := child.Start(child.Config{Path: "/no/such/program"})
	if p != nil || err == nil || err.Error() != "start /no/such/program: fork/exec /no/such/program: no such file or directory" {
		t.Errorf("%v, %v", p, err)
	}
}

// TestOutputIsSplitIntoLines: standard output and standard error arrive line by line.
func TestOutputIsSplitIntoLines(t *testing.T) {
	p, l := start(t, child.Config{}, "say", "one\n", "\n", "two\r\nthree ", "is long\n", "no end\n")
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	want := []string{"one", "", "two", "three is long", "no end", "and an error"}
	if got := l.all(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	p, l = start(t, child.Config{Env: []string{"EXTRA=more"}}, "environment")
	if err := p.Wait(); err != nil || !slices.Equal(l.all(), []string{"more"}) {
		t.Errorf("%q, %v", l.all(), err)
	}
	p, err := child.Start(child.Config{Path: os.Args[0], Args: []string{"unread"}, Env: []string{as("say")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("nobody reads its lines: %v", err)
	}
}

// TestInheritedFiles: a process reads a file that it is given from descriptor 3.
func TestInheritedFiles(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, got := start(t, child.Config{Files: []*os.File{in}}, "inherit")
	in.Close()
	fmt.Fprint(out, "through the pipe")
	out.Close()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := child.Start(child.Config{Path: "/bin/true", Files: []*os.File{in}, Holder: []string{"/bin/true"}}); err == nil {
		t.Error("files are passed through a holder")
	}
	if want := "through the pipe <nil>"; !slices.Equal(got.all(), []string{want}) {
		t.Errorf("%q, want %q", got.all(), want)
	}
}

// TestLongLinesAreCut: a line over the limit is cut, and the next line is complete.
func TestLongLinesAreCut(t *testing.T) {
	const limit = 1 << 20
	for _, n := range []int{limit - 1, limit, limit + 1, 3*limit + 17} {
		p, l := start(t, child.Config{}, "long", strconv.Itoa(n))
		if err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		got := l.all()
		if len(got) != 3 || got[0] != "before" || len(got[1]) != min(n, limit) || got[2] != "after" {
			t.Errorf("of a line of %d bytes came %d lines, the second with %d bytes", n, len(got), len(got[min(1, len(got)-1)]))
		}
	}
}

// TestStopSendsSIGTERM: a process that handles SIGTERM ends before Stop returns.
func TestStopSendsSIGTERM(t *testing.T) {
	p, l := start(t, child.Config{StopTime: time.Minute}, "gentle")
	l.await(t, "up")
	p.Stop(t.Context())
	if err := p.Wait(); err != nil || !slices.Equal(l.all(), []string{"up", "bye"}) {
		t.Errorf("%q, %v", l.all(), err)
	}
	p.Stop(t.Context()) // again, and after its end, is no harm
}

// TestStopKillsAfterItsTime: a process that ignores SIGTERM is killed after the stop time, or when the context ends.
func TestStopKillsAfterItsTime(t *testing.T) {
	p, l := start(t, child.Config{StopTime: 50 * time.Millisecond}, "stubborn")
	l.await(t, "up")
	p.Stop(t.Context())
	if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("after the stop time: %v", err)
	}
	p, l = start(t, child.Config{StopTime: time.Hour}, "stubborn")
	l.await(t, "up")
	p.Stop(ended())
	if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("after the end of the context: %v", err)
	}
}

// TestConcurrentStopAndWait: several goroutines may wait for and stop one process.
func TestConcurrentStopAndWait(t *testing.T) {
	p, l := start(t, child.Config{StopTime: time.Minute}, "gentle")
	l.await(t, "up")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { p.Stop(t.Context()) })
		all.Go(func() {
			if err := p.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestChildLeadsAProcessGroup: a Ctrl-C at the terminal goes to the terminal's process group, and must not reach
// children: their parent stops them in order.
func TestChildLeadsAProcessGroup(t *testing.T) {
	p, _ := start(t, child.Config{}, "stubborn")
	group, err := syscall.Getpgid(p.PID())
	if err != nil || group != p.PID() {
		t.Errorf("process %d is in group %d, %v", p.PID(), group, err)
	}
}

// TestDescendantsAreKilled: when a process ends, the rest of its group ends too. It would hold the output, a port
// or an accelerator's memory.
func TestDescendantsAreKilled(t *testing.T) {
	for _, how := range []string{"leave", "stay"} {
		p, l := start(t, child.Config{StopTime: time.Minute}, "mother", how)
		var pid int
		if _, err := fmt.Sscanf(l.await(t, "child"), "child %d", &pid); err != nil {
			t.Fatal(err)
		}
		if how == "stay" {
			p.Stop(t.Context())
		}
		select {
		case <-p.Exited():
		case <-time.After(time.Minute):
			t.Fatal("the end of the process is not seen")
		}
		testkit.Eventually(t, "the grandchild is gone", func() bool { return gone(pid) })
	}
}

// TestChildDiesWithItsParent: a killed parent takes its children with it.
func TestChildDiesWithItsParent(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux ties a child's life to its parent's")
	}
	p, l := start(t, child.Config{}, "keeper")
	var pid int
	if _, err := fmt.Sscanf(l.await(t, "child"), "child %d", &pid); err != nil {
		t.Fatal(err)
	}
	if gone(pid) {
		t.Fatal("the grandchild is not there")
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the grandchild is gone", func() bool { return gone(pid) })
}
