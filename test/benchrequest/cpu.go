package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/stator-project/stator/test/process"
)

// machine describes the machine of the figures: they mean nothing elsewhere.
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
		Envoy: envoyVersion(ctx, envoyPath), LoadBefore: process.LoadAverage(),
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

// envoyVersion picks 1.40.0 out of "… version: HASH/1.40.0/Clean/RELEASE/BoringSSL".
func envoyVersion(ctx context.Context, path string) string {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	parts := strings.Split(strings.TrimSpace(string(out)), "/")
	if err != nil || len(parts) < 4 {
		return "of unknown version"
	}
	return parts[len(parts)-4]
}
