//go:build !linux

package envoy

import "syscall"

// childAttr gives Envoy a process group of its own. Only Linux can tie a child's life to its
// parent's.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func lockThread() (unlock func()) { return func() {} }
