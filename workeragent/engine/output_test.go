package engine

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readLog adds the lines of a log to an output, and returns each new phase.
func readLog(t *testing.T, name string, out *Output) (phases []string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "logs", name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()

	lines := bufio.NewScanner(f)
	for lines.Scan() {
		out.Add(lines.Text())
		if now := out.Tail().Phase; now != "" && (len(phases) == 0 || phases[len(phases)-1] != now) {
			phases = append(phases, now)
		}
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	return phases
}

// TestPhasesOfLoading: the output of a start gives the stages of loading, and no remedy.
func TestPhasesOfLoading(t *testing.T) {
	var out Output
	got := readLog(t, "loading.log", &out)
	want := []string{
		"reading the model's configuration", "starting its processes", "loading the model", "loading weights, 0 %", "loading weights, 100 %",
		"weights loaded", "KV cache allocated", "starting its HTTP server", "started",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if tail := out.Tail(); tail.Remedy != "" || len(tail.Lines) != keptLines {
		t.Errorf("%d lines, remedy %q", len(tail.Lines), tail.Remedy)
	}

	out.Begin()
	got = readLog(t, "cuda-graphs.log", &out)
	if want := []string{"capturing CUDA graphs, 45 %", "CUDA graphs captured"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRemedies: the log of each common mistake has its remedy, even if the errors of other processes follow.
func TestRemedies(t *testing.T) {
	for name, want := range map[string]string{
		"no-module":          "launch[].python",
		"unknown-argument":   "correct launch[].args",
		"offline":            "set models[].path to its folder",
		"gated":              "an accepted licence and a token",
		"kv-cache-too-small": "lower args.max-model-len",
		"no-kv-cache":        "raise args.gpu-memory-utilization",
		"shared-gpu":         "another process uses memory of this GPU",
		"out-of-memory":      "lower args.max-num-seqs",
		"old-driver":         "update NVIDIA's driver",
		"no-connector":       "stator-connector",
		"port-in-use":        "--engine-ports",
	} {
		var out Output
		readLog(t, name+".log", &out)
		if got := out.Tail().Remedy; !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if err := errors.New(`start python4: exec: "python4": executable file not found in $PATH`); !strings.Contains(RemedyFor(err.Error()), "launch[].python") {
		t.Errorf("%v: %q", err, RemedyFor(err.Error()))
	}
}

// TestOutputIsBounded keeps the newest lines, and the beginning of long ones.
func TestOutputIsBounded(t *testing.T) {
	var out Output
	for range 3 * keptLines {
		out.Add(strings.Repeat("x", 2*maxKeptLine))
	}
	out.Add("the last one")
	out.Add("")
	tail := out.Tail()
	if len(tail.Lines) != keptLines || tail.Last() != "the last one" || len(tail.Lines[0]) > maxKeptLine+len("…") {
		t.Errorf("%d lines, the last %q", len(tail.Lines), tail.Last())
	}
}
