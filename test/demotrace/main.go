// Command demotrace plays a trace through Envoy against simulated engines, once for each routing policy, and
// prints how much each policy found in the caches.
//
// A row of the trace is a prompt in blocks of 512 tokens. Each block becomes one of 16 tokens, so prompts are
// 32 times shorter and have the same common prefixes. Answers are shorter by the same factor. Engines need the
// time of the original prompts (tokenScale), and --speed divides the times of arrivals and engines.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/stator-project/stator/test/lab/tracefiles"
	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("demotrace", Main) }

type options struct {
	trace, stator, envoy, policies string
	rows, workers, blocks          int
	speed                          float64
}

// Main runs the command. Tests call it with arguments of their choice.
func Main(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	f := flag.NewFlagSet("demotrace", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&o.trace, "trace", "", "Mooncake trace `file` (default: Mooncake's conversation trace, or a generated one where that "+
		"is not at hand)")
	f.IntVar(&o.rows, "rows", 3000, "number of rows to play")
	f.IntVar(&o.workers, "workers", 4, "number of simulated engines")
	f.IntVar(&o.blocks, "blocks", 2048, "KV blocks per engine")
	f.Float64Var(&o.speed, "speed", 20, "divides the times of arrivals and engines")
	f.StringVar(&o.policies, "policies", "kv,kv/dynamo,kv/dynamo@16,round-robin,random",
		"policies to compare, in this order; kv/dynamo is kv with Dynamo's cost function, and @N sets its prefill load scale (default 1)")
	f.StringVar(&o.stator, "stator", "bin/stator", "the program")
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	if err := f.Parse(args); err != nil {
		return err
	}
	rows, name, err := load(o.trace, o.rows)
	if err != nil {
		return err
	}
	if name == "" {
		name = "a generated trace"
		fmt.Fprintln(out, "Mooncake's trace is not at hand: a generated one is played.", tracefiles.Hint)
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
