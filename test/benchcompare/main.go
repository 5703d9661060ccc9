// Command benchcompare runs the benchmarks of the request path at two revisions, in turns, and prints
// how the CPU time per operation changed, with a 95 % confidence interval.
//
// The two test binaries run one after the other in every round, so that a machine that becomes slower
// or faster affects both. CPU time and not elapsed time is measured, because other processes may use
// the machine. A benchmark is reported as slower when its whole interval lies above the bound of 3 %.
//
//	go run ./test/benchcompare --base main --rounds 10
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stator-project/stator/test/process"
)

// pair is a package at both revisions. A package that moved has two names.
type pair struct{ now, base string }

// requestPath lists the packages that a request passes.
const requestPath = "extproc/stream,extproc/messages,internal/prompt,internal/prompt/openai,internal/kv/blockhash," +
	"internal/kv/kvindex,internal/route,internal/route/cost,internal/route/queue"

func main() { process.Main("benchcompare", run) }

func run(ctx context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("benchcompare", flag.ExitOnError)
	base := f.String("base", "main", "`revision` to compare with")
	packages := f.String("packages", requestPath, "packages to measure, with commas; now=base for one that moved")
	moved := f.String("moved", "extproc/stream=extproc,extproc/messages=extproc/envoywire",
		"packages that have another name at the base, if they do not exist there under their own")
	only := f.String("only", ".", "`regexp` of the benchmarks to run, such as BenchmarkDecide")
	skip := f.String("skip", "Footprint|Fill|Churn|Load|ReplicaStart|background=[^0]",
		"`regexp` of benchmarks to leave out, because they measure memory, run long or have work beside them")
	rounds := f.Int("rounds", 10, "measurements of each benchmark at each revision")
	target := f.Duration("target", 150*time.Millisecond, "CPU time of one measurement, approximately")
	if err := f.Parse(args); err != nil {
		return err
	}

	want, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}

	skipped, err := regexp.Compile(*skip)
	if err != nil {
		return fmt.Errorf("--skip: %w", err)
	}

	dir, err := os.MkdirTemp("", "benchcompare-")
	if err != nil {
		return err
	}

	defer func() { _ = os.RemoveAll(dir) }()
	tree, err := checkOut(ctx, dir, *base)
	if err != nil {
		return err
	}

	defer tree.remove()

	m := measurement{rounds: *rounds, target: *target, progress: os.Stderr}
	fmt.Fprintf(out, "base %s; %d rounds; load average %s before\n\n", tree.revision, *rounds, process.LoadAverage())

	var results []result
	for _, p := range pairs(*packages, *moved, tree.dir) {
		binaries, err := build(ctx, dir, tree.dir, p)
		if err != nil {
			return err
		}
		names, err := binaries.common(ctx, skipped)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !want.MatchString(name) || skipped.MatchString(name) {
				continue
			}
			r, err := m.compare(ctx, binaries, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			r.pkg = p.now
			results = append(results, r)
		}
	}

	slower := printResults(out, results)
	fmt.Fprintf(out, "\nload average %s after\n", process.LoadAverage())
	if slower > 0 {
		return fmt.Errorf("%d benchmarks are slower: their whole interval lies above +3 %%", slower)
	}
	if len(results) == 0 {
		return errors.New("no benchmark matches")
	}
	return nil
}

// pairs returns the packages to measure.
func pairs(packages, moved, baseDir string) []pair {
	former := map[string]string{}
	for _, m := range strings.Split(moved, ",") {
		now, base, _ := strings.Cut(m, "=")
		former[now] = base
	}

	var list []pair
	for _, p := range strings.Split(packages, ",") {
		now, base, named := strings.Cut(p, "=")
		if !named {
			base = now
		}
		if _, err := os.Stat(filepath.Join(baseDir, base)); err != nil && former[now] != "" {
			base = former[now]
		}
		list = append(list, pair{now, base})
	}

	return list
}

// printResults prints one line per benchmark and returns how many are slower for certain.
func printResults(out io.Writer, results []result) (slower int) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "package\tbenchmark\tbase CPU/op\tnow CPU/op\tratio\t95 % interval\t")

	for _, r := range results {
		verdict := ""
		if r.low > slowerBound {
			verdict = "slower"
			slower++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.3f\t%.3f to %.3f\t%s\n", r.pkg, r.name, duration(r.base), duration(r.now), r.ratio, r.low,
			r.high, verdict)
	}

	_ = w.Flush()
	return slower
}

// duration prints nanoseconds with four digits.
func duration(ns float64) string {
	switch {
	case ns < 1e3:
		return fmt.Sprintf("%.4g ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%.4g µs", ns/1e3)
	}
	return fmt.Sprintf("%.4g ms", ns/1e6)
}
