package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
)

//go:embed page.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// line is a row of text cells.
type line struct {
	Title string
	Cells []string
}

// heat is a regret as the page shows it.
type heat struct {
	Class, Heat, Text, Rival string
}

// pageCell is a cell of the matrix as the page shows it.
type pageCell struct {
	Name, Command string
	Rows          [][]string
	Heat          []heat
	worst         float64
}

// page has the data of the template.
type page struct {
	Conditions     string
	Metrics        []string
	Shares, Ratios []line
	Cells          []pageCell
}

// writePage writes a page with the heat map of regrets. It is one file, without scripts.
func (s *summary) writePage(w io.Writer, conditions string) error {
	p := page{Conditions: conditions, Shares: s.shares(), Ratios: s.ratios()}
	for _, m := range metrics {
		p.Metrics = append(p.Metrics, m.name)
	}
	for i := range s.outcomes {
		o, g := &s.outcomes[i], &s.regrets[i]
		c := pageCell{Name: o.Cell, Command: o.command(), worst: g.worst()}
		for j := range o.Rows {
			c.Rows = append(c.Rows, o.Rows[j].cells())
		}
		for m := range metrics {
			c.Heat = append(c.Heat, heatOf(g.strict[m], g.byRow[m]))
		}
		for m := range metrics {
			c.Heat = append(c.Heat, heatOf(g.single[m], g.rival))
		}
		p.Cells = append(p.Cells, c)
	}
	slices.SortStableFunc(p.Cells, func(a, b pageCell) int { return cmp.Compare(b.worst, a.worst) })
	return pageTemplate.Execute(w, p)
}

// hottest is the regret with the strongest colour.
const hottest = 0.5

// heatOf returns a regret with its colour. Rival may be nil.
func heatOf(v float64, rival *row) heat {
	h := heat{Class: "bad", Heat: fmt.Sprintf("%.2f", 0.75*min(1, math.Abs(v)/hottest)), Text: percent(v)}
	if v < 0 {
		h.Class = "good"
	}
	if rival != nil {
		h.Rival = rival.title()
	}
	return h
}

func percent(v float64) string { return fmt.Sprintf("%+.1f %%", 100*v) }

// command returns the command line that plays kv's row of an outcome again.
func (o *outcome) command() string {
	if o.Sessions {
		return "no flags of stator replay make its sessions; the others are: " + o.Flags
	}
	return "stator replay " + o.Flags + " --seed 1"
}

// cells are the figures of a row as text.
func (r *row) cells() []string {
	return []string{
		r.title(), r.Setting, fmt.Sprintf("%.0f", r.Throughput), fmt.Sprintf("%.1f", r.TTFT), fmt.Sprintf("%.0f", r.TTFTP99),
		fmt.Sprintf("%.0f", r.E2E), fmt.Sprintf("%.2f", r.ITL), fmt.Sprintf("%.3f", r.Reuse), fmt.Sprintf("%.2f", r.Busiest),
		fmt.Sprintf("%.0f", r.Errors),
	}
}

// shares are the parts of all cells in which kv is near the best, and the worst regrets; then the same of the best rival of each cell.
func (s *summary) shares() []line {
	strict, worstStrict := line{Title: "the best value of any rival: cells within 3 %"}, line{Title: "the same, worst regret"}
	single, worstSingle := line{Title: "the rival with the least E2E: cells within 3 %"}, line{Title: "the same, worst regret"}
	hindsight := line{Title: "in place of kv the rival that is best in the cell, against the best value: cells within 3 %"}
	worstHindsight := line{Title: "the same, worst regret"}
	add := func(near, worst *line, of func(*regret) float64) {
		share, at := s.shareNear(of)
		near.Cells = append(near.Cells, fmt.Sprintf("%.0f %%", 100*share))
		worst.Cells = append(worst.Cells, percent(of(&s.regrets[at])))
	}
	for m := range metrics {
		add(&strict, &worstStrict, func(g *regret) float64 { return g.strict[m] })
		add(&single, &worstSingle, func(g *regret) float64 { return g.single[m] })
		add(&hindsight, &worstHindsight, func(g *regret) float64 { return g.hindsight[m] })
	}
	return []line{strict, worstStrict, single, worstSingle, hindsight, worstHindsight}
}

