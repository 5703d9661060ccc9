package child

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Identity names one process among all that a host runs with the same id one after the other.
type Identity struct {
	PID int `json:"pid"`
	// Started is the boot and the time in it at which the process was started, as the kernel has them.
	Started string `json:"started"`
}

// Detached is a process that lives on when this process ends. Its holder is the leader of a session, and
// writes its output to a file. The process need not be a child of this one: it is named by its [Identity], so
// that no signal reaches a later process with the same id. All methods are safe for concurrent use, apart
// from Wait and Exited after Leave, which never return.
//
//	event            effect
//	StartDetached    the holder starts, and starts the program
//	Adopt            the process of an earlier parent is watched
//	Stop             SIGTERM, and SIGQUIT after the stop time, which kills all descendants
//	Leave            it is not watched any more, and runs on
type Detached struct {
	holder   Identity
	pid      int
	stopTime time.Duration
	exited   chan struct{} // closed when the holder has ended
	leave    chan struct{} // closed by Leave
	left     sync.Once
	watcher  sync.WaitGroup
}

// DetachedOutput bounds the output of a detached process that is kept: this many bytes in the file, and as
// many in the file of the same name with ".1" at its end.
const DetachedOutput = 4 << 20

// watchEvery is the interval at which a detached process is looked at: it need not be a child of this process.
const watchEvery = 100 * time.Millisecond

// StartDetached starts a process that lives on when this process ends; Config.Holder is required, and
// Config.Line is not called. Its output goes to the file, see [DetachedOutput].
func StartDetached(cfg Config, output string) (*Detached, error) {
	d, err := startDetached(cfg, output)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Path, err)
	}
	return d, nil
}

// startDetached starts the holder and waits until it has started the program. Its errors do not name the program. A
// holder that cannot be identified is ended, because no signal could be sent to it later.
func startDetached(cfg Config, output string) (*Detached, error) {
	line := slices.Concat(cfg.Holder, []string{detachedFlag, output, cfg.Path}, cfg.Args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = Environment(os.Environ(), cfg.Env)
	cmd.Dir = cfg.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	h, closeInherited, err := newHolder(cmd)
	if err != nil {
		return nil, err
	}
	defer h.close()
	err = cmd.Start()
	closeInherited()
	if err != nil {
		return nil, err
	}

	pid, err := h.started()
	if err != nil {
		_ = cmd.Wait()
		return nil, err
	}
	holder, err := identify(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		_ = cmd.Wait()
		return nil, err
	}
	return watch(holder, pid, cfg.StopTime), nil
}

// Adopt watches a detached process that another process has started. ok is false if it does not run any
// more. pid is the program's process id.
func Adopt(holder Identity, pid int) (d *Detached, ok bool) {
	if !holder.running() {
		return nil, false
	}
	return watch(holder, pid, 0), true
}

// watch returns a running process. One goroutine watches it until it has ended, or is left.
func watch(holder Identity, pid int, stopTime time.Duration) *Detached {
	if stopTime == 0 {
		stopTime = defaultStopTime
	}
	d := &Detached{holder: holder, pid: pid, stopTime: stopTime, exited: make(chan struct{}), leave: make(chan struct{})}
	d.watcher.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for holder.running() {
			select {
			case <-tick.C:
			case <-d.leave:
				return
			}
		}
		_, _ = syscall.Wait4(holder.PID, nil, syscall.WNOHANG, nil) // if it is a child of this process
		close(d.exited)
	})
	return d
}

// Identity returns the identity of the holder, by which a later process can adopt this one.
func (d *Detached) Identity() Identity { return d.holder }

// PID returns the process id of the program.
func (d *Detached) PID() int { return d.pid }

// Exited returns a channel that is closed when the process has ended.
func (d *Detached) Exited() <-chan struct{} { return d.exited }

// Wait waits until the process has ended. Its exit status is in its output, not in the error.
func (d *Detached) Wait() error {
	<-d.exited
	return errDetachedEnded
}

// Stop sends SIGTERM, and kills the process with its descendants after the stop time or when ctx ends. It
// returns when the process is gone.
func (d *Detached) Stop(ctx context.Context) {
	d.signal(syscall.SIGTERM)
	patience := time.NewTimer(d.stopTime)
	defer patience.Stop()
	select {
	case <-d.exited:
		return
	case <-patience.C:
	case <-ctx.Done():
	}

	d.signal(syscall.SIGQUIT)
	patience.Reset(2 * killTime)
	select {
	case <-d.exited:
		return
	case <-patience.C:
	}
	d.signal(syscall.SIGKILL)
	<-d.exited
}

// signal sends the holder a signal, unless another process has its id now.
func (d *Detached) signal(s syscall.Signal) {
	if d.holder.running() {
		_ = syscall.Kill(d.holder.PID, s)
	}
}

// Leave stops watching. The process runs on.
func (d *Detached) Leave() {
	d.left.Do(func() { close(d.leave) })
	d.watcher.Wait()
}
