package planner

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// comparison is all contenders on one workload with one start-up of engines.
type comparison struct {
	*workload
	startUp time.Duration
	points  map[string][]point // by the contender's name
	rows    []row
}

// row is a rival beside ours.
type row struct {
	rival string
	// chosen is the point that stands for the rival's front. equalHours is our point with the fewest misses at no more GPU
	// hours, equalMisses that with the least GPU hours at no more misses.
	chosen, equalHours, equalMisses point
	fewer, cheaper                  bool // there are such points
	// better counts the points of the rival's front where ours has fewer misses at no more GPU hours, of all.
	better, all int
	// aside are the figures of chosen and equalHours on requests on which nothing was chosen.
	asideChosen, asideOurs point
}

// compare plays all contenders.
func (b *bench) compare(w *workload, startUp time.Duration) (*comparison, error) {
	c := &comparison{workload: w, startUp: startUp, points: map[string][]point{}}
	for _, x := range contenders {
		if x.name == ours && b.defaults {
			continue // they are played by themselves
		}
		if x.name != ours && !b.rivals.MatchString(x.name) {
			continue
		}
		// Fleets that stay as they are do not depend on the start-up.
		points := b.static[w.name]
		if x.name != static || points == nil {
			var err error
			points, err = b.playAll(w, x.grid(w, startUp), startUp, w.source)
			if err != nil {
				return nil, err
			}
		}
		if x.name == static {
			b.static[w.name] = points
		}
		if len(points) > 0 {
			c.points[x.name] = points
		}
	}

	for _, x := range contenders {
		if x.name == ours || c.points[x.name] == nil {
			continue
		}
		r, ok := compareFronts(frontOf(c.points[ours]), frontOf(c.points[x.name]))
		if !ok {
			continue
		}
		r.rival = x.name
		c.rows = append(c.rows, r)
	}
	return c, b.playAside(c)
}

// compareFronts compares a rival's front with ours; false where one has no points.
func compareFronts(our, rival front) (r row, ok bool) {
	if len(our) == 0 || len(rival) == 0 {
		return r, false
	}
	r.chosen = rival.chosen()
	r.equalHours, r.fewer = our.within(r.chosen.hours)
	r.equalMisses, r.cheaper = our.meeting(r.chosen.misses)
	for _, p := range rival {
		best, ok := our.within(p.hours)
		r.all++
		if ok && best.misses < p.misses {
			r.better++
		}
	}
	return r, true
}

// playAside plays the chosen candidates on the requests that were set aside.
func (b *bench) playAside(c *comparison) error {
	for i := range c.rows {
		r := &c.rows[i]
		if !r.fewer {
			continue
		}
		points, err := b.playAll(c.workload, []candidate{r.chosen.candidate, r.equalHours.candidate}, c.startUp, c.aside)
		if err != nil {
			return err
		}
		r.asideChosen, r.asideOurs = points[0], points[1]
	}
	return nil
}

// printGrids prints the candidates.
func printGrids(w io.Writer) {
	for _, x := range contenders {
		fmt.Fprintf(w, "- %s: %s\n", x.name, x.about)
	}
	fmt.Fprintln(w)
}

const header = "| workload | start-up | rival, its parameters | GPU hours | misses | ours: misses at equal GPU hours | " +
	"GPU hours at equal misses | better at | set aside: rival | ours |\n|---|---|---|---|---|---|---|---|---|---|\n"

// printAll prints the table of all comparisons.
func printAll(w io.Writer, list []*comparison, o *options) {
	fmt.Fprint(w, header)
	for _, c := range list {
		for i := range c.rows {
			fmt.Fprint(w, c.line(&c.rows[i]))
		}
	}
	fmt.Fprintln(w)
	printClaims(w, list)

	if !o.grids {
		return
	}
	for _, c := range list {
		for _, x := range contenders {
			fmt.Fprintf(w, "\n%s, start-up %v, %s; * is on the front:\n\n%s", c.name, c.startUp, x.name, gridText(c.points[x.name]))
		}
	}
}

// gridText lists points.
func gridText(points []point) string {
	var b strings.Builder
	f := frontOf(points)
	for _, p := range points {
		mark := ""
		if slices.ContainsFunc(f, func(q point) bool { return q.label == p.label }) {
			mark = " *"
		}
		fmt.Fprintf(&b, "- %s: %.3f GPU hours, %.2f %%%s\n", p.label, p.hours, 100*p.misses, mark)
	}
	return b.String()
}

// claim is a statement about a rival and ours.
type claim struct {
	name  string
	rival string // in the rival's name
	holds func(r *row) bool
}

// fewerThanReactive is the share of the reactive algorithm's misses that may remain.
const fewerThanReactive = 0.2

var claims = []claim{
	{"fewer misses at no more GPU hours", "", func(r *row) bool { return r.fewer && r.equalHours.misses < r.chosen.misses }},
	{"fewer GPU hours at no more misses", "", func(r *row) bool { return r.cheaper && r.equalMisses.hours < r.chosen.hours }},
	{"at least 80 % fewer misses than reactive at no more GPU hours", "reactive", func(r *row) bool {
		return r.fewer && r.equalHours.misses <= fewerThanReactive*r.chosen.misses
	}},
	{"set aside, fewer misses and no more than 2 % more GPU hours", "", func(r *row) bool {
		return r.fewer && r.asideOurs.misses < r.asideChosen.misses && r.asideOurs.hours <= 1.02*r.asideChosen.hours
	}},
}

// printClaims prints in how many rows each claim holds, for each rival.
func printClaims(w io.Writer, list []*comparison) {
	for _, x := range claims {
		fmt.Fprintf(w, "- %s:", x.name)
		for _, rival := range contenders {
			if rival.name == ours || !strings.Contains(rival.name, x.rival) {
				continue
			}
			holds, all := 0, 0
			for _, c := range list {
				for i := range c.rows {
					if c.rows[i].rival != rival.name {
						continue
					}
					all++
					if x.holds(&c.rows[i]) {
						holds++
					}
				}
			}
			fmt.Fprintf(w, " %s %d of %d.", rival.name, holds, all)
		}
		fmt.Fprintln(w)
	}
}

// line returns a row of the table.
func (c *comparison) line(r *row) string {
	fewer, cheaper := "none so cheap", "none so good"
	if r.fewer {
		fewer = fmt.Sprintf("%.2f %% (%+.0f %%)", 100*r.equalHours.misses, 100*(r.equalHours.misses/max(r.chosen.misses, 1e-9)-1))
	}
	if r.cheaper {
		cheaper = fmt.Sprintf("%.2f (%+.0f %%)", r.equalMisses.hours, 100*(r.equalMisses.hours/r.chosen.hours-1))
	}
	aside := func(p point) string {
		if !r.fewer {
			return "not compared"
		}
		return fmt.Sprintf("%.2f h, %.2f %%", p.hours, 100*p.misses)
	}
	return fmt.Sprintf("| %s | %v | %s: %s | %.2f | %.2f %% | %s | %s | %d of %d | %s | %s |\n", c.name, c.startUp, r.rival, r.chosen.label,
		r.chosen.hours, 100*r.chosen.misses, fewer, cheaper, r.better, r.all, aside(r.asideChosen), aside(r.asideOurs))
}