// ratios are the geometric means of kv divided by each rival: TTFT and E2E of its default, of the one setting that is best over all cells,
// and of its best setting in each cell.
func (s *summary) ratios() (list []line) {
	for _, r := range s.outcomes[0].Rows[1:] {
		if slices.ContainsFunc(list, func(l line) bool { return l.Title == r.Router }) {
			continue
		}
		ratio := func(best bool, m int) string { return fmt.Sprintf("%.3f", s.ratio(r.Router, best, metrics[m].of)) }
		l := line{Title: r.Router, Cells: []string{ratio(false, 1), ratio(false, 3), "", "", "", ratio(true, 1), ratio(true, 3)}}
		if name, ttft, e2e := s.oneSetting(r.Router); name != "" {
			l.Cells[2] = name
			l.Cells[3], l.Cells[4] = fmt.Sprintf("%.3f", ttft), fmt.Sprintf("%.3f", e2e)
		}
		list = append(list, l)
	}
	return list
}

// worstCells is the number of cells in the table of the worst ones.
const worstCells = 10

// writeMarkdown prints the tables of docs/results/benchmarks.md.
func (s *summary) writeMarkdown(w io.Writer, conditions string) {
	row := func(title string, cells []string) {
		fmt.Fprintf(w, "| %s |", title)
		for _, c := range cells {
			fmt.Fprintf(w, " %s |", c)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "| kv against | throughput | TTFT mean | TTFT p99 | E2E mean |\n|---|---|---|---|---|\n")
	for _, l := range s.shares() {
		row(l.Title, l.Cells)
	}
	fmt.Fprint(w, "\n| kv divided by | TTFT, default | E2E, default | one setting for all cells | TTFT, that | E2E, that "+
		"| TTFT, best setting of each cell | E2E, that |\n|---|---|---|---|---|---|---|---|\n")
	for _, l := range s.ratios() {
		row(l.Title, l.Cells)
	}

	fmt.Fprint(w, "\n| cells with the largest regret | throughput | TTFT mean | TTFT p99 | E2E mean |\n|---|---|---|---|---|\n")
	order := make([]int, len(s.regrets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.regrets[b].worst(), s.regrets[a].worst()) })
	for _, i := range order[:min(worstCells, len(order))] {
		var cells []string
		for m := range metrics {
			cells = append(cells, percent(s.regrets[i].strict[m]))
		}
		row(s.outcomes[i].Cell, cells)
	}
	fmt.Fprintf(w, "\n%s\n", conditions)
}

// writeCells prints all rows, cell by cell.
func (s *summary) writeCells(w io.Writer) {
	write := func(cells []string) {
		fmt.Fprintf(w, "  %-14s %-26s", cells[0], cells[1])
		for _, c := range cells[2:] {
			fmt.Fprintf(w, " %9s", c)
		}
		fmt.Fprintln(w)
	}
	for i := range s.outcomes {
		o, g := &s.outcomes[i], &s.regrets[i]
		fmt.Fprintf(w, "%s (%s)\n  %s\n", o.Cell, o.Half, o.command())
		write([]string{"router", "setting", "tokens/s", "TTFT ms", "p99", "E2E", "ITL", "reuse", "busiest", "errors"})
		for j := range o.Rows {
			write(o.Rows[j].cells())
		}
		fmt.Fprint(w, "  regret:")
		for m := range metrics {
			by := "no rival"
			if g.byRow[m] != nil {
				by = g.byRow[m].title()
			}
			fmt.Fprintf(w, " %s %s (%s)", metrics[m].name, percent(g.strict[m]), by)
		}
		fmt.Fprint(w, "\n\n")
	}
}
