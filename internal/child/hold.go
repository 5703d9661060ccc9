package child

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// The file descriptors of a holder. The first is the read end of a pipe whose write end its parent has: it
// ends when the parent dies, or wants the program killed. On the second the holder writes its reports.
const (
	lifelineFD = 3
	reportFD   = 4
)

// The reports of a holder, one a line: a word and its argument.
const (
	reportPID    = "pid"    // the program has started, with this process id
	reportFailed = "failed" // it could not be started, for this reason
	reportStatus = "status" // it has ended, with this wait status
)

// failedExit is the exit code of a holder whose program could not be started, or whose end it did not see.
const failedExit = 125

// killTime bounds how long a holder waits for killed descendants, which the kernel may keep in a system call.
const killTime = 5 * time.Second

// Hold runs a program between [Start] and the program itself, and returns the exit code for this process.
// [Config.Holder] names the command line that calls it, with the program's path and arguments at its end.
//
//	event                            effect
//	program started                  reports its process id
//	SIGTERM                          passed on to the program
//	program ended                    its descendants are killed, their leftovers are removed, and its status is reported
//	parent died, or Process.Stop     the program and its descendants are killed
//	    lost its patience
//
// The leftovers are files of shared memory and of Unix sockets that the program has made and not removed, because it was
// killed.
//
// On Linux descendants are found even if they have left the process group, and their own parent has
// ended. Elsewhere the process group is killed.
//
// With --detached and a file as the first arguments the program outlives the parent: the lifeline has no
// effect, SIGQUIT kills the program and its descendants, and the output goes to the file.
func Hold(args []string) int {
	syscall.CloseOnExec(lifelineFD)
	syscall.CloseOnExec(reportFD)
	lifeline, report := os.NewFile(lifelineFD, "lifeline"), os.NewFile(reportFD, "report")
	output := ""
	if len(args) > 1 && args[0] == detachedFlag {
		output = args[1]
		args = args[2:]
	}
	if len(args) == 0 || lifeline == nil || report == nil {
		return failedExit
	}

	// The handlers are there before the program is, so that no signal is lost between them.
	terminate, kill := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	signal.Notify(kill, syscall.SIGQUIT)
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)

	defer lockThread()()
	adoptOrphans()
	h, left := &held{out: os.Stdout}, newLeftovers()
	if err := h.start(args, output); err != nil {
		sendReport(report, reportFailed, err.Error())
		return failedExit
	}
	sendReport(report, reportPID, fmt.Sprint(h.pid))

	ended := make(chan syscall.WaitStatus, 1)
	go func() { ended <- reap(h.pid) }() // the end of this process ends its goroutines
	if output == "" {
		go func() {
			_, _ = io.Copy(io.Discard, lifeline)
			kill <- syscall.SIGQUIT
		}()
	}

	found := time.NewTicker(lookEvery)
	defer found.Stop()
	for {
		select {
		case <-found.C:
			left.look()
		case <-terminate:
			left.look() // the program may end by it without removing anything
			_ = syscall.Kill(h.pid, syscall.SIGTERM)
		case <-kill:
			left.look()
			_ = syscall.Kill(h.pid, syscall.SIGKILL)
		case status := <-ended:
			left.look() // descendants may have files that were made in the last moment
			killDescendants()
			left.remove()
			h.finish(status)
			sendReport(report, reportStatus, fmt.Sprint(uint32(status)))
			return exitCode(status)
		}
	}
}

// detachedFlag has Hold outlive its parent.
const detachedFlag = "--detached"

// errDetachedEnded is the result of every detached process: its parent may have been another process.
var errDetachedEnded = errors.New("it has ended; its output has the reason")

// held is the program of a holder.
type held struct {
	pid    int
	out    *os.File      // its standard output: a pipe if it is detached
	log    *boundedFile  // nil unless it is detached
	copied chan struct{} // closed when its output has ended
}

