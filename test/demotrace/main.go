// Command demotrace replays a trace through Envoy at simulated engines, once per routing
// policy, and prints what each policy made of the caches.
//
// A row of the trace is a prompt of 512-token blocks; each becomes a block of 16 tokens, so
// that prompts are 32 times shorter while their prefixes repeat exactly as they did. Output
// shrinks by the same factor, engines take the time of the whole prompts (tokenScale), and all
// times are divided by --speed, arrivals and engines alike.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := Main(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "demotrace:", err)
		os.Exit(1)
	}
}

type options struct {
	trace, stator, envoy, policies string
	rows, workers, blocks          int
	speed                          float64
}

// Main runs the command; tests call it with arguments of their own.
func Main(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	f := flag.NewFlagSet("demotrace", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&o.trace, "trace", "../shared/traces/mooncake/conversation_trace.jsonl",
		"Mooncake trace `file`; where it is absent one of like reuse is generated")
	f.IntVar(&o.rows, "rows", 3000, "rows to replay")
	f.IntVar(&o.workers, "workers", 4, "simulated engines")
	f.IntVar(&o.blocks, "blocks", 2048, "KV blocks per engine")
	f.Float64Var(&o.speed, "speed", 20, "divides all times")
	f.StringVar(&o.policies, "policies", "kv,kv/dynamo,kv/dynamo@16,round-robin,random",
		"policies to compare, in this order; kv/dynamo is kv with Dynamo's cost, and @ its prefill load scale, by default 1")
	f.StringVar(&o.stator, "stator", "bin/stator", "the program")
	f.StringVar(&o.envoy, "envoy", "", "another Envoy")
	if err := f.Parse(args); err != nil {
		return err
	}

	rows, name, err := load([]string{o.trace}, o.rows)
	if err != nil {
		return err
	}

	fmt.Fprintf(out, "%d rows of %s over %.0f s of trace time, %d blocks of prompt\n", len(rows), name, seconds(rows), promptBlocks(rows))
	fmt.Fprintf(out, "%d simulated engines of %d blocks; a block of 512 tokens is played as 16; times divided by %g\n\n", o.workers,
		o.blocks, o.speed)

	var results []result
	for policy := range strings.SplitSeq(o.policies, ",") {
		r, err := play(ctx, o, policy, rows, progress)
		if err != nil {
			return fmt.Errorf("policy %s: %w", policy, err)
		}
		results = append(results, r)
	}

	printTable(out, results, infiniteReuse(rows), o.speed)
	return nil
}
