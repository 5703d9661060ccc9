//go:build linux

// Command benchblocks measures the tiers of KV blocks beside the machine's throughput without them.
//
// Each section compares a tier with a bare loop that moves the same number of bytes: host memory with Go's copy() into an ordinary
// slice, and the disk with pread and pwrite in as many goroutines, with O_DIRECT on both sides. Both run in every round, one after
// the other, so that a machine that becomes slower affects both. The ratio of each round is computed, and the median of the ratios
// has to reach the bar of the section.
//
//	go run ./test/benchblocks --rounds 9 --only disk
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
)

// options are the flags.
type options struct {
	rounds   int
	duration time.Duration
	dir      string
	bytes    int64
	quick    bool
}

// section measures one tier.
type section struct {
	name, title string
	// bar is the least ratio of tier and bare loop.
	bar float64
	run func(ctx context.Context, o options) ([]row, error)
}

var sections = []section{
	{"host", "G2 host memory: copies into slots beside copies into an ordinary slice", 0.8, benchHost},
	{"disk", "G3 disk: Store and Load beside pwrite and pread, by 16 goroutines, with O_DIRECT", 0.9, benchDisk},
}

// leastBytes has room for some more of the largest blocks than are in progress.
const leastBytes = 384 << 20

func main() { process.Main("benchblocks", run) }

func run(ctx context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("benchblocks", flag.ExitOnError)
	only := f.String("only", "", "measure only the `section` of that name: host or disk")
	rounds := f.Int("rounds", 9, "rounds of each measurement")
	duration := f.Duration("duration", 500*time.Millisecond, "length of a measurement")
	dir := f.String("dir", os.TempDir(), "`folder` on the disk to measure; the files are removed afterwards")
	size := f.Int64("bytes", 512<<20, "size of the tier's file and of the bare loop's")
	quick := f.Bool("quick", false, "run each measurement for a moment, to see that it works")
	if err := f.Parse(args); err != nil {
		return err
	}

	o := options{rounds: *rounds, duration: *duration, dir: *dir, bytes: *size}
	if *quick {
		o = options{rounds: 1, duration: time.Millisecond, dir: *dir, bytes: leastBytes, quick: true}
	}
	if o.rounds < 1 || o.duration <= 0 || o.bytes < leastBytes || o.bytes > 1<<30 {
		return fmt.Errorf("--rounds and --duration must be positive, and --bytes from 384 MiB to 1 GiB")
	}

	below, found := 0, false
	for _, s := range sections {
		if *only != "" && s.name != *only {
			continue
		}
		found = true
		fmt.Fprintf(out, "%s\n%d rounds of %v; load average %s before\n\n", s.title, o.rounds, o.duration, process.LoadAverage())
		rows, err := s.run(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		below += printRows(out, rows, s.bar)
		fmt.Fprintf(out, "\nload average %s after\n\n", process.LoadAverage())
	}

	if !found {
		return fmt.Errorf("--only %s: the sections are %s", *only, names())
	}
	if below > 0 && !*quick {
		return fmt.Errorf("%d measurements are below their bar", below)
	}
	return nil
}

func names() string {
	list := make([]string, len(sections))
	for i, s := range sections {
		list[i] = s.name
	}
	return strings.Join(list, ", ")
}
