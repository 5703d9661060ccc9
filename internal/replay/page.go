package replay

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/sim"
)

//go:embed page.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// Page returns the comparison as a page of HTML, with notes above it. There must be at least one run.
func Page(runs []Run, notes ...string) ([]byte, error) {
	var out bytes.Buffer
	p := newPage(runs)
	p.Notes = notes
	if err := pageTemplate.Execute(&out, p); err != nil {
		return nil, fmt.Errorf("draw page: %w", err)
	}
	return out.Bytes(), nil
}

// page is the data of the template.
type page struct {
	Runs   []pageRun
	Rows   []pageRow
	Curves []curveChart
	Load   loadChart
	Notes  []string // paragraphs
}

// pageRun is a run in the legend. Runs differ in dashes and marks as well as in colour, for readers who
// do not see colours.
type pageRun struct {
	Name, Settings string
	Interrupted    bool
	Colour         int // index of the palette
	Dash           string
	Mark           template.HTML
}

type pageRow struct {
	Name  string
	Cells []pageCell
}

// pageCell is a figure, its difference from the first run, and the judgement: better, worse or nothing.
type pageCell struct {
	Value, Difference, Judgement string
}

var dashes = []string{"", "7 3", "2 3", "10 3 2 3", "4 2", "1 2", "12 4", "6 2 1 2"}

// The middle of a line in the legend.
const legendX, legendY = 22.0, 8.0

// palette is the number of colours of the template.
const palette = 8