// start starts the program in this process's group. With an output it writes to that file.
func (h *held) start(args []string, output string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}

	errorsTo := os.Stderr
	if output != "" {
		closePipe, err := h.openOutput(output)
		if err != nil {
			return err
		}
		defer closePipe()
		errorsTo = h.out
	}
	p, err := os.StartProcess(path, args, &os.ProcAttr{Files: []*os.File{os.Stdin, h.out, errorsTo}, Sys: heldAttr()})
	if err != nil {
		return err
	}
	h.pid = p.Pid
	return nil
}

// openOutput opens the file, and copies the program's output to it. closePipe closes the program's end.
func (h *held) openOutput(path string) (closePipe func(), err error) {
	h.log, err = openBounded(path, DetachedOutput)
	if err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}

	h.out = in
	h.copied = make(chan struct{})
	go func() {
		_, _ = io.Copy(h.log, out)
		close(h.copied)
	}()
	return func() { _ = in.Close() }, nil
}

// finish writes how a detached program has ended below its output.
func (h *held) finish(status syscall.WaitStatus) {
	if h.log == nil {
		return
	}
	<-h.copied // all that could write have ended
	text := "exit status 0"
	if err := statusError(status); err != nil {
		text = err.Error()
	}
	_, _ = fmt.Fprintf(h.log, endMark+"%s\n", text)
}

// reap waits for children until the one of that id has ended, and returns its status. Others are orphans that
// this process has adopted.
func reap(pid int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case ended == pid:
			return status
		case err != nil && !errors.Is(err, syscall.EINTR):
			return syscall.WaitStatus(failedExit << exitShift) // it cannot be waited for
		}
	}
}

// exitShift is the position of the exit code in a wait status.
const exitShift = 8

// exitCode returns the exit code that a shell would show.
func exitCode(status syscall.WaitStatus) int {
	const bySignal = 128
	if status.Signaled() {
		return bySignal + int(status.Signal())
	}
	return status.ExitStatus()
}

// sendReport writes a report. It is lost when the parent has ended.
func sendReport(to io.Writer, word, argument string) {
	_, _ = fmt.Fprintf(to, "%s %s\n", word, strings.ReplaceAll(argument, "\n", " "))
}

// holder is the parent's side of a process that runs Hold.
type holder struct {
	lifeline *os.File // its close has the holder kill everything
	reports  *bufio.Reader
	close    func()
}

// newHolder has the command inherit the holder's two pipes. inherited must be closed once the command has
// started, or has failed to.
func newHolder(cmd *exec.Cmd) (h *holder, inherited func(), err error) {
	lifeOut, lifeIn, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	reportOut, reportIn, err := os.Pipe()
	if err != nil {
		_ = lifeOut.Close()
		_ = lifeIn.Close()
		return nil, nil, err
	}

	cmd.ExtraFiles = []*os.File{lifeOut, reportIn}
	h = &holder{lifeline: lifeIn, reports: bufio.NewReader(reportOut)}
	h.close = func() { _ = lifeIn.Close(); _ = reportOut.Close() }
	return h, func() { _ = lifeOut.Close(); _ = reportIn.Close() }, nil
}

// started returns the process id of the held program, or why it did not start.
func (h *holder) started() (pid int, err error) {
	word, argument := h.next()
	if word == reportFailed {
		return 0, errors.New(argument)
	}
	if _, err := fmt.Sscan(argument, &pid); word != reportPID || err != nil {
		return 0, errors.New("the holder of the process ended before it started it")
	}
	return pid, nil
}

// result returns how the held program has ended; err is the holder's own end, which counts if there is no
// report.
func (h *holder) result(err error) error {
	var number uint32
	word, argument := h.next()
	if _, scanErr := fmt.Sscan(argument, &number); word != reportStatus || scanErr != nil {
		return err
	}

	return statusError(syscall.WaitStatus(number))
}

// statusError returns a wait status as package exec does; nil for exit code 0.
func statusError(status syscall.WaitStatus) error {
	switch {
	case status.Signaled():
		return fmt.Errorf("signal: %v", status.Signal())
	case status.ExitStatus() != 0:
		return fmt.Errorf("exit status %d", status.ExitStatus())
	}
	return nil
}

// next reads one report; both are empty at the end.
func (h *holder) next() (word, argument string) {
	line, _ := h.reports.ReadString('\n')
	word, argument, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	return word, argument
}
