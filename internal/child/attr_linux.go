package child

import (
	"runtime"
	"syscall"
)

// attr makes the child the leader of a new process group, so that a Ctrl-C at the terminal does not reach
// it, and has the kernel kill it when this process dies. A holder must outlive this process by a moment.
func attr(isHolder bool) *syscall.SysProcAttr {
	if isHolder {
		return &syscall.SysProcAttr{Setpgid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// lockThread keeps the calling goroutine on its thread. The kernel sends Pdeathsig when the thread that
// started the child ends, even if the process lives on.
func lockThread() (unlock func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
