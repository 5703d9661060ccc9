package child

import (
	"runtime"
	"syscall"
)

// attr gives the child a process group of its own, so that a Ctrl-C at the terminal reaches
// only us and we stop it in order, and ties its life to ours.
func attr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// lockThread keeps the calling goroutine on its thread: Pdeathsig watches the thread that
// started the child, not the process.
func lockThread() (unlock func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
