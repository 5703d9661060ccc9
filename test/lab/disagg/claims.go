package disagg

import (
	"fmt"
	"io"
	"strings"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

// claim is a statement about comparisons. Published claims are that disaggregation has up to 30 % more tokens/s per GPU on one
// node, and twice as many on two (NVIDIA's documentation of Dynamo, for a 70-billion model with 3,000 and 150 tokens).
type claim struct {
	name  string
	modes int // that it is about
	holds func(c *comparison) bool
}

var claims = []claim{
	{"disaggregated has more tokens/s per GPU at the same SLA", 2, func(c *comparison) bool { return c.ratio(1) > 1 }},
	{"disaggregated has a lower ITL p99 at the same load", 2, func(c *comparison) bool {
		return stats.MeanOf(c.rows[1].equal, itlP99) < stats.MeanOf(c.rows[0].equal, itlP99)
	}},
	{"conditional has at least 97 % of the rate of the better of both", 3, func(c *comparison) bool {
		return c.ratio(2) >= 0.97*max(c.ratio(0), c.ratio(1))
	}},
	{"conditional has at most 103 % of the TTFT of the better of both at a quarter of the load", 3, func(c *comparison) bool {
		light := func(mode int) float64 { return stats.MeanOf(c.rows[mode].light, ttftMean) }
		return light(2) <= 1.03*min(light(0), light(1))
	}},
}

// printClaims prints in how many comparisons each claim holds.
func printClaims(w io.Writer, title string, list []*comparison) {
	for _, x := range claims {
		if x.modes > len(modes) {
			continue
		}
		n := 0
		for _, c := range list {
			if x.holds(c) {
				n++
			}
		}
		fmt.Fprintf(w, "- %s: %s in %d of %d (%.0f %%).\n", title, x.name, n, len(list), 100*float64(n)/float64(max(1, len(list))))
	}
}

// sweep compares all modes at speeds from half to twice the measured ones, and prints a row for each.
func (b *bench) sweep(w io.Writer, l workload, gpus int) ([]*comparison, error) {
	factors := []float64{0.5, 1, 2}
	var points []physics
	for _, p := range factors {
		for _, d := range factors {
			for _, t := range factors {
				points = append(points, physics{prefill: p, decode: d, transfer: t})
			}
		}
	}

	list := make([]*comparison, len(points))
	inner := *b
	inner.seeds, inner.less = 1, 2
	err := process.Each(b.slots, len(points), func(i int) error {
		one := inner
		one.slots = make(chan struct{}, 1)
		c, err := one.compare(plan{l, gpus, points[i], oneGPU(gpus)})
		list[i] = c
		return err
	})
	if err != nil {
		return nil, err
	}

	fmt.Fprint(w, "| prefill speed | decode speed | bandwidth |")
	for _, m := range modes {
		fmt.Fprintf(w, " %s, requests/s |", m.name)
	}
	fmt.Fprintf(w, " ITL p99 |\n%s\n", strings.Repeat("|---", len(modes)+4)+"|")
	for i, c := range list {
		fmt.Fprintf(w, "| %v | %v | %v |", points[i].prefill, points[i].decode, points[i].transfer)
		for k := range c.rows {
			fmt.Fprintf(w, " %.1f: %v |", stats.Mean(c.rows[k].rates), c.rows[k].fleet)
		}
		var p99s []string
		for k := range c.rows {
			p99s = append(p99s, fmt.Sprintf("%.1f", stats.MeanOf(c.rows[k].equal, itlP99)))
		}
		fmt.Fprintf(w, " %s ms |\n", strings.Join(p99s, ", "))
	}
	return list, nil
}
