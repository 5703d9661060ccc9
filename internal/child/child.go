// Package child runs child processes that end with this process, and starts them again when they end.
//
// A [Process] is the leader of a process group, so a Ctrl-C at the terminal reaches the parent alone,
// which stops its children in order. On Linux the kernel kills the process when its parent dies, and with a
// holder, see [Hold], also all that the process has started. When the process ends, the rest of its group
// is killed. A [Supervisor] restarts a process with growing pauses.
//
// A [Detached] process outlives its parent instead, and a later process adopts it.
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
	"slices"
	"syscall"
	"time"
)

// Config is read by Start and not changed later.
type Config struct {
	// Path is the program, Args its arguments without its name.
	Path string
	Args []string
	// Env is added to the variables of this process that programs get: PATH and the like, and variables of engines, GPUs and
	// proxies. Credentials are not among them.
	Env []string
	// Dir is the working folder; empty means this process's folder.
	Dir string
	// Line is called for each line that the process writes to its standard output or error, without
	// the line's end, from one goroutine. A line is cut after 1 MiB. Nil drops the lines.
	Line func(line string)
	// Holder is a command line that calls [Hold], and is run between this process and the program: the
	// program's descendants then die with this process too. Empty runs the program itself.
	Holder []string
	// Files are open in the process from file descriptor 3 on. They cannot be combined with Holder, which uses these numbers.
	Files []*os.File
	// StopTime is the time that Stop waits between SIGTERM and SIGKILL; default 5 s.
	StopTime time.Duration
}

// defaultStopTime is the default of Config.StopTime.
const defaultStopTime = 5 * time.Second

// Process is a child process.
type Process struct {
	cfg    Config
	cmd    *exec.Cmd
	holder *holder // nil without one
	pid    int
	exited chan struct{} // closed when the process is gone and its output is read
	err    error         // the result of the process; valid once exited is closed
}

// Start starts a process. An error names the program.
func Start(cfg Config) (*Process, error) {
	if cfg.StopTime == 0 {
		cfg.StopTime = defaultStopTime
	}
	if cfg.Line == nil {
		cfg.Line = func(string) {}
	}

	if len(cfg.Files) > 0 && len(cfg.Holder) > 0 {
		return nil, fmt.Errorf("start %s: files cannot be passed through a holder", cfg.Path)
	}
	p, err := start(cfg)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Path, err)
	}
	return p, nil
}

// start starts the process, or its holder.
func start(cfg Config) (*Process, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}

	p := &Process{cfg: cfg, cmd: exec.Command(cfg.Path, cfg.Args...), exited: make(chan struct{})}
	p.cmd.ExtraFiles = cfg.Files
	inherited := func() {}
	if len(cfg.Holder) > 0 {
		line := slices.Concat(cfg.Holder, []string{cfg.Path}, cfg.Args)
		p.cmd = exec.Command(line[0], line[1:]...)
		p.holder, inherited, err = newHolder(p.cmd)
		if err != nil {
			_ = out.Close()
			_ = in.Close()
			return nil, err
		}
	}
	p.cmd.SysProcAttr = attr(p.holder != nil)
	p.cmd.Env = Environment(os.Environ(), cfg.Env)
	p.cmd.Dir = cfg.Dir
	p.cmd.Stdout, p.cmd.Stderr = in, in

	started := make(chan error)
	go p.live(out, func() { _ = in.Close(); inherited() }, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// live starts the process, sends the result to started, and waits until the process and its output have
// ended. It stays on one thread, because Pdeathsig kills the child when the thread that started it ends.
func (p *Process) live(out *os.File, closeInherited func(), started chan<- error) {
	unlock := lockThread()
	defer unlock()
	defer func() { _ = out.Close() }()
	if p.holder != nil {
		defer p.holder.close()
	}
	err := p.cmd.Start()
	closeInherited() // the child has copies
	if err != nil {
		started <- err
		return
	}

	// A holder reports the program's own id. If it could not start the program it ends at once.
	p.pid = p.cmd.Process.Pid
	if p.holder != nil {
		p.pid, err = p.holder.started()
	}
	if err != nil {
		_ = p.cmd.Wait()
		started <- err
		return
	}
	started <- nil

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
	if p.holder != nil {
		p.err = p.holder.result(p.err)
	}
	close(p.exited)
}

// maxLine bounds the bytes of a line that are kept.
const maxLine = 1 << 20

// relay calls Line for every line until the output ends. A carriage return ends a line too: a progress bar prints one in
// place of a line feed, and would else be a single line that ends when all is done.
func (p *Process) relay(out io.Reader) {
	in := bufio.NewReaderSize(out, 16<<10)
	var line []byte
	returned := false // the last byte was a carriage return
	for {
		b, err := in.ReadByte()
		isEnd := err != nil || b == '\n' || b == '\r'
		switch {
		case !isEnd && len(line) < maxLine:
			line = append(line, b)
		case isEnd && (len(line) > 0 || err == nil && b == '\n' && !returned):
			p.cfg.Line(string(line))
			line = line[:0]
		}
		if err != nil {
			return
		}
		returned = b == '\r'
	}
}

// PID returns the process id of the program.
func (p *Process) PID() int { return p.pid }

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

	// A holder kills all descendants of the program, and is killed itself if that takes too long.
	if p.holder != nil {
		_ = p.holder.lifeline.Close()
		patience.Reset(2 * killTime)
		select {
		case <-p.exited:
			return
		case <-patience.C:
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}
