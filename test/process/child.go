package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Child is a running program whose output goes to a file. Create it with [StartChild].
type Child struct {
	// Name is its name in errors, and Log the path of its output.
	Name, Log string

	cmd   *exec.Cmd
	ended chan struct{}
}

// StartChild starts a program with this process's variables and env. Its output is added to a log.
func StartChild(name, log string, env []string, program string, args ...string) (*Child, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()

	c := &Child{Name: name, Log: log, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is for this program, which then stops its children
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// PID returns the process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Signal sends a signal to the process.
func (c *Child) Signal(s syscall.Signal) error { return c.cmd.Process.Signal(s) }

// Ended reports whether the process has ended.
func (c *Child) Ended() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// stopTime bounds the time in which a child ends by itself.
const stopTime = time.Minute

// Stop ends the process, by force after a minute.
func (c *Child) Stop() {
	_ = c.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-c.ended:
	case <-time.After(stopTime):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}

// errEnded ends waiting for a process.
var errEnded = errors.New("it has ended")

// Await calls ready until it returns nil. It fails when the process ends, or after a patience.
func (c *Child) Await(ctx context.Context, patience time.Duration, ready func(ctx context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-c.ended:
			stop(errEnded)
		case <-ctx.Done():
		}
	}()
	if err := Await(ctx, patience, ready); err != nil {
		return fmt.Errorf("%s is not ready: %w; the last lines of its log:\n%s", c.Name, err, LastLines(c.Log))
	}
	return nil
}

// LastLines returns the end of a file.
func LastLines(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// Await calls ok every 20 ms until it returns nil. It fails after a patience with the last error of ok, and when ctx ends
// with its cause.
func Await(ctx context.Context, patience time.Duration, ok func(ctx context.Context) error) error {
	bounded, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var last error
	for {
		err := ok(bounded)
		if err == nil {
			return nil
		}
		if bounded.Err() == nil || last == nil { // an error of the end of the patience would hide the reason
			last = err
		}
		select {
		case <-bounded.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("not within %v: %w", patience, last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
