package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/stator-project/stator/test/stats"
)

//go:embed report.html.tmpl
var reportText string

var reportPage = template.Must(template.New("report").Parse(reportText))

// chart is one plot over time.
type chart struct {
	Title string
	Lines []line
	Ticks []tick // of the vertical axis
	Times []tick // of the horizontal axis
}

// line is one curve of a chart. Its points have the format of an SVG polyline.
type line struct {
	Name, Class, Points string
	// At is the height of its name beside its end.
	At float64
}

type tick struct {
	At   float64
	Text string
}

// The plot within a chart, in the units of its view box.
const (
	left, right = 44.0, 640.0
	top, bottom = 16.0, 190.0
)

// report returns the page.
func (d *demo) report() ([]byte, error) {
	of := func(f func(s *sample) float64) (values []float64) {
		for i := range d.samples {
			values = append(values, f(&d.samples[i]))
		}
		return values
	}
	target := of(func(*sample) float64 { return d.ttft.Seconds() * 1e3 })

	page := struct {
		Charts  []chart
		Facts   string
		Reasons []string
	}{
		Charts: []chart{
			d.chart("Requests per second", map[string][]float64{
				"1 sent":         of(func(s *sample) float64 { return s.rate }),
				"2 expected now": of(func(s *sample) float64 { return s.plan.Rate }),
				"3 planned for":  of(func(s *sample) float64 { return s.plan.Expected }),
			}),
			d.chart("Workers", map[string][]float64{
				"1 ready":   of(func(s *sample) float64 { return float64(s.plan.Ready) }),
				"2 planned": of(func(s *sample) float64 { return float64(s.plan.Replicas) }),
			}),
			d.chart("Time to the first token, ms", map[string][]float64{
				"1 p50": of(func(s *sample) float64 { return 1e3 * s.p50 }), "2 p90": of(func(s *sample) float64 { return 1e3 * s.p90 }),
				"3 target": target,
			}),
		},
		Facts: fmt.Sprintf("%d requests, %d failed, %d with a first token after %v; p90 %v; %.2f worker hours.", len(d.all)+d.failed,
			d.failed, d.misses(), d.ttft, stats.Percentile(d.all, 0.9).Round(time.Millisecond), d.seconds/3600),
		Reasons: d.decisions(),
	}

	var b bytes.Buffer
	if err := reportPage.Execute(&b, page); err != nil {
		return nil, fmt.Errorf("make the page: %w", err)
	}
	return b.Bytes(), nil
}

// decisions lists the plans whose replicas were others than before.
func (d *demo) decisions() (list []string) {
	last := -1
	for _, s := range d.samples {
		if s.plan.Replicas != last {
			list = append(list, fmt.Sprintf("%.0f s: %s", s.at, s.plan.Reason))
			last = s.plan.Replicas
		}
	}
	return list
}

// chart returns a plot of series. Their names begin with their number, which orders them and is not shown.
func (d *demo) chart(title string, series map[string][]float64) chart {
	c := chart{Title: title}
	highest := 1.0
	for _, values := range series {
		for _, v := range values {
			highest = max(highest, v)
		}
	}
	step := math.Pow(10, math.Floor(math.Log10(highest)))
	for highest/step < 4 {
		step /= 2
	}
	highest = math.Ceil(highest/step) * step
	y := func(v float64) float64 { return bottom - (bottom-top)*v/highest }
	for v := 0.0; v <= highest; v += step {
		c.Ticks = append(c.Ticks, tick{y(v), fmt.Sprintf("%g", v)})
	}

	total := d.duration().Seconds()
	x := func(t float64) float64 { return left + (right-left)*min(t/total, 1) }
	for t := 0.0; t <= total; t += 20 {
		c.Times = append(c.Times, tick{x(t), fmt.Sprintf("%g s", t)})
	}
	for number := '1'; int(number-'0') <= len(series); number++ {
		for name, values := range series {
			if rune(name[0]) == number {
				c.Lines = append(c.Lines, d.line(name, values, x, y))
			}
		}
	}
	return c
}

// line returns the curve of a series.
func (d *demo) line(name string, values []float64, x, y func(float64) float64) line {
	var points strings.Builder
	for i, v := range values {
		fmt.Fprintf(&points, "%.1f,%.1f ", x(d.samples[i].at), y(v))
	}
	l := line{Name: name[2:], Class: "c" + name[:1], Points: strings.TrimSpace(points.String())}
	l.At = top + 12*float64(name[0]-'1')
	return l
}
