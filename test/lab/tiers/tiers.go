// Package tiers compares simulated engines with and without caches behind the GPU's, on conversations of several turns. It
// prints the tables of docs/results/benchmarks.md.
package tiers

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/stator-project/stator/test/stats"
)

// Run compares the tiers, and prints the tables.
func Run(_ context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("tiers", flag.ContinueOnError)
	seeds := f.Int("seeds", 5, "number of runs of each setting")
	quick := f.Bool("quick", false, "play little, to see that everything runs")
	if err := f.Parse(args); err != nil {
		return err
	}
	return printTables(out, *seeds, *quick)
}

// printTables prints the engine, and the table of each kind of conversation.
func printTables(w io.Writer, seeds int, quick bool) error {
	e, err := (&setting{}).engine()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Llama-3.1-70B FP8 on one %s, a roofline: %d tokens of KV cache. "+
		"Host: %.0f GB at %.0f GB/s. Disk: %.2f TB at %.1f GB/s.\n",
		gpu, e.Blocks*blockTokens, hostBytes/1e9, hostBandwidth/1e9, diskBytes/1e12, diskReads/1e9)
	if quick {
		seeds = 1
	}
	for _, x := range shapes {
		if err := printShape(w, x.name, &x.conversations, seeds); err != nil {
			return err
		}
	}
	return printSweep(w, quick)
}

// printShape prints a table of settings for one kind of conversations.
func printShape(w io.Writer, name string, c *conversations, seeds int) error {
	fmt.Fprintf(w, "\n%s: %d users, %d turns, first prompts of %d tokens, %d more each turn, answers of %d, pauses of %v; "+
		"%d seeds, ± is the standard deviation\n\n", name, c.users, c.turns, c.first, c.question+c.answer, c.answer, c.pause, seeds)
	fmt.Fprint(w, "| tiers | TTFT mean, ms | change | later turns, ms | change | TTFT p90 | ITL mean | reuse |\n"+
		"|---|---|---|---|---|---|---|---|\n")
	var without, withoutLater float64
	for _, x := range []struct {
		name string
		setting
	}{
		{"none", setting{}},
		{"host, all is loaded", setting{host: hostBytes, bandwidth: hostBandwidth, all: true}},
		{"host", setting{host: hostBytes, bandwidth: hostBandwidth}},
		{"host and disk, all is loaded", setting{host: hostBytes, bandwidth: hostBandwidth, disk: true, all: true}},
		{"host and disk", setting{host: hostBytes, bandwidth: hostBandwidth, disk: true}},
	} {
		var means, laters, p90, itl, reuse []float64
		for seed := range uint64(seeds) {
			r, later, err := play(c, &x.setting, seed+1)
			if err != nil {
				return err
			}
			laters = append(laters, later)
			means = append(means, r.TTFT.Mean)
			p90 = append(p90, r.TTFT.P90)
			itl = append(itl, r.ITL.Mean)
			reuse = append(reuse, r.PrefixReuse)
		}

		m, l := stats.Mean(means), stats.Mean(laters)
		if without == 0 {
			without = m
			withoutLater = l
		}
		fmt.Fprintf(w, "| %s | %.0f ± %.0f | %+.0f %%, %.1f x | %.0f | %+.0f %%, %.1f x | %.0f | %.1f | %.0f %% |\n",
			x.name, m, stats.Deviation(means), 100*(m/without-1), without/m, l, 100*(l/withoutLater-1), withoutLater/l,
			stats.Mean(p90), stats.Mean(itl), 100*stats.Mean(reuse))
	}
	return nil
}
