package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// report is the measurements of both revisions, as lines in the format of Go's benchmarks.
type report struct {
	base, now strings.Builder
	count     int // of measurements at each revision
}

// begin begins the measurements of a package.
func (r *report) begin(pkg string) {
	fmt.Fprintf(&r.base, "pkg: %s\n", pkg)
	fmt.Fprintf(&r.now, "pkg: %s\n", pkg)
}

// addMeasurement adds one measurement of n operations at each revision: nanoseconds of CPU time per operation.
func (r *report) addMeasurement(name string, n int, base, now float64) {
	const line = "%s\t%d\t%.2f cpu-ns/op\n"
	fmt.Fprintf(&r.base, line, name, n, base)
	fmt.Fprintf(&r.now, line, name, n, now)
	r.count++
}

// print writes the measurements into a folder, and what benchstat prints for them.
func (r *report) print(ctx context.Context, out io.Writer, folder, benchstat string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	base, now := filepath.Join(folder, "base.txt"), filepath.Join(folder, "here.txt")
	if err := os.WriteFile(base, []byte(r.base.String()), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(now, []byte(r.now.String()), 0o644); err != nil {
		return err
	}

	cmd := exec.CommandContext(ctx, benchstat, "base="+base, "here="+now)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s for %s and %s: %w", benchstat, base, now, err)
	}
	return nil
}
