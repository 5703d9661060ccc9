package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

// report is a run: its settings, its machine, and its results.
type report struct {
	Machine  machine `json:"machine"`
	Text     string  `json:"text"`
	Rounds   int     `json:"rounds"`
	Requests int     `json:"requests_per_cell"`
	Streams  int     `json:"streams"`
	Threads  int     `json:"envoy_worker_threads"`
	Smoke    bool    `json:"smoke,omitempty"`
	Rows     []row   `json:"rows"`
	Goals    []goal  `json:"goals"`
	Cells    []cell  `json:"cells"`

	Legs []legsRatio `json:"legs,omitempty"` // of --legs

	cells []cell
}

// row is the median over the rounds of one set-up at one size.
type row struct {
	Setup string `json:"setup"`
	Chars int    `json:"prompt_chars"`
	figures
	// Ratio is the total over the empty handler's, compared within each round; Lowest and
	// Highest are its extremes.
	Ratio   float64 `json:"total_over_empty"`
	Lowest  float64 `json:"total_over_empty_min"`
	Highest float64 `json:"total_over_empty_max"`
}

// goal is a bound on a ratio, and the measured ratio.
type goal struct {
	Setup string  `json:"setup"`
	Chars int     `json:"prompt_chars"`
	Limit float64 `json:"limit"`
	Stand float64 `json:"stands_at"`
}

// limit returns the goal for a set-up: the largest ratio of its time to the empty handler's time. It is 0 if there is none.
func limit(setup string, chars int) float64 {
	const shortPrompt, longPrompt = 4000, 32000
	switch {
	case chars > longPrompt:
	case setup == warmName && chars <= shortPrompt:
		return 1.15
	case setup == coldName && chars <= shortPrompt:
		return 1.35
	case setup == warmName:
		return 1.5
	case setup == coldName:
		return 2.5
	}
	return 0
}

func newReport(ctx context.Context, o *options, envoyPath string, text *corpus) *report {
	return &report{
		Machine: newMachine(ctx, envoyPath), Text: text.name, Rounds: o.rounds, Requests: o.requests,
		Streams: o.streams, Threads: o.threads, Smoke: o.smoke,
	}
}

// finish computes rows and goals from the cells.
func (r *report) finish() {
	r.Machine.LoadAfter = process.LoadAverage()
	r.Cells = r.cells

	var keys []cell // one of each set-up and size
	for _, c := range r.cells {
		if !slices.ContainsFunc(keys, func(k cell) bool { return k.Setup == c.Setup && k.Chars == c.Chars }) {
			keys = append(keys, c)
		}
	}

	order := []string{
		plainName, emptyName, beforeColdName, coldName, tenantsColdName, doorColdName, duplexName, beforeWarmName, warmName,
		tenantsWarmName, doorWarmName,
		oneColdName, beforeTwoColdName, twoColdName, oneWarmName, beforeTwoWarmName, twoWarmName,
	}
	slices.SortStableFunc(keys, func(a, b cell) int {
		if a.Chars != b.Chars {
			return a.Chars - b.Chars
		}
		return slices.Index(order, a.Setup) - slices.Index(order, b.Setup)
	})

	for _, k := range keys {
		row := r.row(k.Setup, k.Chars)
		r.Rows = append(r.Rows, row)
		if most := limit(k.Setup, k.Chars); most > 0 && !r.Smoke {
			r.Goals = append(r.Goals, goal{Setup: k.Setup, Chars: k.Chars, Limit: most, Stand: row.Ratio})
		}
	}
	if !r.Smoke {
		r.Legs = r.compareLegs()
	}
}

func (r *report) row(setup string, chars int) row {
	var mine []cell
	var ratios []float64

	empty := map[int]float64{} // total by round
	for _, c := range r.cells {
		if c.Setup == emptyName && c.Chars == chars {
			empty[c.Round] = c.Total
		}
	}

	for _, c := range r.cells {
		if c.Setup == setup && c.Chars == chars {
			mine = append(mine, c)
			if empty[c.Round] > 0 { // a tiny cell may cost less than a tick
				ratios = append(ratios, c.Total/empty[c.Round])
			}
		}
	}

	of := func(get func(figures) float64) float64 {
		var all []float64
		for _, c := range mine {
			all = append(all, get(c.figures))
		}
		return stats.Median(all)
	}

	out := row{Setup: setup, Chars: chars, figures: figures{
		Envoy: of(func(f figures) float64 { return f.Envoy }), ExtProc: of(func(f figures) float64 { return f.ExtProc }),
		Total: of(func(f figures) float64 { return f.Total }), Rate: of(func(f figures) float64 { return f.Rate }),
		P50: of(func(f figures) float64 { return f.P50 }), P99: of(func(f figures) float64 { return f.P99 }),
		Reused: of(func(f figures) float64 { return f.Reused }),
	}}

	if len(ratios) > 0 {
		out.Ratio = stats.Median(ratios)
		out.Lowest = slices.Min(ratios)
		out.Highest = slices.Max(ratios)
	}
	return out
}

// print writes the table for people.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "CPU per request: medians of %d rounds of %d requests per cell, %d streams, Envoy with %d worker threads\n",
		r.Rounds, r.Requests, r.Streams, r.Threads)
	fmt.Fprintf(w, "text: %s\nmachine: %s\n", r.Text, r.Machine)
	if r.Smoke {
		fmt.Fprintln(w, "This was a smoke run: the figures mean nothing.")
	}

	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "chars\tset-up\tEnvoy µs\text_proc µs\ttotal µs\t× empty\t(min-max)\treq/s\tp50 ms\tp99 ms\treused\t")

	for _, x := range r.Rows {
		extproc, reused := "-", "-"
		if x.Setup != plainName {
			extproc = fmt.Sprintf("%.0f", x.ExtProc)
		}
		if x.Setup != plainName && x.Setup != emptyName {
			reused = fmt.Sprintf("%.1f %%", 100*x.Reused)
		}
		fmt.Fprintf(t, "%d\t%s\t%.0f\t%s\t%.0f\t%.2f\t(%.2f-%.2f)\t%.0f\t%.2f\t%.2f\t%s\t\n",
			x.Chars, x.Setup, x.Envoy, extproc, x.Total, x.Ratio, x.Lowest, x.Highest, x.Rate, x.P50, x.P99, reused)
	}

	_ = t.Flush()
	fmt.Fprintln(w, "\nEvery request was served as its set-up demands: by the picked worker in ours, seen by the handler in the empty one.")

	for _, g := range r.Goals {
		fmt.Fprintf(w, "goal: %s at %d characters at most %.2f × the empty handler: %.2f, %s\n",
			g.Setup, g.Chars, g.Limit, g.Stand, verdict(g.Stand, g.Limit))
	}
	for i := range r.Legs {
		r.Legs[i].writeLine(w)
	}
}

func verdict(stand, limit float64) string {
	if stand > limit {
		return "missed"
	}
	return "met"
}

func (r *report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write figures: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write figures: %w", err)
	}
	return nil
}
