package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// measurement has the settings by which benchmarks are measured.
type measurement struct {
	rounds   int
	target   time.Duration
	progress io.Writer
}

// compare measures one benchmark in turns, and adds the measurements to the results.
func (m *measurement) compare(ctx context.Context, b binaries, name string, results *report) error {
	n, err := m.iterations(ctx, b, name)
	if err != nil {
		return err
	}

	for range m.rounds {
		before, err := cpuPerOp(ctx, b.baseDir, b.base, name, n)
		if err != nil {
			return err
		}
		after, err := cpuPerOp(ctx, b.nowDir, b.now, name, n)
		if err != nil {
			return err
		}
		results.addMeasurement(name, n, before, after)
	}
	fmt.Fprintln(m.progress, name)
	return nil
}

// mostIterations bounds the operations of one measurement.
const mostIterations = 100_000_000

// iterations returns how many operations take the target time at the base revision, or as long as the set-up
// does if that is longer: the set-up is subtracted, and its noise must not hide the operations.
func (m *measurement) iterations(ctx context.Context, b binaries, name string) (int, error) {
	setUp, err := cpuTime(ctx, b.baseDir, b.base, name, 1)
	if err != nil {
		return 0, err
	}
	target := max(m.target, setUp)

	for n := 100; ; n *= 10 {
		total, err := cpuTime(ctx, b.baseDir, b.base, name, n)
		if err != nil {
			return 0, err
		}
		if spent := total - setUp; spent > target/2 || n >= mostIterations {
			perOp := max(1, float64(spent)/float64(n))
			return max(1, min(mostIterations, int(float64(target)/perOp))), nil
		}
	}
}

// cpuPerOp returns the CPU time of one operation in nanoseconds. A run with one operation takes
// the time of the set-up, which is subtracted.
func cpuPerOp(ctx context.Context, dir, binary, name string, n int) (float64, error) {
	setUp, err := cpuTime(ctx, dir, binary, name, 1)
	if err != nil {
		return 0, err
	}

	total, err := cpuTime(ctx, dir, binary, name, n+1)
	if err != nil {
		return 0, err
	}
	return max(float64(total-setUp)/float64(n), 0.1), nil
}

// cpuTime runs a benchmark for n operations on one processor and returns the CPU time of the process.
func cpuTime(ctx context.Context, dir, binary, name string, n int) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^$", "-test.bench", exactly(name), "-test.benchtime", fmt.Sprintf("%dx", n),
		"-test.cpu", "1")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// exactly returns a pattern that matches one benchmark or sub-benchmark.
func exactly(name string) string {
	var parts []string
	for _, part := range strings.Split(name, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	return strings.Join(parts, "/")
}
