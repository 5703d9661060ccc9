//go:build !linux

package child

import "syscall"

// attr makes the child the leader of a new process group. Only Linux can kill a child when its parent
// dies.
func attr(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func lockThread() (unlock func()) { return func() {} }
