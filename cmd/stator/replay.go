package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/replay"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/tracefile"
)

const replayAbout = `Plays a trace against a simulated fleet, in virtual time, with the real router and its real
index of caches in front of it. It prints the time to first token, the time between tokens,
how much of the prompts was found in caches, and how evenly the work was spread. The same
input and seed give the same output. Ctrl-C ends it early with the figures so far.

A trace is Mooncake's JSON lines, Azure's CSV, or a file or folder of agents' sessions in JSON
lines; --decisions plays a router's decision log, on a fleet of the log's size unless flags name
another; --format generate makes arrivals by rule.
See docs/replay.md.

` + "`stator replay compare`" + ` puts runs side by side, and ` + "`stator replay --plan FILE`" + ` makes the
plans of a planner's log again.`

func runReplay(ctx context.Context, env environment, args []string) error {
	if len(args) > 0 && args[0] == "compare" {
		return runReplayCompare(ctx, env, args[1:])
	}
	if wantsPlans(args) {
		return runReplayPlan(ctx, env, args)
	}

	f := cli.New(env.out, env.err, "replay", replayAbout)
	run := addReplayFlags(f)
	asJSON := f.Bool("json", false, "print JSON")
	if err := f.Read(args); err != nil {
		return err
	}

	var bar *cli.ProgressBar
	if !*asJSON {
		bar = cli.NewProgressBar(env.err)
	}
	result, err := run.play(ctx, bar)
	if err != nil {
		return err
	}

	if *asJSON {
		return printJSON(env.out, result)
	}
	if result.Interrupted {
		fmt.Fprintln(env.err, "stator: interrupted: these are the figures so far")
	}
	_, err = io.WriteString(env.out, result.String())
	return err
}

// printJSON writes v as one line of JSON.
func printJSON(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// replayRun is one simulation, as its flags describe it.
type replayRun struct {
	flags *cli.Flags
	trace tracefile.Options
	*replay.Options
}

// addReplayFlags adds the flags of one simulation to f.
func addReplayFlags(f *cli.Flags) *replayRun {
	r := &replayRun{flags: f, Options: replay.NewOptions(f.FlagSet)}
	f.Renamed("model", modelDir)
	f.Group("Trace", func() {
		r.trace.AddFlags(f.FlagSet)
		r.AddArrivalFlags()
	})
	f.Group("Arrivals by rule, with --format generate", func() { r.trace.AddGenerateFlags(f.FlagSet) })
	r.AddFleetFlags(f.Group)
	return r
}

// play runs the simulation that the flags describe.
func (r *replayRun) play(ctx context.Context, bar *cli.ProgressBar) (*replay.Result, error) {
	cfg, err := r.Simulation(os.DirFS)
	if err != nil {
		return nil, err
	}
	if err := r.trace.Validate(); err != nil {
		return nil, err
	}
	r.trace.Generated.Seed = r.Seed
	opened, err := tracefile.Open(ctx, r.trace)
	if err != nil {
		return nil, err
	}
	defer opened.Close()

	settings := r.TakeFleet(&cfg, opened.Fleet)
	if r.Rows > 0 && (opened.Total == 0 || r.Rows < opened.Total) {
		opened.Total = r.Rows
	}
	cfg.Stopped = func() bool {
		bar.Show(r.Done(opened.Done()))
		return ctx.Err() != nil
	}

	result, err := sim.Run(cfg, opened.Source(r.Change))
	bar.Clear()
	if err != nil {
		return nil, err
	}
	return &replay.Result{Result: *result, Settings: settings}, nil
}
