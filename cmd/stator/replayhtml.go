package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/sim"
)

// pageTemplate is one page with its styles and plots in it: it loads nothing and runs nothing.
//
//go:embed replay.html.tmpl
var pageTemplate string

// writePage draws runs into a file.
func writePage(path string, runs []namedRun) error {
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("draw page: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, newPage(runs)); err != nil {
		return fmt.Errorf("draw page: %w", err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil { //nolint:gosec // a page is for everyone to read
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// page is what the template draws.
type page struct {
	Runs   []pageRun
	Rows   []pageRow
	Curves []curveChart
	Load   loadChart
}

// pageRun is a run in the legend. Lines differ in dashes and marks, too, not in colour alone.
type pageRun struct {
	Name, Settings string
	Interrupted    bool
	Colour         int // of the palette
	Dash           string
	Mark           template.HTML
}

type pageRow struct {
	Name  string
	Cells []pageCell
}

// pageCell is a figure, how it differs from the first run's, and whether that is for the better.
type pageCell struct {
	Value, Difference, Judgement string
}

var dashes = []string{"", "7 3", "2 3", "10 3 2 3", "4 2", "1 2", "12 4", "6 2 1 2"}

const palette = 8

func newPage(runs []namedRun) page {
	var p page
	for i := range runs {
		p.Runs = append(p.Runs, pageRun{
			Name: runs[i].Name, Settings: runs[i].Settings, Interrupted: runs[i].Interrupted,
			Colour: i % palette, Dash: dashes[i%len(dashes)], Mark: mark(i, 22, 8),
		})
	}
	for _, m := range measures {
		row := pageRow{Name: m.name}
		for i := range runs {
			row.Cells = append(row.Cells, m.cell(&runs[i].Result, &runs[0].Result))
		}
		p.Rows = append(p.Rows, row)
	}
	p.Curves = []curveChart{
		newCurves("Time to first token", runs, func(r *sim.Result) ([]float64, sim.Quantiles) { return r.Curves.TTFT, r.TTFT }),
		newCurves("Time between tokens", runs, func(r *sim.Result) ([]float64, sim.Quantiles) { return r.Curves.ITL, r.ITL }),
		newCurves("Whole request", runs, func(r *sim.Result) ([]float64, sim.Quantiles) { return r.Curves.E2E, r.E2E }),
	}
	p.Load = newLoad(runs)
	return p
}

func (m *measure) cell(r, first *sim.Result) pageCell {
	v, w := m.of(r), m.of(first)
	c := pageCell{Value: fmt.Sprintf(m.format, v), Difference: difference(v, w)}
	switch {
	case c.Difference == "" || m.better == 0:
	case (v > w) == (m.better > 0):
		c.Judgement = "better"
	default:
		c.Judgement = "worse"
	}
	return c
}

// mark is a run's own shape around a point.
func mark(run int, x, y float64) template.HTML {
	const r = 3.6
	at := func(dx, dy float64) string { return fmt.Sprintf("%.1f,%.1f ", x+dx*r, y+dy*r) }
	var points string
	switch run % 4 {
	case 0:
		return template.HTML(fmt.Sprintf(`<circle cx="%.1f" cy="%.1f" r="%.1f"/>`, x, y, r)) //nolint:gosec // numbers alone
	case 1:
		points = at(-1, -1) + at(1, -1) + at(1, 1) + at(-1, 1)
	case 2:
		points = at(0, -1.3) + at(1.2, 1) + at(-1.2, 1)
	case 3:
		points = at(0, -1.4) + at(1.4, 0) + at(0, 1.4) + at(-1.4, 0)
	}
	return template.HTML(`<polygon points="` + strings.TrimSpace(points) + `"/>`) //nolint:gosec // numbers alone
}

// The plot of a chart within its box, in the units of its view box.
const (
	plotLeft, plotRight = 34.0, 352.0
	plotTop, plotBottom = 10.0, 196.0
)

// curveChart is the share of requests that were as fast as a time: one line for each run.
type curveChart struct {
	Title string
	Ticks []tick
	Lines []curveLine
}

type tick struct {
	At   float64
	Text string
}

type curveLine struct {
	Colour int
	Dash   string
	Points string
	Marks  []curveMark
}

// curveMark is a quantile with what to say of it.
type curveMark struct {
	Shape template.HTML
	Text  string
}

func newCurves(title string, runs []namedRun, of func(*sim.Result) ([]float64, sim.Quantiles)) curveChart {
	c := curveChart{Title: title}
	lo, hi := math.Inf(1), 0.0
	for i := range runs {
		curve, q := of(&runs[i].Result)
		// The fastest fiftieth would take half of the axis, and nobody asks for it.
		for _, v := range append(slices.Clone(curve[min(1, len(curve)):]), q.P99) {
			if v > 0 {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	if hi == 0 {
		return c
	}
	lo, hi = lo*0.95, hi*1.05
	x := func(v float64) float64 {
		return plotLeft + (plotRight-plotLeft)*min(1, max(0, math.Log(v/lo)/math.Log(hi/lo)))
	}
	y := func(share float64) float64 { return plotBottom - (plotBottom-plotTop)*share }
	last := 0.0
	for _, v := range ticks(lo, hi) {
		if x(v)-last > labelWidth && x(v) < plotRight-labelWidth/3 {
			last = x(v)
			c.Ticks = append(c.Ticks, tick{last, inTime(v)})
		}
	}
	for i := range runs {
		curve, q := of(&runs[i].Result)
		line := curveLine{Colour: i % palette, Dash: dashes[i%len(dashes)]}
		var b strings.Builder
		for k, v := range curve {
			if len(curve) > 1 && v > 0 {
				fmt.Fprintf(&b, "%.1f,%.1f ", x(v), y(float64(k)/float64(len(curve)-1)))
			}
		}
		line.Points = strings.TrimSpace(b.String())
		for _, m := range []struct {
			share, value float64
			name         string
		}{{0.5, q.P50, "half of them within"}, {0.9, q.P90, "nine of ten within"}, {0.99, q.P99, "99 of 100 within"}} {
			if m.value > 0 {
				line.Marks = append(line.Marks, curveMark{mark(i, x(m.value), y(m.share)), runs[i].Name + ": " + m.name + " " + inTime(m.value)})
			}
		}
		c.Lines = append(c.Lines, line)
	}
	return c
}

// ticks are the round numbers of a logarithmic axis, 1, 2 and 5 of each power of ten, or fewer where
// they would stand too close.
func ticks(lo, hi float64) []float64 {
	steps := []float64{1, 2, 5}
	if hi/lo > 3000 {
		steps = steps[:1]
	}
	var out []float64
	for e := math.Floor(math.Log10(lo)); e <= math.Log10(hi); e++ {
		for _, s := range steps {
			if v := s * math.Pow(10, e); v >= lo && v <= hi {
				out = append(out, v)
			}
		}
	}
	return out
}

// labelWidth is the room that a label of an axis needs.
const labelWidth = 40.0

// inTime writes milliseconds as people do.
func inTime(ms float64) string {
	if ms >= 1000 {
		return fmt.Sprintf("%.4g s", ms/1000)
	}
	return fmt.Sprintf("%.3g ms", ms)
}

// loadChart is how evenly work lay: a row for each run, a point for each worker at its share of the
// mean.
type loadChart struct {
	Height, Bottom float64
	Ticks          []tick
	Even           float64 // where a worker with the mean stands
	Rows           []loadRow
}

type loadRow struct {
	Y      float64
	Name   string
	Colour int
	Marks  []curveMark
}

// Of the load chart: how high a row is, and where its plot begins and ends.
const (
	loadRowHeight       = 26.0
	loadLeft, loadRight = 150.0, 1080.0
)

func newLoad(runs []namedRun) loadChart {
	most := 1.5
	for i := range runs {
		most = max(most, runs[i].Imbalance())
	}
	x := func(share float64) float64 { return loadLeft + (loadRight-loadLeft)*share/(most*1.03) }
	c := loadChart{Bottom: 12 + loadRowHeight*float64(len(runs)), Even: x(1)}
	c.Height = c.Bottom + 34
	step := 0.25
	for most/step > 12 {
		step *= 2
	}
	for v := 0.0; v <= most*1.03; v += step {
		c.Ticks = append(c.Ticks, tick{x(v), fmt.Sprintf("%g ×", v)})
	}
	for i := range runs {
		row := loadRow{Y: 12 + loadRowHeight*(float64(i)+0.5), Name: short(runs[i].Name, 22), Colour: i % palette}
		for w, share := range runs[i].Shares() {
			row.Marks = append(row.Marks, curveMark{mark(i, x(share), row.Y), fmt.Sprintf("%s, worker %d: %.2f × the mean", runs[i].Name, w, share)})
		}
		c.Rows = append(c.Rows, row)
	}
	return c
}

func short(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