func newPage(runs []Run) page {
	var p page
	for i := range runs {
		p.Runs = append(p.Runs, pageRun{
			Name: runs[i].Name, Settings: runs[i].Settings, Interrupted: runs[i].Interrupted,
			Colour: i % palette, Dash: dashes[i%len(dashes)], Mark: mark(i, legendX, legendY),
		})
	}

	for _, m := range measuresOf(runs) {
		row := pageRow{Name: m.name}
		for i := range runs {
			row.Cells = append(row.Cells, m.cell(&runs[i].Result.Result, &runs[0].Result.Result))
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
	v := m.of(r)
	was := m.of(first)
	c := pageCell{Value: m.text(r), Difference: m.difference(r, first)}

	switch {
	case c.Difference == "" || m.better == 0:
	case (v > was) == (m.better > 0):
		c.Judgement = "better"
	default:
		c.Judgement = "worse"
	}
	return c
}

// mark returns the shape of a run around a point: a circle, a square, a triangle or a diamond.
func mark(run int, x, y float64) template.HTML {
	const r = 3.6 // radius
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

// The edges of the plot within a chart, in the units of its view box.
const (
	plotLeft, plotRight = 34.0, 352.0
	plotTop, plotBottom = 10.0, 196.0
)

// curveChart shows the share of requests that were as fast as a time, with a line for each run.
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

// curveMark is a mark with the text that a pointer shows.
type curveMark struct {
	Shape template.HTML
	Text  string
}

// distribution returns the curve and the quantiles of one kind of time.
type distribution func(*sim.Result) ([]float64, sim.Quantiles)

func newCurves(title string, runs []Run, of distribution) curveChart {
	c := curveChart{Title: title}
	axis, ok := newTimeAxis(runs, of)
	if !ok {
		return c
	}

	last := 0.0
	for _, v := range ticks(axis.from, axis.to) {
		at := axis.x(v)
		if at-last > labelWidth && at < plotRight-labelWidth/3 {
			last = at
			c.Ticks = append(c.Ticks, tick{at, inTime(v)})
		}
	}

	for i := range runs {
		curve, q := of(&runs[i].Result.Result)
		c.Lines = append(c.Lines, curveLine{
			Colour: i % palette, Dash: dashes[i%len(dashes)], Points: axis.points(curve), Marks: axis.marks(i, runs[i].Name, q),
		})
	}
	return c
}

// timeAxis is a logarithmic axis of milliseconds.
type timeAxis struct{ from, to float64 }

// newTimeAxis returns an axis on which all runs fit. ok is false if no time was measured.
func newTimeAxis(runs []Run, of distribution) (axis timeAxis, ok bool) {
	axis.from = math.Inf(1)
	for i := range runs {
		curve, q := of(&runs[i].Result.Result)
		// The fastest 2 % would need half of a logarithmic axis, and nothing is decided by them.
		shown := append(slices.Clone(curve[min(1, len(curve)):]), q.P99)
		for _, v := range shown {
			if v > 0 {
				axis.from = min(axis.from, v)
				axis.to = max(axis.to, v)
			}
		}
	}

	ok = axis.to > 0
	axis.from *= 0.95
	axis.to *= 1.05
	return axis, ok
}

func (a timeAxis) x(v float64) float64 {
	share := math.Log(v/a.from) / math.Log(a.to/a.from)
	return plotLeft + (plotRight-plotLeft)*min(1, max(0, share))
}

// shareY returns the height of a share of the requests, 0 to 1.
func shareY(share float64) float64 { return plotBottom - (plotBottom-plotTop)*share }

// points returns a curve as the points of a line.
func (a timeAxis) points(curve []float64) string {
	var b strings.Builder
	for k, v := range curve {
		if len(curve) > 1 && v > 0 {
			fmt.Fprintf(&b, "%.1f,%.1f ", a.x(v), shareY(float64(k)/float64(len(curve)-1)))
		}
	}
	return strings.TrimSpace(b.String())
}

// marks returns the marks of a run's quantiles.
func (a timeAxis) marks(run int, name string, q sim.Quantiles) []curveMark {
	var marks []curveMark
	for _, m := range []struct {
		share, value float64
		name         string
	}{{0.5, q.P50, "50 % within"}, {0.9, q.P90, "90 % within"}, {0.99, q.P99, "99 % within"}} {
		if m.value > 0 {
			marks = append(marks, curveMark{mark(run, a.x(m.value), shareY(m.share)), name + ": " + m.name + " " + inTime(m.value)})
		}
	}
	return marks
}

// ticks returns the round numbers of a logarithmic axis: 1, 2 and 5 of each power of ten, or powers of
// ten alone on a long axis.
func ticks(lo, hi float64) []float64 {
	steps := []float64{1, 2, 5}
	if hi/lo > longAxis {
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

// longAxis is the ratio of the ends of an axis from which on powers of ten alone have labels.
const longAxis = 3000

// labelWidth is the space that a label of an axis needs.
const labelWidth = 40.0

// inTime writes milliseconds with a unit that fits.
func inTime(ms float64) string {
	if ms >= 1000 {
		return fmt.Sprintf("%.4g s", ms/1000)
	}
	return fmt.Sprintf("%.3g ms", ms)
}

// loadChart shows how evenly the work was spread: a row for each run, with a mark for each worker at its
// load divided by the mean.
type loadChart struct {
	Height, Bottom float64
	Ticks          []tick
	Even           float64 // position of the mean
	Rows           []loadRow
}

type loadRow struct {
	Y      float64
	Name   string
	Colour int
	Marks  []curveMark
}

// The load chart: the height of a row, the edges of the plot, and the space above and below the rows.
const (
	loadRowHeight       = 26.0
	loadLeft, loadRight = 150.0, 1080.0
	loadTop, loadFoot   = 12.0, 34.0
	maxLoadTicks        = 12
	maxLoadName         = 22 // characters
)

func newLoad(runs []Run) loadChart {
	most := 1.5 // the axis is never shorter
	for i := range runs {
		most = max(most, runs[i].Imbalance())
	}
	most *= 1.03 // so that no mark is at the very edge
	x := func(share float64) float64 { return loadLeft + (loadRight-loadLeft)*share/most }
	c := loadChart{Bottom: loadTop + loadRowHeight*float64(len(runs)), Even: x(1)}
	c.Height = c.Bottom + loadFoot

	step := 0.25
	for most/step > maxLoadTicks {
		step *= 2
	}
	for v := 0.0; v <= most; v += step {
		c.Ticks = append(c.Ticks, tick{x(v), fmt.Sprintf("%g ×", v)})
	}

	for i := range runs {
		row := loadRow{Y: loadTop + loadRowHeight*(float64(i)+0.5), Name: short(runs[i].Name, maxLoadName), Colour: i % palette}
		for w, share := range runs[i].Shares() {
			text := fmt.Sprintf("%s, worker %d: %.2f × the mean", runs[i].Name, w, share)
			row.Marks = append(row.Marks, curveMark{mark(i, x(share), row.Y), text})
		}
		c.Rows = append(c.Rows, row)
	}
	return c
}

// short cuts a text to n characters.
func short(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
