// Command demoplanner shows the planner at work: it starts `stator up` with simulated engines, sends requests through Envoy whose rate has
// a spike, prints the planner's actions, and writes a page with plots.
//
// The page is one file that loads nothing: demand, forecast, workers, and the time to the first token against its target.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("demoplanner", Main) }

// options are the flags.
type options struct {
	stator, envoy, page string
	low, high           float64 // requests per second
	before, spike, rest time.Duration
	ramp                time.Duration
	workers             int
	startUp             time.Duration
	ttft                time.Duration
	seed                uint64
}

// Main runs the demonstration with the command's arguments.
func Main(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	f := flag.NewFlagSet("demoplanner", flag.ContinueOnError)
	f.StringVar(&o.stator, "stator", "bin/stator", "`path` of stator")
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	f.StringVar(&o.page, "page", "planner-demo.html", "`file` of the page")
	f.Float64Var(&o.low, "low", 4, "requests per second before and after the spike")
	f.Float64Var(&o.high, "high", 40, "requests per second in the spike")
	f.DurationVar(&o.before, "before", 20*time.Second, "time before the spike")
	f.DurationVar(&o.ramp, "ramp", 10*time.Second, "time in which the rate rises, and in which it falls")
	f.DurationVar(&o.spike, "spike", 30*time.Second, "time of the spike")
	f.DurationVar(&o.rest, "rest", 45*time.Second, "time after the spike")
	f.IntVar(&o.workers, "workers", 8, "the most workers")
	f.DurationVar(&o.startUp, "startup", 3*time.Second, "time that an engine takes to start")
	f.DurationVar(&o.ttft, "ttft", 500*time.Millisecond, "target of the time to the first token")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the arrivals")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return playDemo(ctx, o, out, progress)
}

func playDemo(ctx context.Context, o options, out, progress io.Writer) error {
	fmt.Fprintf(progress, "load average %s; starting the gateway\n", process.LoadAverage())
	g, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer g.Stop()

	fmt.Fprintf(out, "Requests of %d prompt tokens and %d tokens of answer, which last as %d times as many: %g/s, %g/s in the spike.\n"+
		"Each engine takes %v to start. The target is a TTFT of %v for 90 %% of the requests.\n\n",
		promptTokens, answerTokens, tokenScale, o.low, o.high, o.startUp, o.ttft)
	d := &demo{options: o, gateway: g, out: out}
	if err := d.play(ctx); err != nil {
		return err
	}
	d.conclude()

	path, err := filepath.Abs(o.page)
	if err != nil {
		return err
	}
	page, err := d.report()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, page, 0o644); err != nil { //nolint:gosec // a page that people open
		return fmt.Errorf("write the page: %w", err)
	}
	fmt.Fprintf(out, "\nThe page with plots: %s\n", path)
	return nil
}
