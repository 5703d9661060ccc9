package replay

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/sim"
)

// twoRuns returns a run and one that is twice as slow.
func twoRuns() []Run {
	fast := sim.Result{
		Requests: 4, Completed: 4, Duration: 1, TTFT: sim.Quantiles{Mean: 10, P50: 10, P90: 20, P99: 30}, OutputRate: 100,
		PerWorker: []sim.WorkerShare{{Requests: 3, OutputTokens: 3}, {Requests: 1, OutputTokens: 1}},
		Curves:    sim.Curves{TTFT: []float64{1, 10, 20, 30}},
	}
	slow := fast
	slow.TTFT = sim.Quantiles{Mean: 20, P50: 20, P90: 40, P99: 60}
	slow.Interrupted = true
	return []Run{{"fast", Result{fast, "--workers 2"}}, {"a rather slow fleet here", Result{slow, "--workers 2 --slow 0=2"}}}
}

// TestTableShowsDifferences compares two runs as text.
func TestTableShowsDifferences(t *testing.T) {
	table := Table(twoRuns())
	for _, want := range []string{
		"                         fast a rather slow fleet here\n",
		"TTFT mean ms             10.0           20.0  +100.0 %\n",
		"most loaded / mean       1.50           1.50          \n",
		"\nfast: --workers 2\n",
		"\na rather slow fleet here: --workers 2 --slow 0=2 (interrupted)\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

// TestOptionalFiguresAreShown compares a run that has an SLA and GPU hours with one that has neither. Without such a run the
// table has no rows for them.
func TestOptionalFiguresAreShown(t *testing.T) {
	runs := twoRuns()
	if table := Table(runs); strings.Contains(table, "SLA") || strings.Contains(table, "GPU hours") {
		t.Errorf("there is no SLA, and no planning:\n%s", table)
	}

	misses := 3
	runs[0].SLAMisses = &misses
	runs[0].GPUHours = 1.5
	table := Table(runs)
	page, err := Page(runs)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SLA misses                  3              -", "GPU hours               1.500              -"} {
		if title, _, _ := strings.Cut(want, "  "); !strings.Contains(table, want) || !bytes.Contains(page, []byte(title)) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

// TestPageDrawsRuns checks that a page has a line, marks and figures of each run.
func TestPageDrawsRuns(t *testing.T) {
	page, err := Page(twoRuns())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`<title>stator replay: fast, a rather slow fleet here</title>`, `<title>fast: 99 % within 30 ms</title>`,
		`<title>fast, worker 0: 1.50 × the mean</title>`, `<small class="worse">&#43;100.0 %</small>`, "a rather slow fleet h…", "1.5 ×",
	} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

// TestPageEscapesNames checks that names and settings are text on the page, also for runs without any
// measurement.
func TestPageEscapesNames(t *testing.T) {
	runs := []Run{{Name: `<script>alert("x")</script>`}, {Name: "b"}}
	runs[1].Settings = `"></code><img src=x onerror=y>`
	page, err := Page(runs)
	if err != nil || bytes.Contains(page, []byte("<script")) || bytes.Contains(page, []byte("<img")) || !bytes.Contains(page, []byte("&lt;script&gt;")) {
		t.Errorf("%v\n%s", err, page)
	}
}

// TestParseRefusesOtherFiles reads a result, and JSON that is none.
func TestParseRefusesOtherFiles(t *testing.T) {
	if r, err := Parse([]byte(`{"requests": 3, "settings": "--workers 2"}`)); err != nil || r.Requests != 3 || r.Settings != "--workers 2" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"{}", "[]", "nonsense"} {
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%s is accepted as a result", bad)
		}
	}
}
