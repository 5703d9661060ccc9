// Package child runs a process that cannot outlive us.
//
// A [Process] has a process group of its own, so that a Ctrl-C at the terminal reaches only
// its parent, which stops its children in order; on Linux the kernel kills it when the parent
// dies, however that happens. What it leaves behind of its group is killed when it ends. Its
// output is handed on line by line. The package does not restart anything: that is its callers'
// business.
//
// # Concurrency
//
// Start owns one goroutine, which has ended when Wait or Stop returns. All methods may be
// called from any goroutine.
package child

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Config says what to run.
type Config struct {
	// Path is the program, Args its arguments without its name.
	Path string
	Args []string
	// Env is added to our own environment.
	Env []string
	// Line receives each line the process writes to its standard output or error, without its
	// end. It is called from one goroutine. Lines over 1 MiB are cut off. Nil drops them.
	Line func(line string)
	// StopTime is how long Stop waits before it kills. Default 5 s.
	StopTime time.Duration
}

// Process is a child that was started.
type Process struct {
	cfg    Config
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process is gone and its output is read
	err    error         // how it ended; valid once exited is closed
}

// Start runs the process.
func Start(cfg Config) (*Process, error) {
	if cfg.StopTime == 0 {
		cfg.StopTime = 5 * time.Second
	}
	if cfg.Line == nil {
		cfg.Line = func(string) {}
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Path, err)
	}
	p := &Process{cfg: cfg, cmd: exec.Command(cfg.Path, cfg.Args...), exited: make(chan struct{})}
	p.cmd.SysProcAttr = attr()
	p.cmd.Env = append(os.Environ(), cfg.Env...)
	p.cmd.Stdout, p.cmd.Stderr = in, in
	started := make(chan error)
	go p.live(out, in, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Path, err)
	}
	return p, nil
}

// live starts the process, reports that, and waits until it and its output have ended.
func (p *Process) live(out, in *os.File, started chan<- error) {
	unlock := lockThread()
	defer unlock()
	defer func() { _ = out.Close() }()
	err := p.cmd.Start()
	_ = in.Close() // the child has its own
	started <- err
	if err != nil {
		return
	}
	gone := make(chan error, 1)
	go func() {
		err := p.cmd.Wait()
		// Whatever it has left in its group: the group's id is not used again before it is empty.
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		// A descendant may have left the group and hold the pipe: its lines are not waited for.
		_ = out.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		gone <- err
	}()
	p.relay(out)
	p.err = <-gone
	close(p.exited)
}

// maxLine bounds what is kept of a line.
const maxLine = 1 << 20

// relay hands on line after line until the output ends.
func (p *Process) relay(out io.Reader) {
	in := bufio.NewReaderSize(out, 16<<10)
	var line []byte
	for {
		part, more, err := in.ReadLine()
		line = append(line, part[:min(len(part), maxLine-len(line))]...)
		if more {
			continue
		}
		if err == nil || len(line) > 0 {
			p.cfg.Line(string(line))
		}
		if err != nil {
			return
		}
		line = line[:0]
	}
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Wait returns when the process has ended, with what it said of that: nil for exit code 0.
func (p *Process) Wait() error {
	<-p.exited
	return p.err
}

// Stop ends the process: SIGTERM, and SIGKILL after the stop time or when ctx ends. It
// returns when the process is gone.
func (p *Process) Stop(ctx context.Context) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	patience := time.NewTimer(p.cfg.StopTime)
	defer patience.Stop()
	select {
	case <-p.exited:
		return
	case <-patience.C:
	case <-ctx.Done():
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}
