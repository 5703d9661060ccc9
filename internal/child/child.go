// Package child runs child processes that end with this process, and starts them again when they end.
//
// A [Process] is the leader of a process group, so a Ctrl-C at the terminal reaches the parent alone,
// which stops its children in order. On Linux the kernel kills the process when its parent dies. When
// the process ends, the rest of its group is killed. A [Supervisor] restarts a process with growing
// pauses.
//
// # Concurrency
//
// Start starts one goroutine, which has ended when Wait or Stop returns. All methods of a Process are safe
// for concurrent use. A Supervisor belongs to the goroutine that calls Run.
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

// Config is read by Start and not changed later.
type Config struct {
	// Path is the program, Args its arguments without its name.
	Path string
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// Line is called for each line that the process writes to its standard output or error, without
	// the line's end, from one goroutine. A line is cut after 1 MiB. Nil drops the lines.
	Line func(line string)
	// StopTime is how long Stop waits between SIGTERM and SIGKILL; default 5 s.
	StopTime time.Duration
}

// Process is a child process.
type Process struct {
	cfg    Config
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process is gone and its output is read
	err    error         // the result of the process; valid once exited is closed
}

// Start starts a process. An error names the program.
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

// live starts the process, sends the result to started, and waits until the process and its output have
// ended. It stays on one thread, because Pdeathsig kills the child when the thread that started it ends.
func (p *Process) live(out, in *os.File, started chan<- error) {
	unlock := lockThread()
	defer unlock()
	defer func() { _ = out.Close() }()
	err := p.cmd.Start()
	_ = in.Close() // the child has a copy
	started <- err
	if err != nil {
		return
	}

	gone := make(chan error, 1)
	go func() {
		err := p.cmd.Wait()
		// Kill the rest of the group. Its id is safe to use: the kernel does not use a group id again
		// while the group has members.
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		// A descendant that left the group may still hold the pipe. Do not wait for its output.
		_ = out.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		gone <- err
	}()

	p.relay(out)
	p.err = <-gone
	close(p.exited)
}

// maxLine bounds the bytes of a line that are kept.
const maxLine = 1 << 20

// relay calls Line for every line until the output ends.
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

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Wait waits until the process has ended, and returns its result: nil for exit code 0.
func (p *Process) Wait() error {
	<-p.exited
	return p.err
}

// Stop sends SIGTERM, and SIGKILL after the stop time or when ctx ends. It returns when the process is
// gone.
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
