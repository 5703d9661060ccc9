// Command hostile sends a real gateway requests of malicious or unlucky clients, and compares each answer
// with the expectation of its case: the status, the member "param" of the error, and how much CPU time and memory
// the router may spend on it.
//
// Cases of most classes go through a real Envoy to `stator extproc`, in front of two simulated engines. The classes
// of templates, vocabularies, configuration files and KV events are read from files or sockets of operators and
// engines: they call the packages that read them, in this process.
//
// At the end nothing may be left: no booking, no queued request, no goroutine, and no memory beyond slack.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("hostile", run) }

type options struct {
	stator, envoy, class string
	concurrent           bool
	verbose              bool
}

func run(ctx context.Context, args []string, out, _ io.Writer) error {
	o := &options{}
	f := flag.NewFlagSet("hostile", flag.ContinueOnError)
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.envoy, "envoy", "", "`path` of another Envoy (default: the one in .venv)")
	f.StringVar(&o.class, "class", "", "run one `class` only")
	f.BoolVar(&o.concurrent, "concurrent", true, "at the end, send 48 of the worst bodies at once and read the peak of memory")
	f.BoolVar(&o.verbose, "v", false, "print every case with what it used")
	if err := f.Parse(args); err != nil {
		return err
	}

	if err := limitMemory(); err != nil {
		return err
	}
	began := time.Now()
	classes, err := selected(o.class)
	if err != nil {
		return err
	}
	if err := checkShares(classes, o.class); err != nil {
		return err
	}

	s, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer s.parts.Stop()

	before, err := s.settled(ctx)
	if err != nil {
		return err
	}
	results, err := s.play(ctx, classes, o, out)
	if err != nil {
		return err
	}
	left, err := s.left(ctx, before)
	if err != nil {
		return err
	}
	failed := report(out, results, before, left)

	if o.concurrent {
		problems, err := s.worstBodies(ctx, out)
		if err != nil {
			return err
		}
		failed += problems
	}
	fmt.Fprintf(out, "\n%.0f s, load average %s\n", time.Since(began).Seconds(), process.LoadAverage())
	if failed > 0 {
		return fmt.Errorf("%d expectations were not met", failed)
	}
	return nil
}

// selected returns the classes with their cases: all, or the one of that name.
func selected(name string) ([]class, error) {
	all := allClasses()
	if name == "" {
		return all, nil
	}
	var names []string
	for _, c := range all {
		if c.name == name {
			return []class{c}, nil
		}
		names = append(names, c.name)
	}
	return nil, fmt.Errorf("no class %q: use one of %s", name, strings.Join(names, ", "))
}

const (
	leastCases = 800
	mostShare  = 0.15
)

// checkShares refuses a collection that is too small, or in which one class dominates.
func checkShares(classes []class, only string) error {
	if only != "" {
		return nil
	}
	total := 0
	for _, c := range classes {
		total += len(c.cases)
	}
	if total < leastCases {
		return fmt.Errorf("there are %d cases, fewer than %d", total, leastCases)
	}
	for _, c := range classes {
		if share := float64(len(c.cases)) / float64(total); share > mostShare {
			return fmt.Errorf("class %s has %d of %d cases, more than %.0f %%", c.name, len(c.cases), total, 100*mostShare)
		}
	}
	return nil
}

// report writes the table and returns how many expectations were not met.
func report(out io.Writer, results []classResult, before, left state) (failed int) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "class\tcases\tfailed\tCPU ms\tmost CPU ms\tMB allocated\tmost MB\t")
	cases := 0
	for _, r := range results {
		cases += r.cases
		failed += r.failed
		fmt.Fprintf(t, "%s\t%d\t%d\t%.0f\t%.1f\t%.0f\t%.1f\t\n", r.name, r.cases, r.failed,
			milliseconds(r.cpu), milliseconds(r.mostCPU), megabytes(r.bytes), megabytes(r.mostBytes))
	}
	fmt.Fprintf(t, "all\t%d\t%d\t\t\t\t\t\n", cases, failed)
	_ = t.Flush()

	fmt.Fprintf(out, "\nleft of the router: RSS %.0f MB (%.0f before), %.0f bookings, %.0f queued, %.0f goroutines (%.0f before)\n",
		megabytes(left.rss), megabytes(before.rss), left.bookings, left.queued, left.goroutines, before.goroutines)
	for _, problem := range left.problems(before) {
		fmt.Fprintln(out, "  not met:", problem)
		failed++
	}
	return failed
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func megabytes(n int64) float64 { return float64(n) / (1 << 20) }
