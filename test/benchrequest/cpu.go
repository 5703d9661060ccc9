package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc, on every architecture that Go supports.
const tick = 10 * time.Millisecond

// cpuTime is what a process has used, user and system time together.
func cpuTime(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
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

// machine is where figures were taken: they mean nothing elsewhere.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	System string `json:"system"`
	Go     string `json:"go"`
	Envoy  string `json:"envoy"`
	// LoadBefore and LoadAfter are load averages of 1, 5 and 15 minutes. Before the run they are
	// others' work alone.
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

func newMachine(ctx context.Context, envoyPath string) machine {
	return machine{
		CPU: cpuModel(), Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
		Envoy: envoyVersion(ctx, envoyPath), LoadBefore: loadAverage(),
	}
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s, %s, Envoy %s; load average %s before and %s after",
		m.CPU, m.Cores, m.System, m.Go, m.Envoy, m.LoadBefore, m.LoadAfter)
}

func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}

	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 3 {
		return strings.Join(fields[:3], " ")
	}
	return "unknown"
}

// envoyVersion picks 1.40.0 out of "… version: HASH/1.40.0/Clean/RELEASE/BoringSSL".
func envoyVersion(ctx context.Context, path string) string {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	parts := strings.Split(strings.TrimSpace(string(out)), "/")
	if err != nil || len(parts) < 4 {
		return "of unknown version"
	}
	return parts[len(parts)-4]
}
