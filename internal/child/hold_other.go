//go:build !linux

package child

import (
	"errors"
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

// identify returns an error: only on Linux can a process be distinguished from a later one with its id.
func identify(int) (Identity, error) {
	return Identity{}, errors.New("processes that outlive their parent need Linux")
}

func (id Identity) running() bool { return false }
