package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/sim"
)

// MaxRuns is the number of runs that can be compared: more do not fit on a page.
const MaxRuns = 64

// Result is the result of a simulation and the settings of the run.
type Result struct {
	sim.Result
	// Settings are the flags that were given, in the form in which they can be given again.
	Settings string `json:"settings"`
}

// Run is one of the runs that are compared.
type Run struct {
	Name string `json:"name"`
	Result
}

// Parse reads a result that `stator replay --json` printed.
func Parse(data []byte) (Result, error) {
	var r Result
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Requests == 0 && r.PerWorker == nil {
		return r, errors.New("it is not the output of `stator replay --json`")
	}
	return r, nil
}

// measure is a figure by which runs are compared.
type measure struct {
	name   string
	format string // of fmt
	of     func(*sim.Result) float64
	better int // 1: more is better, -1: less is better, 0: neither
	// has reports whether a run has the figure; nil means that all have it. It is shown where one of the compared runs has it.
	has func(*sim.Result) bool
}

var measures = []measure{
	{"completed", "%.0f", func(r *sim.Result) float64 { return float64(r.Completed) }, 1, nil},
	{"errors", "%.0f", func(r *sim.Result) float64 { return float64(r.Errors) }, -1, nil},
	{"duration s", "%.1f", func(r *sim.Result) float64 { return r.Duration }, 0, nil},
	{"TTFT mean ms", "%.1f", func(r *sim.Result) float64 { return r.TTFT.Mean }, -1, nil},
	{"TTFT p50", "%.1f", func(r *sim.Result) float64 { return r.TTFT.P50 }, -1, nil},
	{"TTFT p90", "%.1f", func(r *sim.Result) float64 { return r.TTFT.P90 }, -1, nil},
	{"TTFT p99", "%.1f", func(r *sim.Result) float64 { return r.TTFT.P99 }, -1, nil},
	{"ITL mean ms", "%.2f", func(r *sim.Result) float64 { return r.ITL.Mean }, -1, nil},
	{"ITL p99", "%.2f", func(r *sim.Result) float64 { return r.ITL.P99 }, -1, nil},
	{"E2E mean ms", "%.1f", func(r *sim.Result) float64 { return r.E2E.Mean }, -1, nil},
	{"E2E p99", "%.1f", func(r *sim.Result) float64 { return r.E2E.P99 }, -1, nil},
	{"program mean s", "%.1f", func(r *sim.Result) float64 { return r.Programs.Time.Mean }, -1, hasPrograms},
	{"program p99", "%.1f", func(r *sim.Result) float64 { return r.Programs.Time.P99 }, -1, hasPrograms},
	{"programs lost", "%.0f", func(r *sim.Result) float64 { return float64(r.Programs.Lost) }, -1, hasPrograms},
	{"fairness", "%.3f", func(r *sim.Result) float64 { return r.Programs.Fairness }, 1, hasPrograms},
	{"output tokens/s", "%.1f", func(r *sim.Result) float64 { return r.OutputRate }, 1, nil},
	{"prefix reuse", "%.4f", func(r *sim.Result) float64 { return r.PrefixReuse }, 1, nil},
	{"most loaded / mean", "%.2f", func(r *sim.Result) float64 { return r.Imbalance() }, -1, nil},
	{"SLA misses", "%.0f", slaMisses, -1, func(r *sim.Result) bool { return r.SLAMisses != nil }},
	{"GPU hours", "%.3f", func(r *sim.Result) float64 { return r.GPUHours }, -1, func(r *sim.Result) bool { return r.GPUHours > 0 }},
}

// hasPrograms reports whether a run has played sessions as programs.
func hasPrograms(r *sim.Result) bool { return r.Programs != nil }

// slaMisses returns how many requests missed the SLA; 0 without one.
func slaMisses(r *sim.Result) float64 {
	if r.SLAMisses == nil {
		return 0
	}
	return float64(*r.SLAMisses)
}

// text writes the figure of a run; "-" if the run has none.
func (m *measure) text(r *sim.Result) string {
	if m.has != nil && !m.has(r) {
		return "-"
	}
	return fmt.Sprintf(m.format, m.of(r))
}

// difference writes by how much the figure of a run differs from the first run's, or "" if it hardly does.
func (m *measure) difference(r, first *sim.Result) string {
	if m.has != nil && (!m.has(r) || !m.has(first)) {
		return ""
	}
	return difference(m.of(r), m.of(first))
}

// measuresOf returns the figures that at least one of the runs has.
func measuresOf(runs []Run) (list []measure) {
	for _, m := range measures {
		if m.has == nil || slices.ContainsFunc(runs, func(r Run) bool { return m.has(&r.Result.Result) }) {
			list = append(list, m)
		}
	}
	return list
}

// leastDifference is the smallest difference that is shown, as a share.
const leastDifference = 0.0005

// difference writes by how much v differs from the first value, or "" if it hardly does.
func difference(v, first float64) string {
	if first == 0 || math.Abs(v/first-1) < leastDifference {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", 100*(v/first-1))
}

// Widths of the table's columns, in characters.
const (
	titleWidth      = 18
	firstWidth      = 10
	runWidth        = 20
	differenceWidth = 9
)

// Table returns the comparison as text, with a column for each run and the settings below.
func Table(runs []Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s", titleWidth, "")
	for i := range runs {
		fmt.Fprintf(&b, " %*s", columnWidth(i, runs), runs[i].Name)
	}
	b.WriteByte('\n')

	for _, m := range measuresOf(runs) {
		fmt.Fprintf(&b, "%-*s", titleWidth, m.name)
		for i := range runs {
			text := m.text(&runs[i].Result.Result)
			if i > 0 {
				text += fmt.Sprintf(" %*s", differenceWidth, m.difference(&runs[i].Result.Result, &runs[0].Result.Result))
			}
			fmt.Fprintf(&b, " %*s", columnWidth(i, runs), text)
		}
		b.WriteByte('\n')
	}

	for i := range runs {
		fmt.Fprintf(&b, "\n%s: %s", runs[i].Name, runs[i].Settings)
		if runs[i].Interrupted {
			b.WriteString(" (interrupted)")
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// columnWidth returns the width of a run's column: its name's, and at least its figures' width.
func columnWidth(i int, runs []Run) int {
	least := runWidth
	if i == 0 {
		least = firstWidth
	}
	return max(least, len([]rune(runs[i].Name)))
}
