// Package process starts and ends processes for the test programs and benchmarks, and reads their use of the machine. The
// figures of other processes need Linux.
package process

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Main runs a program until it ends, or until an interrupt or SIGTERM ends its context. An error is printed after the
// program's name, and the exit status is 1 then. It is 0 after --help.
func Main(name string, run func(ctx context.Context, args []string, out, progress io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// OwnCPU returns the CPU time of this process so far, user and system time together, or 0 if it cannot be read. Other
// processes on the machine change it less than the clock.
func OwnCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// tick is the unit of CPU times in /proc, on every architecture that Go supports.
const tick = 10 * time.Millisecond

// CPU returns the CPU time of a process so far, in steps of 10 ms.
func CPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time (this needs Linux): %w", err)
	}
	return parseStat(stat)
}

// parseStat finds utime and stime, the 14th and 15th field of /proc/PID/stat. The second is
// the program's name in brackets, which may hold anything.
func parseStat(stat []byte) (time.Duration, error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("read CPU time: %q has too few fields", stat)
	}

	var sum time.Duration
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// TreeCPU returns the CPU time so far of a process and of the processes under it that run now, in steps of 10 ms.
func TreeCPU(root int) (time.Duration, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	parents := map[int]int{}
	times := map[int]time.Duration{}
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // a process that has just ended
		}
		var pid, parent int
		var state string
		if _, err := fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &parent); err != nil {
			return 0, fmt.Errorf("read parents of processes: %w", err)
		}
		if _, err := fmt.Sscan(string(stat), &pid); err != nil {
			return 0, fmt.Errorf("read process ids: %w", err)
		}
		parents[pid] = parent
		times[pid], err = parseStat(stat)
		if err != nil {
			return 0, err
		}
	}
	if _, found := times[root]; !found {
		return 0, fmt.Errorf("read CPU time: process %d does not run", root)
	}

	var sum time.Duration
	for pid, spent := range times {
		for at := pid; at > 0; at = parents[at] {
			if at == root {
				sum += spent
				break
			}
		}
	}
	return sum, nil
}

// MachineCPU returns the CPU time so far of all processes of the machine, except processes of a lower priority (nice).
func MachineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time (this needs Linux): %w", err)
	}
	var user, nice, system, idle, wait, irq, soft, steal int64
	_, err = fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &irq, &soft, &steal)
	if err != nil {
		return 0, fmt.Errorf("read CPU time of the machine: %w", err)
	}
	return time.Duration(user+system+irq+soft+steal) * tick, nil
}

// ThreadsCPU returns the CPU time of a process exact to the nanosecond: the sum over the threads that it has now. Threads
// that have ended are missing.
func ThreadsCPU(pid int) (time.Duration, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("read CPU time of process %d: it has no threads", pid)
	}

	var sum time.Duration
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // a thread that has just ended
		}
		first, _, _ := bytes.Cut(text, []byte(" "))
		n, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

// Resident returns the memory of a process in bytes.
func Resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory (this needs Linux): %w", err)
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read memory: %q has too few fields", text)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// Children returns the command lines of the processes under one.
func Children(parent int) map[int]string {
	lines := map[int]string{}
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // a process that has just ended
		}
		var pid, above int
		var state string
		_, _ = fmt.Sscan(string(stat), &pid)
		_, _ = fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &above)
		if line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")); err == nil && above == parent {
			lines[pid] = string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		}
	}
	return lines
}

// LoadAverage returns the machine's load averages of 1, 5 and 15 minutes, or "unknown".
func LoadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}
