// Command benchcompare runs the benchmarks of the request path at two revisions, in turns, and has benchstat print how the CPU time per
// operation changed.
//
// The two test binaries run one after the other in every round, so that a machine that becomes slower
// or faster affects both. CPU time and not elapsed time is measured, because other processes may use
// the machine. The measurements stay in a folder, in the format of Go's benchmarks.
//
//	go run ./test/benchcompare --base main --rounds 10 --benchstat PROGRAM
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
	"time"

	"github.com/stator-project/stator/test/process"
)

// pair is a package at both revisions. A package that moved has two names.
type pair struct{ now, base string }

// requestPath lists the packages that a request passes.
const requestPath = "extproc/stream,extproc/messages,internal/prompt,internal/prompt/openai,internal/kv/blockhash," +
	"internal/kv/kvindex,internal/route,internal/route/cost,internal/route/queue"

func main() { process.Main("benchcompare", run) }

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("benchcompare", flag.ExitOnError)
	base := f.String("base", "main", "`revision` to compare with")
	packages := f.String("packages", requestPath, "packages to measure, with commas; now=base for one that moved")
	moved := f.String("moved", "extproc/stream=extproc,extproc/messages=extproc/envoywire",
		"packages that have another name at the base, if they do not exist there under their own")
	only := f.String("only", ".", "`regexp` of the benchmarks to run, such as BenchmarkDecide")
	skip := f.String("skip", "Footprint|Fill|Churn|Load|ReplicaStart|background=[^0]",
		"`regexp` of benchmarks to leave out, because they measure memory, run long or have work beside them")
	rounds := f.Int("rounds", 10, "measurements of each benchmark at each revision")
	folder := f.String("out", "bench/compare", "`folder` of the measurements")
	benchstat := f.String("benchstat", ".tools/benchstat", "`program` that compares the measurements: golang.org/x/perf/cmd/benchstat")
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

	m := measurement{rounds: *rounds, target: *target, progress: progress}
	fmt.Fprintf(out, "base %s; %d rounds; load average %s before\n", tree.revision, *rounds, process.LoadAverage())

	var results report
	for _, p := range pairs(*packages, *moved, tree.dir) {
		binaries, err := build(ctx, dir, tree.dir, p)
		if err != nil {
			return err
		}
		names, err := binaries.common(ctx, skipped)
		if err != nil {
			return err
		}
		results.begin(p.now)
		for _, name := range names {
			if !want.MatchString(name) || skipped.MatchString(name) {
				continue
			}
			if err := m.compare(ctx, binaries, name, &results); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if results.count == 0 {
		return errors.New("no benchmark matches")
	}
	fmt.Fprintf(out, "load average %s after\n\n", process.LoadAverage())
	return results.print(ctx, out, *folder, *benchstat)
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
