// Command benchaffinity measures how many cached tokens a fleet loses while its router is away. Clients hold conversations of several turns
// through a real Envoy with simulated engines. The router decides at first, then it is killed, and later it is started
// again. For each of these phases the program prints the share of prompt tokens that engines had cached: without and with
// the Wasm filter, in turns.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("benchaffinity", run) }

type options struct {
	stator, envoy, module    string
	rounds, workers, clients int
	before, away, after      time.Duration
}

// arms are the values of gateway.affinityFilter that are compared.
var arms = []string{"off", "wasm"}

// phases of a run, in their order.
var phases = []string{"router decides", "router away", "router back"}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	f := flag.NewFlagSet("benchaffinity", flag.ContinueOnError)
	f.SetOutput(progress)
	f.IntVar(&o.rounds, "rounds", 3, "number of runs of each kind")
	f.IntVar(&o.workers, "workers", 4, "number of simulated engines")
	f.IntVar(&o.clients, "clients", 24, "conversations at a time")
	f.DurationVar(&o.before, "before", 30*time.Second, "how long the router decides at first")
	f.DurationVar(&o.away, "away", time.Minute, "how long the router is away")
	f.DurationVar(&o.after, "after", 15*time.Second, "how long the router decides again")
	f.StringVar(&o.stator, "stator", "bin/stator", "the program")
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	f.StringVar(&o.module, "module", "bin/affinity.wasm", "the Wasm module; see make build-wasm")
	if err := f.Parse(args); err != nil {
		return err
	}

	fmt.Fprintf(out, "%d engines, %d conversations at a time; the router decides for %s, is away for %s, and decides for %s\n",
		o.workers, o.clients, o.before, o.away, o.after)
	fmt.Fprintf(out, "%d CPUs, load average %s\n\n", runtime.NumCPU(), process.LoadAverage())
	fmt.Fprintf(out, "%5s  %-6s  %-15s %9s %7s %8s %9s\n", "round", "filter", "phase", "requests", "failed", "cached", "of kv")

	all := map[string]*ledger{}
	for _, arm := range arms {
		all[arm] = newLedger()
	}
	for round := range o.rounds {
		for _, arm := range arms {
			l, err := measure(ctx, &o, arm, progress)
			if err != nil {
				return fmt.Errorf("round %d with filter %s: %w", round+1, arm, err)
			}
			l.writeTo(out, fmt.Sprint(round+1), arm)
			all[arm].add(l)
		}
	}

	for _, arm := range arms {
		all[arm].writeTo(out, "all", arm)
	}
	fmt.Fprintf(out, "\nload average %s after\n", process.LoadAverage())
	return nil
}

// measure runs one fleet through all phases.
func measure(ctx context.Context, o *options, arm string, progress io.Writer) (*ledger, error) {
	fl, err := startFleet(ctx, o, arm, progress)
	if err != nil {
		return nil, err
	}
	defer fl.parts.Stop()

	l := newLedger()
	clients := startClients(ctx, fl.url, o.clients, l)
	defer clients.stop()

	steps := []struct {
		enter func() error
		lasts time.Duration
	}{
		{func() error { return nil }, o.before},
		{fl.killRouter, o.away},
		{fl.startRouter, o.after},
	}
	for i, step := range steps {
		if err := step.enter(); err != nil {
			return nil, err
		}
		l.enter(i)
		select {
		case <-time.After(step.lasts):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return l, nil
}
