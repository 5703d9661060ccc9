// Package planner compares algorithms that change the number of engines, on simulated fleets. It prints the tables of
// docs/results/benchmarks.md.
package planner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

// Run compares the algorithms, and prints the tables. A dot for each comparison goes to progress.
func Run(_ context.Context, args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("planner", flag.ContinueOnError)
	b := &bench{less: 1, static: map[string][]point{}, arrivals: map[string][]trace.Arrival{}}
	var o options
	f.StringVar(&b.traces, "traces", "", "`folder` of traces (default: traces, then ../shared/traces)")
	f.StringVar(&o.profile, "profile", "test/lab/profile", "`folder` of the measured profile")
	f.StringVar(&o.only, "only", "", "play only workloads whose names match this regular `expression`")
	f.StringVar(&o.rivals, "rivals", "", "compare only with algorithms whose names match this regular `expression`")
	f.DurationVar(&o.startUp, "startup", -1, "play only this start-up of engines (default: 0s, 30s and 2m)")
	f.BoolVar(&o.grids, "grids", false, "print every point of every grid")
	f.StringVar(&o.timeline, "timeline", "", "print what happened over time with the first candidate whose label contains this `text`; "+
		"of rows that are held out, with ours")
	f.BoolVar(&b.defaults, "defaults", false, "play ours with its defaults alone, beside the grids of the others")
	f.StringVar(&o.heldOut, "held-out", "", "play a `set` of rows that were fixed before a planner played one, with our "+
		"defaults and small grids of others: "+heldOutNames())
	f.BoolVar(&o.quick, "quick", false, "play little, to see that everything runs")
	jobs := f.Int("jobs", 2, "number of runs at a time")
	if err := f.Parse(args); err != nil {
		return err
	}
	b.slots = make(chan struct{}, max(1, *jobs))
	return b.printComparisons(out, progress, &o)
}

// options are the flags.
type options struct {
	profile, only, rivals, timeline, heldOut string
	startUp                                  time.Duration
	grids, quick                             bool
}

// startUps are the times from the start of an engine until it is ready.
var startUps = []time.Duration{0, 30 * time.Second, 120 * time.Second}

// printComparisons prints the tables of all workloads and start-up times.
func (b *bench) printComparisons(w, progress io.Writer, o *options) error {
	profile, err := perfmodel.LoadProfile(os.DirFS(o.profile))
	if err != nil {
		return err
	}
	list := startUps
	switch {
	case o.startUp >= 0:
		list = []time.Duration{o.startUp}
	case o.quick:
		list = []time.Duration{30 * time.Second}
	}
	if o.quick {
		b.less = 10
	}
	b.rivals, err = regexp.Compile(o.rivals)
	if err != nil {
		return fmt.Errorf("--rivals: %w", err)
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}

	if o.heldOut != "" {
		return b.printHeldOut(w, progress, o, only)
	}
	chosen := slices.DeleteFunc(workloads(profile), func(x workload) bool { return !only.MatchString(x.name) })
	if b.defaults {
		return b.printDefaults(w, progress, chosen, list)
	}
	printGrids(w)
	var all []*comparison
	for _, x := range chosen {
		for _, startUp := range list {
			if o.timeline != "" {
				if err := b.printTimeline(w, &x, startUp, o.timeline); err != nil {
					return err
				}
				continue
			}
			c, err := b.compare(&x, startUp)
			if errors.Is(err, errAbsent) {
				printAbsent(w, &x, err)
				break
			}
			if err != nil {
				return err
			}
			fmt.Fprint(progress, ".")
			all = append(all, c)
		}
	}
	fmt.Fprintln(progress)
	printAll(w, all, o)
	return nil
}

// printAbsent prints why a workload is left out.
func printAbsent(w io.Writer, x *workload, err error) {
	fmt.Fprintf(w, "%s is left out: %v. %s\n", x.name, err, tracefiles.Hint)
}
