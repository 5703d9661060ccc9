package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
)

// metric is a figure by which routers are compared.
type metric struct {
	name string
	of   func(*figures) float64
	more bool // more is better
}

var metrics = []metric{
	{"throughput", func(f *figures) float64 { return f.Throughput }, true},
	{"TTFT mean", func(f *figures) float64 { return f.TTFT }, false},
	{"TTFT p99", func(f *figures) float64 { return f.TTFTP99 }, false},
	{"E2E mean", func(f *figures) float64 { return f.E2E }, false},
}

// worse is by how much a figure is worse than another one, as a share of the other; negative where it is better.
func (m *metric) worse(a, b *figures) float64 {
	x, y := m.of(a), m.of(b)
	switch {
	case x == y:
		return 0
	case m.more:
		return 1 - x/y
	}
	return x/y - 1
}

// failing is the share of kv's requests by which a rival's errors may be more. A rival with more is not compared, because requests
// that fail make the others quicker.
const failing = 0.01

// regret is by how much kv is worse than others in a cell, by metric.
type regret struct {
	// strict compares with the best value of each metric, of whatever rival.
	strict [4]float64
	// byRow is the rival with that value.
	byRow [4]*row
	// single compares with one rival: the one with the least mean E2E.
	single [4]float64
	rival  *row
}

// regretOf compares the first row of an outcome with the others.
func regretOf(o *outcome) regret {
	var g regret
	kv := &o.Rows[0]
	var rivals []*row
	for i := range o.Rows[1:] {
		if r := &o.Rows[1+i]; r.Errors <= kv.Errors*(1+failing)+failing*1000 {
			rivals = append(rivals, r)
		}
	}
	if len(rivals) == 0 {
		return g
	}

	g.rival = slices.MinFunc(rivals, func(a, b *row) int { return cmp.Compare(a.E2E, b.E2E) })
	for i := range metrics {
		m := &metrics[i]
		g.byRow[i] = slices.MaxFunc(rivals, func(a, b *row) int {
			return cmp.Compare(m.worse(&kv.figures, &a.figures), m.worse(&kv.figures, &b.figures))
		})
		g.strict[i] = m.worse(&kv.figures, &g.byRow[i].figures)
		g.single[i] = m.worse(&kv.figures, &g.rival.figures)
	}
	return g
}

// summary is the regret over all cells.
type summary struct {
	outcomes []outcome
	regrets  []regret
}

func summarize(list []outcome) *summary {
	s := &summary{outcomes: list}
	for i := range list {
		s.regrets = append(s.regrets, regretOf(&list[i]))
	}
	return s
}

// near is the regret that counts as none.
const near = 0.03

// shareNear is the share of cells with a regret of at most near, and worst the cell with the largest.
func (s *summary) shareNear(of func(*regret) float64) (share float64, worst int) {
	for i := range s.regrets {
		v := of(&s.regrets[i])
		if v <= near {
			share += 1 / float64(len(s.regrets))
		}
		if v > of(&s.regrets[worst]) {
			worst = i
		}
	}
	return share, worst
}

// ratio is the geometric mean over cells of kv's figure divided by a rival's, and cells how many cells have both. Best means the
// row of the rival's best setting, or that of its default where the search chose it.
func (s *summary) ratio(router string, best bool, of func(*figures) float64) (mean float64, cells int) {
	sum := 0.0
	for i := range s.outcomes {
		rows := s.outcomes[i].Rows
		var rival *row
		for j := range rows {
			if rows[j].Router == router && (rival == nil || best && rows[j].Best) {
				rival = &rows[j]
			}
		}
		kv := of(&rows[0].figures)
		if rival == nil || kv <= 0 || of(&rival.figures) <= 0 {
			continue
		}
		sum += math.Log(kv / of(&rival.figures))
		cells++
	}
	return math.Exp(sum / float64(max(1, cells))), cells
}

// write prints the summary as tables of Markdown.
func (s *summary) write(w io.Writer) {
	if len(s.outcomes) == 0 {
		return
	}
	fmt.Fprintf(w, "\n| kv against | metric | cells within %.0f %% | worst | in the cell |\n|---|---|---|---|---|\n", 100*near)
	for i := range metrics {
		s.writeLine(w, "the best value of any rival", metrics[i].name, func(g *regret) float64 { return g.strict[i] })
	}
	for i := range metrics {
		s.writeLine(w, "the rival with the least E2E", metrics[i].name, func(g *regret) float64 { return g.single[i] })
	}

	fmt.Fprint(w, "\n| kv divided by | TTFT mean, default | E2E mean, default | TTFT mean, best setting | E2E mean, best setting |\n|---|---|---|---|---|\n")
	var seen []string
	for _, r := range s.outcomes[0].Rows[1:] {
		if slices.Contains(seen, r.Router) {
			continue
		}
		seen = append(seen, r.Router)
		fmt.Fprintf(w, "| %s |", r.Router)
		for _, best := range []bool{false, true} {
			for _, m := range []metric{metrics[1], metrics[3]} {
				mean, _ := s.ratio(r.Router, best, m.of)
				fmt.Fprintf(w, " %.3f |", mean)
			}
		}
		fmt.Fprintln(w)
	}
}

func (s *summary) writeLine(w io.Writer, against, name string, of func(*regret) float64) {
	share, worst := s.shareNear(of)
	fmt.Fprintf(w, "| %s | %s | %.0f %% | %+.1f %% | %s |\n", against, name, 100*share, 100*of(&s.regrets[worst]), s.outcomes[worst].Cell)
}

// writeCells prints all rows, cell by cell.
func writeCells(w io.Writer, list []outcome) {
	for i := range list {
		o := &list[i]
		fmt.Fprintf(w, "%s (%s)\n", o.Cell, o.Half)
		if o.Sessions {
			fmt.Fprintf(w, "  no flags of stator replay make its sessions; the others are: %s\n", o.Flags)
		} else {
			fmt.Fprintf(w, "  stator replay %s --seed 1\n", o.Flags)
		}
		fmt.Fprintf(w, "  %-22s %-28s %10s %9s %9s %9s %7s %6s %8s %7s\n", "router", "setting", "tokens/s", "TTFT ms", "p99", "E2E", "ITL", "reuse",
			"busiest", "errors")
		for _, r := range o.Rows {
			fmt.Fprintf(w, "  %-22s %-28s %10.0f %9.1f %9.0f %9.0f %7.2f %6.3f %8.2f %7.0f\n", r.title(), r.Setting, r.Throughput, r.TTFT, r.TTFTP99,
				r.E2E, r.ITL, r.Reuse, r.Busiest, r.Errors)
		}
		g := regretOf(o)
		fmt.Fprint(w, "  regret:")
		for m := range metrics {
			fmt.Fprintf(w, " %s %+.1f %% (%s)", metrics[m].name, 100*g.strict[m], g.byRow[m].title())
		}
		fmt.Fprint(w, "\n\n")
	}
}
