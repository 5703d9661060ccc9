package planner

import (
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/plan"
)

// smallGrids are the rivals of the rows that are held out. The static fleets are all within the budget, and with engines apart those
// around the start and three splits of the whole budget.
var smallGrids = []contender{
	{static, "", func(w *workload, _ time.Duration) (list []candidate) {
		add := func(f fleet) { list = append(list, candidate{label: f.String(), static: f}) }
		if w.start.prefill == 0 {
			for n := 1; n <= mostEngines; n++ {
				add(fleet{0, n})
			}
			return list
		}
		for p := 1; p <= w.start.prefill+2; p++ {
			for d := 1; d <= w.start.decode+2; d++ {
				add(fleet{p, d})
			}
		}
		for _, p := range []int{mostEngines / 4, mostEngines / 2, mostEngines * 3 / 4} {
			add(fleet{p, mostEngines - p})
		}
		return list
	}},
	{"reactive", "", func(w *workload, startUp time.Duration) []candidate {
		if w.start.prefill == 0 {
			return w.reactives(startUp, []float64{0.1, 0.2, 0.3, 0.45, 0.6, 0.8}, []float64{0})
		}
		return w.reactives(startUp, []float64{0.2, 0.45, 0.8}, []float64{0.4, 1})
	}},
	{"Dynamo, load", "", func(w *workload, startUp time.Duration) []candidate {
		return w.loads(startUp, []int{70, 90}, []time.Duration{5 * time.Second})
	}},
}

// heldOutRivals returns the rivals that are played.
func (b *bench) heldOutRivals() []contender {
	return slices.DeleteFunc(slices.Clone(smallGrids), func(c contender) bool { return !b.rivals.MatchString(c.name) })
}

// tally counts rows.
type tally struct {
	rows int
	// reachable counts the rows in which any fleet, planned or static, keeps to the quantile, and kept the ones where ours does too.
	reachable, kept int
	// early counts the reachable rows in which more misses than the quantile allows come before a planned worker can be ready.
	early int
	fewer map[string]int // by rival: ours has fewer misses than each of its points with no more GPU hours
}

// heldOutNames lists what --held-out takes.
func heldOutNames() string {
	var b strings.Builder
	for _, s := range heldOutSets {
		b.WriteString(s.name + ", ")
	}
	return b.String() + "or all"
}

// heldOutIn returns the rows of a set, or of all sets.
func heldOutIn(set string) (rows []heldOut, err error) {
	known := false
	for _, s := range heldOutSets {
		if set != s.name && set != "all" {
			continue
		}
		list, err := s.rows()
		if err != nil {
			return nil, err
		}
		known = true
		rows = append(rows, list...)
	}
	if !known {
		return nil, fmt.Errorf("--held-out %q: use %s", set, heldOutNames())
	}
	return rows, nil
}

// printHeldOut plays the rows of a set.
func (b *bench) printHeldOut(w, progress io.Writer, o *options, only *regexp.Regexp) error {
	rows, err := heldOutIn(o.heldOut)
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(x heldOut) bool { return !only.MatchString(x.name) })
	if o.timeline != "" {
		for i := range rows {
			if err := b.printMinutes(w, &rows[i]); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprint(w, "| load, engine | targets | start-up | ours: GPU hours, misses | of these before a planned worker can be ready | "+
		"fewest misses of all fleets |")
	for _, rival := range b.heldOutRivals() {
		fmt.Fprintf(w, " %s: misses, GPU hours |", rival.name)
	}
	fmt.Fprintf(w, "\n%s|\n", strings.Repeat("|---", 6+len(b.heldOutRivals())))

	t := tally{fewer: map[string]int{}}
	for i := range rows {
		x := &rows[i]
		err := b.printRow(w, x, &t)
		if errors.Is(err, errAbsent) {
			printAbsent(w, &x.workload, err)
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprint(progress, ".")
	}
	fmt.Fprintln(progress)
	fmt.Fprintf(w, "\nMisses within the quantile: %d of the %d rows in which a fleet could.\n", t.kept, t.reachable)
	fmt.Fprintf(w, "In %d of them no planner could: too many misses come before a planned worker can be ready.\n", t.early)
	for _, rival := range b.heldOutRivals() {
		fmt.Fprintf(w, "Fewer misses than the rival at no more GPU hours, %s: %d of %d.\n", rival.name, t.fewer[rival.name], t.rows)
	}
	return nil
}

// defaults is ours with its defaults.
func (x *heldOut) defaults() candidate {
	return candidate{settings: []*plan.Settings{x.settings(plan.AlgorithmSLA, x.startUp)}}
}

// printMinutes plays ours alone, and prints its minutes.
func (b *bench) printMinutes(w io.Writer, x *heldOut) error {
	next, err := x.source(b)
	if err != nil {
		return err
	}
	our := x.defaults()
	t := &timeline{sla: x.sla}
	p, err := b.play(&x.workload, next, &our, x.startUp, t)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s, start-up %v: %.2f h, %s misses\n", x.name, x.startUp, p.hours, percent(p.misses))
	t.print(w)
	return nil
}

// printRow plays one row.
func (b *bench) printRow(w io.Writer, x *heldOut, t *tally) error {
	points, err := b.playAll(&x.workload, []candidate{x.defaults()}, x.startUp, x.source)
	if err != nil {
		return err
	}
	our := points[0]

	fewest := our.misses
	cells := ""
	for _, rival := range b.heldOutRivals() {
		points, err := b.playAll(&x.workload, rival.grid(&x.workload, x.startUp), x.startUp, x.source)
		if err != nil {
			return err
		}
		least := math.Inf(1)
		for _, p := range points {
			least = min(least, p.misses)
		}
		fewest = min(fewest, least)

		f := frontOf(points)
		misses, hours := "none so cheap", "none so good"
		p, cheap := f.within(our.hours)
		if cheap {
			misses = percent(p.misses)
		}
		if !cheap || our.misses < p.misses {
			t.fewer[rival.name]++
		}
		if p, ok := f.meeting(our.misses); ok {
			hours = fmt.Sprintf("%.2f h", p.hours)
		}
		cells += fmt.Sprintf(" %s, %s |", misses, hours)
	}

	t.rows++
	allowed := 1 - x.quantile
	if fewest <= allowed {
		t.reachable++
		if our.early > allowed {
			t.early++
		}
		if our.misses <= allowed {
			t.kept++
		}
	}
	fmt.Fprintf(w, "| %s | %v, %v, %v | %v | %.2f h, %s | %s | %s |%s\n", x.name, x.sla.TTFT, x.sla.ITL, x.quantile, x.startUp, our.hours,
		percent(our.misses), percent(our.early), percent(fewest), cells)
	return nil
}
