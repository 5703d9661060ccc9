//go:build !linux

package child

import "syscall"

// attr gives the child a process group of its own. Only Linux can tie a child's life to its
// parent's.
func attr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func lockThread() (unlock func()) { return func() {} }
