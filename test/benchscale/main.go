// Command benchscale measures the costs of a large fleet for one router: its memory, its CPU time for each batch of KV
// events, how old events are when they are applied, and how long a router that joins needs until all caches are
// exact.
//
// The server of the bus, the agents and the routers are processes of their own, on loopback, and each one's CPU time
// is counted apart. Bus, leases, discovery, recovery, feed and index are the product's; the engines and the
// storage of their agents are played. Every worker's cache is full and changes at the given rate: a batch stores four
// blocks and removes four, with an event for each removal, as vLLM reports them.
//
// A small machine cannot run a thousand workers live. The memory of the whole fleet's index is measured without the
// bus; a part of the fleet runs live; what follows for all of it is computed, and marked so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("benchscale", run) }

// options describe the fleet and the measurement. Children get them as flags.
type options struct {
	role, url                    string
	workers, live, blocks, nodes int
	rate, joins, intakes         int
	duration                     time.Duration
	smoke                        bool
}

// workersPerNode is the number of an agent's engines.
const workersPerNode = 8

func readOptions(args []string, usage io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("benchscale", flag.ContinueOnError)
	f.SetOutput(usage)
	f.IntVar(&o.workers, "workers", 1000, "`workers` of the fleet whose index is filled without the bus")
	f.IntVar(&o.live, "live", 100, "`workers` that run live")
	f.IntVar(&o.blocks, "blocks", 100_000, "`blocks` in each worker's cache, a multiple of 100")
	f.IntVar(&o.rate, "rate", 200, "`batches` a second of each worker")
	f.IntVar(&o.intakes, "intakes", 0, "`goroutines` of a router that read events (default one for each CPU)")
	f.IntVar(&o.joins, "joins", 20, "`times` that a second router joins")
	f.DurationVar(&o.duration, "duration", 20*time.Second, "`time` over which the live part is measured")
	f.BoolVar(&o.smoke, "smoke", false, "a tiny fleet for a few seconds: shows that the program works")
	f.StringVar(&o.role, "role", "", "used by the program itself, for its children")
	f.StringVar(&o.url, "url", "", "used by the program itself, for its children")
	if err := f.Parse(args); err != nil {
		return nil, err
	}

	if o.smoke {
		o.workers, o.live = 16, 16
		o.blocks, o.joins = 2000, 2
		o.duration = 2 * time.Second
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("argument %q is not used: all settings are flags", f.Arg(0))
	case o.workers < 1 || o.live < 1 || o.joins < 1 || o.rate < 1 || o.duration < time.Second:
		return nil, errors.New("--workers, --live, --joins and --rate must be at least 1, and --duration 1s")
	case o.blocks < chainBlocks || o.blocks%chainBlocks != 0:
		return nil, fmt.Errorf("--blocks is %d: it must be a multiple of %d", o.blocks, chainBlocks)
	}
	o.nodes = (o.live + workersPerNode - 1) / workersPerNode
	return o, nil
}

func run(ctx context.Context, args []string, out, usage io.Writer) error {
	o, err := readOptions(args, usage)
	if err != nil {
		return err
	}

	switch o.role {
	case "":
		return measure(ctx, o, out, usage)
	case roleFill:
		return fill(o, out)
	case roleServer:
		return serve(ctx, out)
	case roleAgents:
		return runAgents(ctx, o, os.Stdin, out)
	case roleRouter:
		return runRouter(ctx, o, os.Stdin, out)
	}
	return fmt.Errorf("role %q does not exist", o.role)
}

// The roles of child processes.
const (
	roleFill   = "fill"
	roleServer = "server"
	roleAgents = "agents"
	roleRouter = "router"
)
