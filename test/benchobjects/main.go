// Command benchobjects compares the object tier with a bare S3 client. Both write packs of 16 MiB and read runs of 1, 8 and 64
// blocks of 256 KiB, in turns within one run, from SeaweedFS on loopback. The bare client keeps no index, and verifies nothing.
//
// Figures are medians over rounds. The ratio divides the two throughputs of one round, so that a change of the machine's speed
// between rounds does not count.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
	"github.com/stator-project/stator/test/weed"
)

func main() { process.Main("benchobjects", run) }

type options struct {
	rounds, packs, reads, streams int
	least                         float64
}

func readOptions(args []string, usage io.Writer) (o options, err error) {
	f := flag.NewFlagSet("benchobjects", flag.ContinueOnError)
	f.SetOutput(usage)
	f.IntVar(&o.rounds, "rounds", 60, "rounds; each runs every cell with both clients")
	f.IntVar(&o.packs, "packs", 2, "packs that a cell writes; few, so that both clients have the same share of what else the machine does")
	f.IntVar(&o.reads, "reads", 32, "reads of a cell; of runs of 64 blocks an eighth as many")
	f.IntVar(&o.streams, "streams", 4, "reads at once")
	f.Float64Var(&o.least, "least", 0, "fail if the median ratio of a cell is below this")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || o.rounds < 1 || o.packs < 2 || o.reads < 8 || o.streams < 1 {
		return o, errors.New("--rounds and --streams must be at least 1, --packs 2, --reads 8, and there are no arguments")
	}
	return o, nil
}

// cell is one kind of work.
type cell struct {
	name  string
	bytes int64
	work  func(ctx context.Context, s store) error
}

// store is a client that is measured.
type store interface {
	put(ctx context.Context, packs int) error
	// read reads runs of blocks, some at once.
	read(ctx context.Context, runs []readRun, streams int) error
	close()
}

// result has the times of one round of a cell.
type result struct {
	wall, cpu time.Duration
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := readOptions(args, progress)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "benchobjects")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := weed.New(dir)
	if err != nil {
		return err
	}
	if err := server.Start(ctx); err != nil {
		return err
	}
	defer server.Kill()
	if err := server.MakeBucket(ctx, bucket); err != nil {
		return err
	}

	stores, err := openStores(ctx, server.Endpoint)
	if err != nil {
		return err
	}
	for _, s := range stores {
		defer s.close()
	}
	return measure(ctx, o, stores, out, progress)
}

func cells(o options) []cell {
	list := []cell{{name: fmt.Sprintf("write %d packs", o.packs), bytes: int64(o.packs) * packBytes,
		work: func(ctx context.Context, s store) error { return s.put(ctx, o.packs) }}}
	for _, blocks := range []int{1, 8, packBlocks} {
		reads := o.reads
		if blocks == packBlocks {
			reads = o.reads / 8
		}
		runs := someRuns(reads, blocks)
		list = append(list, cell{name: fmt.Sprintf("read %d × %d blocks", reads, blocks), bytes: int64(reads*blocks) * blockBytes,
			work: func(ctx context.Context, s store) error { return s.read(ctx, runs, o.streams) }})
	}
	return list
}

func measure(ctx context.Context, o options, stores [2]store, out, progress io.Writer) error {
	// The first packs serve later cells, which read them, and are a warm-up.
	for _, s := range stores {
		if err := s.put(ctx, readPacks); err != nil {
			return err
		}
	}
	list := cells(o)
	results := map[string]*[2][]result{}
	before := process.LoadAverage()
	for round := range o.rounds {
		for _, c := range list {
			if results[c.name] == nil {
				results[c.name] = &[2][]result{}
			}
			for turn := range stores {
				i := (round + turn) % 2 // each goes first in half of the rounds
				began := time.Now()
				cpu := process.OwnCPU()
				if err := c.work(ctx, stores[i]); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				results[c.name][i] = append(results[c.name][i], result{time.Since(began), process.OwnCPU() - cpu})
			}
		}
		fmt.Fprintf(progress, "round %d of %d\n", round+1, o.rounds)
	}

	fmt.Fprintf(out, "%d rounds, %d reads at once, blocks of 256 KiB, packs of 16 MiB, load average %s before and %s after\n\n",
		o.rounds, o.streams, before, process.LoadAverage())
	return report(o, list, results, out)
}

// report prints the medians, and fails if a ratio is below the bar.
func report(o options, list []cell, results map[string]*[2][]result, out io.Writer) error {
	fmt.Fprintf(out, "%-24s %10s %10s %7s %15s %14s %14s\n", "cell", "bare MB/s", "tier MB/s", "ratio", "least … most",
		"bare CPU/MiB", "tier CPU/MiB")
	var low error
	for _, c := range list {
		speed := func(r result) float64 { return float64(c.bytes) / 1e6 / r.wall.Seconds() }
		cpu := func(r result) time.Duration { return time.Duration(float64(r.cpu) / (float64(c.bytes) / (1 << 20))) }
		bare := results[c.name][0]
		tier := results[c.name][1]
		var ratios []float64
		for i := range bare {
			ratios = append(ratios, speed(tier[i])/speed(bare[i]))
		}

		ratio := stats.Median(ratios)
		fmt.Fprintf(out, "%-24s %10.1f %10.1f %7.2f %6.2f … %5.2f %14v %14v\n", c.name,
			stats.Median(each(bare, speed)), stats.Median(each(tier, speed)), ratio, slices.Min(ratios), slices.Max(ratios),
			stats.Median(each(bare, cpu)).Round(time.Microsecond), stats.Median(each(tier, cpu)).Round(time.Microsecond))
		if ratio < o.least {
			low = errors.Join(low, fmt.Errorf("%s: the tier has %.2f of the bare client's throughput, less than %.2f", c.name, ratio,
				o.least))
		}
	}
	return low
}

func each[T any](list []result, f func(result) T) (out []T) {
	for _, r := range list {
		out = append(out, f(r))
	}
	return out
}
