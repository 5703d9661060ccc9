//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

// side is one of two things that are compared: a number of goroutines that move blocks.
type side struct {
	workers int
	// move moves one block. Worker is from 0, and n counts the blocks of all workers.
	move func(worker, n int) error
}

// sample is the result of one measurement.
type sample struct {
	bytesPerSecond float64
	cpuPerBlock    time.Duration
}

// row is the comparison of a tier with its bare loop.
type row struct {
	name       string
	blockBytes int
	tier, bare []sample // of each round
}

// compare measures both sides in every round. The one that is first changes from round to round.
func compare(ctx context.Context, o options, name string, blockBytes int, tier, bare side) (row, error) {
	r := row{name: name, blockBytes: blockBytes}
	sides := []struct {
		side
		samples *[]sample
	}{{tier, &r.tier}, {bare, &r.bare}}

	for range o.rounds {
		for _, s := range sides {
			if err := ctx.Err(); err != nil {
				return r, err
			}
			result, err := measure(o.duration, blockBytes, s.side)
			if err != nil {
				return r, err
			}
			*s.samples = append(*s.samples, result)
		}
		slices.Reverse(sides)
	}
	return r, nil
}

// measure moves blocks for a time, and at least one by each worker.
func measure(d time.Duration, blockBytes int, s side) (sample, error) {
	var moved atomic.Int64
	var failed atomic.Pointer[error]
	var wait sync.WaitGroup
	cpu := process.OwnCPU()
	began := time.Now()

	for w := range s.workers {
		wait.Go(func() {
			for first := true; first || time.Since(began) < d; first = false {
				if err := s.move(w, int(moved.Add(1))); err != nil {
					failed.Store(&err)
					return
				}
			}
		})
	}
	wait.Wait()
	took := time.Since(began)
	if err := failed.Load(); err != nil {
		return sample{}, *err
	}

	blocks := moved.Load()
	return sample{
		bytesPerSecond: float64(blocks) * float64(blockBytes) / took.Seconds(),
		cpuPerBlock:    (process.OwnCPU() - cpu) / time.Duration(blocks),
	}, nil
}

// printRows prints a table and returns the number of rows whose median ratio is below the bar.
func printRows(out io.Writer, rows []row, bar float64) (below int) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "operation\tblock\ttier GB/s\tbare GB/s\tratio\tlowest\thighest\ttier CPU/block\tbare CPU/block\tbar\t")
	for _, r := range rows {
		var ratios []float64
		for i := range r.tier {
			ratios = append(ratios, r.tier[i].bytesPerSecond/r.bare[i].bytesPerSecond)
		}
		verdict := "reached"
		if stats.Median(ratios) < bar {
			verdict = "missed"
			below++
		}

		speed := func(s sample) float64 { return s.bytesPerSecond / 1e9 }
		cpu := func(s sample) float64 { return float64(s.cpuPerBlock.Nanoseconds()) / 1e3 }
		fmt.Fprintf(w, "%s\t%d KiB\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f µs\t%.1f µs\t%.2f %s\t\n", r.name, r.blockBytes>>10,
			stats.Median(each(r.tier, speed)), stats.Median(each(r.bare, speed)), stats.Median(ratios), slices.Min(ratios),
			slices.Max(ratios), stats.Median(each(r.tier, cpu)), stats.Median(each(r.bare, cpu)), bar, verdict)
	}
	w.Flush()
	return below
}

func each(samples []sample, of func(sample) float64) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	return values
}
