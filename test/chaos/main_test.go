package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
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

// TestGrowth reads the growth of long lives from rounds. A router that was started again is another one.
func TestGrowth(t *testing.T) {
	var rounds [][]memory
	for i := range 18 {
		kept := 40.0 // while caches fill
		if i >= 6 {
			kept = 50
		}
		if i >= 12 {
			kept = 51
		}
		killed := 2 + i/7
		rounds = append(rounds, []memory{{Router: "router 0", PID: killed, Live: float64(i)}, {Router: "router 1", PID: 1, Live: kept}})
	}

	got := growths(rounds, 15, func(m memory) float64 { return m.Live })
	if len(got) != 1 || got[0].router != "router 1" || got[0].rounds != 18 {
		t.Fatalf("growths are %+v: want one, of router 1", got)
	}
	g := got[0]
	if g.first != 40 || g.middle != 50 || g.last != 51 {
		t.Errorf("medians are %v, %v and %v: want 40, 50 and 51", g.first, g.middle, g.last)
	}
	if p := g.percent(); math.Abs(p-2) > 0.001 {
		t.Errorf("growth is %v %%: want 2", p)
	}
	if math.Abs(g.spread-100*0.5/50.5) > 0.001 {
		t.Errorf("single rounds are within %v %%: want 0.99", g.spread)
	}
}
