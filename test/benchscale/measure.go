package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

// results are all that a run has measured.
type results struct {
	filled    filled
	live      *figures
	serverCPU time.Duration
	joins     []time.Duration // sorted
	joinedRSS int64
}

// measure runs the whole measurement and prints a table.
func measure(ctx context.Context, o *options, out, errOut io.Writer) error {
	r := &results{}
	fmt.Fprintf(errOut, "filling an index with %d × %d blocks\n", o.workers, o.blocks)
	filler, err := startChild(ctx, o, roleFill, "", errOut)
	if err != nil {
		return err
	}
	err = filler.read(&r.filled)
	filler.stop()
	if err != nil {
		return err
	}

	if err := r.runLive(ctx, o, errOut); err != nil {
		return err
	}
	r.print(o, out)
	return nil
}

// runLive runs a part of the fleet with one router, and lets a second one join several times.
func (r *results) runLive(ctx context.Context, o *options, errOut io.Writer) error {
	server, err := startChild(ctx, o, roleServer, "", errOut)
	if err != nil {
		return err
	}
	defer server.stop()
	url, err := server.line()
	if err != nil {
		return err
	}

	fmt.Fprintf(errOut, "starting %d workers\n", o.live)
	agents, err := startChild(ctx, o, roleAgents, url, errOut)
	if err != nil {
		return err
	}
	defer agents.stop()
	if _, err := agents.line(); err != nil {
		return err
	}
	router, err := startChild(ctx, o, roleRouter, url, errOut)
	if err != nil {
		return err
	}
	defer router.stop()
	if _, err := awaitExact(ctx, router); err != nil {
		return err
	}

	if err := r.measureLive(ctx, o, server, router, errOut); err != nil {
		return err
	}
	return r.measureJoins(ctx, o, url, errOut)
}

// settle is the time for which the fleet runs before figures are taken.
const settle = 2 * time.Second

// measureLive measures the router while the fleet publishes.
func (r *results) measureLive(ctx context.Context, o *options, server, router *child, errOut io.Writer) error {
	fmt.Fprintf(errOut, "measuring for %s\n", o.duration)
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	before, err := process.CPU(server.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if _, err := router.figures(); err != nil {
		return err
	}
	if err := sleep(ctx, o.duration); err != nil {
		return err
	}
	r.live, err = router.figures()
	if err != nil {
		return err
	}
	after, err := process.CPU(server.cmd.Process.Pid)
	r.serverCPU = after - before
	return err
}

// measureJoins starts a second router several times.
func (r *results) measureJoins(ctx context.Context, o *options, url string, errOut io.Writer) error {
	for i := range o.joins {
		fmt.Fprintf(errOut, "\rrouter joins, %d of %d ", i+1, o.joins)
		second, err := startChild(ctx, o, roleRouter, url, errOut)
		if err != nil {
			return err
		}
		f, err := awaitExact(ctx, second)
		second.stop()
		if err != nil {
			return err
		}
		r.joins = append(r.joins, f.Joined)
		r.joinedRSS = max(r.joinedRSS, f.RSS)
	}
	fmt.Fprintln(errOut)
	slices.Sort(r.joins)
	return nil
}

// awaitExact returns a router's figures when all of its ranks have been exact once.
func awaitExact(ctx context.Context, router *child) (*figures, error) {
	for {
		f, err := router.figures()
		if err != nil || f.Joined > 0 {
			return f, err
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// print prints the table.
func (r *results) print(o *options, out io.Writer) {
	batches := float64(r.live.Batches)
	perBatch := float64(r.live.CPU.Nanoseconds()) / batches / 1e3
	perServer := float64(r.serverCPU.Nanoseconds()) / batches / 1e3
	rate := batches / r.live.Elapsed.Seconds()
	scale := float64(o.workers) / float64(o.live)
	all := float64(o.workers * o.rate)
	join := percentile(r.joins, 0.5).Seconds()

	rows := [][2]string{
		{"measured", ""},
		{"index of the fleet", fmt.Sprintf("%d workers × %d blocks, without the bus", o.workers, o.blocks)},
		{"  pairs of block and rank", fmt.Sprintf("%d", r.filled.Pairs)},
		{"  memory of the index", fmt.Sprintf("%.2f GiB, %.1f bytes a pair", gib(r.filled.IndexBytes),
			float64(r.filled.IndexBytes)/float64(r.filled.Pairs))},
		{"  memory of the process", fmt.Sprintf("%.2f GiB", gib(r.filled.RSS))},
		{"  filled in", fmt.Sprintf("%.1f s of CPU time", r.filled.CPU.Seconds())},
		{"live", fmt.Sprintf("%d workers on %d nodes, %d blocks and %d batches/s each, %s",
			o.live, o.nodes, o.blocks, o.rate, o.duration)},
		{"  applied", fmt.Sprintf("%.0f batches/s of %d", rate, o.live*o.rate)},
		{"  CPU of the router", fmt.Sprintf("%.2f µs a batch, %.2f cores", perBatch, r.live.CPU.Seconds()/r.live.Elapsed.Seconds())},
		{"  CPU of the NATS server", fmt.Sprintf("%.2f µs a batch, for one router", perServer)},
		{"  age of events when applied", fmt.Sprintf("p50 %s, p90 %s, p99 %s, max %s of %d",
			percentile(r.live.Lags, 0.5), percentile(r.live.Lags, 0.9), percentile(r.live.Lags, 0.99),
			percentile(r.live.Lags, 1), len(r.live.Lags))},
		{"  gaps; exact ranks", fmt.Sprintf("%d; %d of %d", r.live.Gaps, r.live.Exact, o.live)},
		{"  memory of the router", fmt.Sprintf("%.2f GiB, %.2f GiB of it the index", gib(r.live.RSS), gib(r.live.IndexBytes))},
		{"a router joins", fmt.Sprintf("until all %d caches are exact, under this load, %d times", o.live, len(r.joins))},
		{"  time", fmt.Sprintf("p50 %s, p90 %s, max %s", percentile(r.joins, 0.5), percentile(r.joins, 0.9), percentile(r.joins, 1))},
		{"", ""},
		{"computed", fmt.Sprintf("for %d workers and 10 routers, from the figures above", o.workers)},
		{"  batches", fmt.Sprintf("%.0f a second", all)},
		{"  CPU of a router", fmt.Sprintf("%.1f cores", all*perBatch/1e6)},
		{"  CPU of the NATS server", fmt.Sprintf("%.1f cores if each router costs as much as the first", 10*all*perServer/1e6)},
		{"  a router joins in", fmt.Sprintf("%.0f s on a machine like this", join*scale)},
	}
	for _, row := range rows {
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%-30s %s", row[0], row[1]), " "))
	}
	fmt.Fprintf(out, "\n%d CPUs; load average %s\n", runtime.NumCPU(), process.LoadAverage())
}

func gib(bytes int64) float64 { return float64(bytes) / (1 << 30) }

// percentile returns a percentile of durations, in three digits.
func percentile(list []time.Duration, p float64) time.Duration {
	d := stats.Percentile(list, p)
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
