package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestChaos plays some faults. Nothing but an engine's own streams breaks, and no booking is left.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts seventeen processes")
	}
	found, err := filepath.Glob("../../.venv/lib/python*/site-packages/envoy/_bin/envoy")
	if err != nil || len(found) == 0 {
		t.Fatal("there is no Envoy: run `make test`, which installs one")
	}
	stator := filepath.Join(t.TempDir(), "stator")
	build := exec.Command("go", "build", "-o", stator, "../../cmd/stator")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, text)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, progress bytes.Buffer
	err = Main(ctx, []string{
		"--stator", stator, "--envoy", found[0], "--clients", "6", "--tokens", "20", "--settle", "1s",
		"--only", "kill router,kill bus,kill engine,kill agent,repeats and delays,closes early",
	}, &out, &progress)
	t.Logf("%s%s", &progress, &out)
	if err != nil {
		t.Fatal(err)
	}

	lines, _, _ := strings.Cut(out.String(), "\n\n")
	scenarios := strings.Split(lines, "\n")
	if len(scenarios) != 6 {
		t.Errorf("%d faults were played: want 6", len(scenarios))
	}
	for _, line := range scenarios {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if r.Requests == 0 || r.Probes == 0 {
			t.Errorf("nothing was tested: %s", line)
		}
		if byEngine := strings.Contains(r.Scenario, "engine") || strings.Contains(r.Scenario, "line"); !byEngine && r.Failed+r.Broken > 0 {
			t.Errorf("clients noticed: %s", line)
		}
	}
}
