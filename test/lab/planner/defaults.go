package planner

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/stator-project/stator/internal/plan"
)

// printDefaults plays our algorithm with its defaults, and prints it beside the grids of rivals: the fewest misses of each at no more GPU
// hours than ours, and its least GPU hours at no more misses.
func (b *bench) printDefaults(w, progress io.Writer, list []workload, startUps []time.Duration) error {
	fmt.Fprint(w, "| workload | start-up | rival | ours: GPU hours | misses | rival: misses at no more GPU hours | "+
		"GPU hours at no more misses |\n|---|---|---|---|---|---|---|\n")
	fewer := map[string]int{}
	rows := 0
	for i := range list {
		x := &list[i]
		for _, startUp := range startUps {
			defaults := candidate{settings: []*plan.Settings{x.settings(plan.AlgorithmSLA, startUp)}}
			our, err := b.playAll(x, []candidate{defaults}, startUp, x.source)
			if errors.Is(err, errAbsent) {
				printAbsent(w, x, err)
				break
			}
			if err != nil {
				return err
			}
			c, err := b.compare(x, startUp)
			if err != nil {
				return err
			}

			rows++
			for _, rival := range contenders {
				points := c.points[rival.name]
				if rival.name == ours || points == nil {
					continue
				}
				f := frontOf(points)
				misses, hours := "none so cheap", "none so good"
				p, cheap := f.within(our[0].hours)
				if cheap {
					misses = percent(p.misses)
				}
				if !cheap || our[0].misses < p.misses {
					fewer[rival.name]++
				}
				if p, ok := f.meeting(our[0].misses); ok {
					hours = fmt.Sprintf("%.2f", p.hours)
				}
				fmt.Fprintf(w, "| %s | %v | %s | %.2f | %s | %s | %s |\n", x.name, startUp, rival.name, our[0].hours,
					percent(our[0].misses), misses, hours)
			}
			fmt.Fprint(progress, ".")
		}
	}
	fmt.Fprintln(progress)
	for _, rival := range contenders {
		if n, ok := fewer[rival.name]; ok {
			fmt.Fprintf(w, "\nFewer misses than the rival at no more GPU hours, %s: %d of %d.\n", rival.name, n, rows)
		}
	}
	return nil
}

func percent(share float64) string { return fmt.Sprintf("%.2f %%", 100*share) }
