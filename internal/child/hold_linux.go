package child

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// setChildSubreaper is the option of prctl that makes this process the parent of its orphaned descendants.
const setChildSubreaper = 36

// adoptOrphans makes this process the parent of descendants whose own parent ends, also of descendants
// that have left the process group: they can then be found and killed.
func adoptOrphans() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0) // kernels before 3.4 do not have it
}

// heldAttr keeps the program in the group of its holder. It is killed even if its holder is.
func heldAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// killDescendants kills every descendant of this process and reaps descendants that become its children,
// until none is left.
func killDescendants() {
	for until := time.Now().Add(killTime); time.Now().Before(until); {
		for _, pid := range descendants(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}

		// A killed process leaves its children to this one, which the next round finds.
		var err error
		for pid := 1; pid > 0; {
			pid, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
		if errors.Is(err, syscall.ECHILD) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// descendants returns the processes below the one of that id.
func descendants(root int) (below []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil {
			children[s.parent] = append(children[s.parent], pid)
		}
	}

	below = children[root]
	for i := 0; i < len(below); i++ {
		below = append(below, children[below[i]]...)
	}
	return below
}

// stat is the part of /proc/PID/stat that this package uses.
type stat struct {
	state   byte // R, S, D, Z for a zombie
	parent  int
	group   int
	started string // in clock ticks since boot
}

// The fields of /proc/PID/stat after the name, from 0.
const (
	statState   = 0
	statParent  = 1
	statGroup   = 2
	statStarted = 19
	statFields  = 20
)

// readStat reads a process's line in /proc.
func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}

	// The name, in parentheses, may contain anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < statFields {
		return stat{}, fmt.Errorf("process %d has %d fields in its stat", pid, len(fields))
	}
	parent, parentErr := strconv.Atoi(fields[statParent])
	group, groupErr := strconv.Atoi(fields[statGroup])
	return stat{state: fields[statState][0], parent: parent, group: group, started: fields[statStarted]}, errors.Join(parentErr, groupErr)
}

// identify returns the identity of a running process.
func identify(pid int) (Identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	s, err := readStat(pid)
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Identity{PID: pid, Started: strings.TrimSpace(string(boot)) + "/" + s.started}, nil
}

// running reports whether the process has not ended. A zombie has ended, although it still has its id.
func (id Identity) running() bool {
	now, err := identify(id.PID)
	if err != nil || now != id {
		return false
	}
	s, err := readStat(id.PID)
	return err == nil && s.state != 'Z' && s.state != 'X'
}
