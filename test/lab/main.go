// Command lab compares Stator with its rivals on simulated fleets, and prints the tables of docs/results.
//
//	go run ./test/lab NAME [flags]
//
// Without a name it lists the comparisons. `go run ./test/lab NAME --help` shows the flags of one.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/stator-project/stator/test/lab/disagg"
	"github.com/stator-project/stator/test/lab/forecasts"
	"github.com/stator-project/stator/test/lab/planner"
	"github.com/stator-project/stator/test/lab/tables"
	"github.com/stator-project/stator/test/lab/tiers"
	"github.com/stator-project/stator/test/lab/tracefiles"
	"github.com/stator-project/stator/test/process"
)

// comparison is a program of the lab.
type comparison struct {
	name, about string
	run         func(ctx context.Context, args []string, out, progress io.Writer) error
	// long means that its duration and the machine's load are printed after the tables.
	long bool
}

var comparisons = []comparison{
	{"golden", "Mooncake's trace beside the figures of NVIDIA Dynamo's own replay", tables.Golden, false},
	{"noise", "policies on engines whose times vary, over several seeds", tables.Noise, true},
	{"headline", "the workload of a claim that NVIDIA published for Dynamo", tables.Headline, true},
	{"traces", "the default cost function on traces that it was not tuned on", tables.Traces, false},
	{"disagg", "fleets that prefill and decode on separate engines beside others, at equal GPUs", disagg.Run, true},
	{"tiers", "engines with and without caches in host memory and on disks", tiers.Run, true},
	{"programs", "programs of agents, held back by the router's queue or not", tables.Programs, true},
	{"planner", "algorithms that change the number of engines", planner.Run, true},
	{"forecasts", "models that forecast arrivals", forecasts.Run, false},
	{"fetch", "no comparison: fetches the public traces", fetch, false},
}

func main() { process.Main("lab", run) }

// run runs the comparison that the first argument names.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	for _, c := range comparisons {
		if c.name != name {
			continue
		}
		began := time.Now()
		err := c.run(ctx, args[1:], out, progress)
		if c.long && err == nil {
			fmt.Fprintf(out, "\n%.1f min, load average %s\n", time.Since(began).Minutes(), process.LoadAverage())
		}
		return err
	}

	for _, c := range comparisons {
		fmt.Fprintf(progress, "%-10s %s\n", c.name, c.about)
	}
	return fmt.Errorf("%q is no comparison: name one of these", name)
}

// fetch downloads the public traces, and checks their SHA-256. Files that are already there are kept.
func fetch(ctx context.Context, args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("fetch", flag.ContinueOnError)
	folder := f.String("folder", tracefiles.Folder, "`folder` to put the traces into")
	if err := f.Parse(args); err != nil {
		return err
	}

	failed := 0
	for _, file := range tracefiles.Public {
		if err := file.Fetch(ctx, *folder); err != nil {
			fmt.Fprintln(progress, err)
			failed++
			continue
		}
		fmt.Fprintf(out, "%s/%s (%s)\n", *folder, file.Path, file.Licence)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d traces were not fetched", failed, len(tracefiles.Public))
	}
	return nil
}
