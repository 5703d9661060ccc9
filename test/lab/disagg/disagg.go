// Package disagg compares simulated fleets whose engines prefill and decode with fleets of as many GPUs whose engines do
// one of both. It prints the tables of docs/results/benchmarks.md.
package disagg

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/conversations"
	"github.com/stator-project/stator/test/lab/profile"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

// Run compares the fleets, and prints the tables.
func Run(_ context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("disagg", flag.ContinueOnError)
	b := bench{less: 1}
	traces := f.String("traces", "", "`folder` of traces (default: traces, then ../shared/traces)")
	only := f.String("only", "", "play only workloads whose names contain this `text`")
	jobs := f.Int("jobs", 2, "number of runs at a time")
	f.IntVar(&b.seeds, "seeds", 3, "number of runs of each kind")
	quick := f.Bool("quick", false, "play little, to see that everything runs")
	if err := f.Parse(args); err != nil {
		return err
	}
	b.slots = make(chan struct{}, max(1, *jobs))
	return b.printAll(out, *traces, *only, *quick)
}

// printAll prints the tables of all workloads.
func (b *bench) printAll(w io.Writer, traces, only string, quick bool) error {
	printParameters(w)
	if err := b.load(w, traces); err != nil {
		return err
	}
	sizes := []int{gpusOfNode, 2 * gpusOfNode}
	if quick {
		sizes = []int{2}
		b.seeds = 1
		b.less = 5
		modes[0].fleets = func(int) []fleet { return []fleet{{decode: 2, decodeTP: 1, tokens: maxTokens}} }
	}

	var list []*comparison
	var grids strings.Builder
	fmt.Fprintf(w, "\nTimes are those at the rate that the aggregated fleet serves. ± is the deviation over %d seeds.\n\n", b.seeds)
	fmt.Fprint(w, header)
	for _, l := range workloads {
		if !strings.Contains(l.name, only) {
			continue
		}
		candidates := allFleets(sizes[0])
		for _, gpus := range sizes {
			c, err := b.compare(plan{l, gpus, measured, candidates})
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			fmt.Fprint(w, c)
			fmt.Fprint(&grids, c.gridText())
			list = append(list, c)
			candidates = c.like(2)
		}
	}
	fmt.Fprintf(w, "\n%s\n", grids.String())
	printClaims(w, "measured speeds", list)
	if quick || only != "" {
		return nil
	}
	return b.bounds(w)
}

// bounds prints how the first workload's figures depend on the parameters.
func (b *bench) bounds(w io.Writer) error {
	l := workloads[0]
	for _, x := range []struct {
		name    string
		physics physics
	}{
		{"passes as long as the longer one of their parts", physics{prefill: 1, decode: 1, transfer: 1, overlap: true}},
		{"prompts without the time that does not depend on their tokens", physics{prefill: 1, decode: 1, transfer: 1, noLaunch: true}},
	} {
		c, err := b.compare(plan{l, gpusOfNode, x.physics, allFleets(gpusOfNode)})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\nThe same with %s:\n\n%s%v\n%s", x.name, header, c, c.gridText())
	}

	fmt.Fprintf(w, "\nSweep on %d GPUs, %s:\n\n", gpusOfNode, l.name)
	list, err := b.sweep(w, l, gpusOfNode)
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	printClaims(w, "sweep", list)
	return nil
}

// load reads the profile and Mooncake's trace, or generates conversations if the trace is not at hand.
func (b *bench) load(w io.Writer, traces string) (err error) {
	b.one, err = profile.Load()
	if err != nil {
		return err
	}
	path, ok := tracefiles.Find(traces, tracefiles.Mooncake.Path)
	if !ok {
		fmt.Fprintf(w, "\nMooncake's trace is not at hand: generated conversations take its place. %s\n", tracefiles.Hint)
		b.rows = conversations.Rows(5000, 1)
		return nil
	}

	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read trace: %w", err)
	}
	defer func() { _ = f.Close() }()
	next := trace.MooncakeRows(f)
	for {
		row, ok, err := next()
		if err != nil {
			return fmt.Errorf("read trace: %w", err)
		}
		if !ok {
			return nil
		}
		b.rows = append(b.rows, row)
	}
}
