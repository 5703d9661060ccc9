//go:build !linux

package child

import (
	"os/signal"
	"syscall"
)

// adoptOrphans does nothing: only Linux has subreapers.
func adoptOrphans() {}

func heldAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// killDescendants kills the rest of the process group.
func killDescendants() {
	signal.Ignore(syscall.SIGTERM)
	group := syscall.Getpgrp()
	_ = syscall.Kill(-group, syscall.SIGTERM) // this process, which ignores it, has a report to write
}
