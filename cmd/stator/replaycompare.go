package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/stator-project/stator/internal/sim"
)

const replayCompareAbout = `Puts runs side by side: their figures, and by how much they differ from the first. The runs are
results that ` + "`stator replay --json`" + ` printed, or are played here: --run "NAME: FLAGS" for each,
and what they have in common as flags of this command. --html draws them into one page that
needs nothing else.

  stator replay compare --trace FILE --workers 8 --run "turns: --router round-robin" --run "ours:" --html page.html`

func runReplayCompare(ctx context.Context, env environment, args []string) error {
	f := flags(env, "replay compare [RESULT.json…]", replayCompareAbout)
	base := addReplayFlags(f)
	var specs manyTexts
	f.Var(&specs, "run", "`name: flags` of a run; may be given more than once")
	page := f.String("html", "", "write a page with plots to this `file`")
	asJSON := f.Bool("json", false, "print JSON: a list of the results")
	jobs := f.Int("jobs", 1, "runs at a time; each takes a core and the memory of its fleet")
	files, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	runs, err := readResults(files)
	if err != nil {
		return err
	}
	played, err := base.playAll(ctx, env, specs, max(1, *jobs))
	if err != nil {
		return err
	}
	if runs = append(runs, played...); len(runs) == 0 {
		return errors.New("name results of `stator replay --json`, or runs with --run; `stator replay compare -h` tells how")
	}
	if *page != "" {
		if err := writePage(*page, runs); err != nil {
			return err
		}
	}
	if *asJSON {
		return printResult(env.out, runs)
	}
	return printComparison(env.out, runs)
}

// namedRun is one of the runs that are compared.
type namedRun struct {
	Name string `json:"name"`
	replayed
}

// parseMixed reads flags that may stand before, between and after other arguments, which it returns.
func parseMixed(f *flag.FlagSet, args []string) (others []string, err error) {
	for {
		if err := f.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, errUsage
		}
		if f.NArg() == 0 {
			return others, nil
		}
		others = append(others, f.Arg(0))
		args = f.Args()[1:]
	}
}

// Results of hostile size are not read, nor are more runs than a page can show.
const (
	maxResultBytes = 64 << 20
	maxRuns        = 64
)

// readResults reads results from files, which give them their names.
func readResults(files []string) ([]namedRun, error) {
	if len(files) > maxRuns {
		return nil, fmt.Errorf("%d results: at most %d can be compared", len(files), maxRuns)
	}
	var runs []namedRun
	for _, path := range files {
		data, err := readBounded(path, maxResultBytes)
		if err != nil {
			return nil, fmt.Errorf("read result: %w", err)
		}
		run := namedRun{Name: strings.TrimSuffix(filepath.Base(path), ".json")}
		if err := json.Unmarshal(data, &run.replayed); err != nil {
			return nil, fmt.Errorf("read result %s: %w", path, err)
		}
		if run.Requests == 0 && run.PerWorker == nil {
			return nil, fmt.Errorf("read result %s: it is not what `stator replay --json` prints", path)
		}
		runs = append(runs, run)
	}
	return runs, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d MB", path, limit>>20)
	}
	return data, err
}

// playAll plays a run for each "name: flags", each with the flags of s before its own. Runs share
// nothing, so they may go on side by side, and their order does not depend on which ends first.
func (s *replaySpec) playAll(ctx context.Context, env environment, specs []string, jobs int) ([]namedRun, error) {
	if len(specs) > maxRuns {
		return nil, fmt.Errorf("%d runs: at most %d can be compared", len(specs), maxRuns)
	}
	runs, errs := make([]namedRun, len(specs)), make([]error, len(specs))
	parsed := make([]*replaySpec, len(specs))
	for i, text := range specs {
		name, own, ok := strings.Cut(text, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf("--run %q: begin it with a name and a colon", text)
		}
		runs[i].Name = strings.TrimSpace(name)
		var err error
		if parsed[i], err = s.with(strings.Fields(own)); err != nil {
			return nil, fmt.Errorf("--run %q: %w", text, err)
		}
	}
	slots := make(chan struct{}, jobs)
	var all sync.WaitGroup
	for i := range specs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			bar := noBar
			if jobs == 1 {
				bar = newBar(env.err)
			}
			result, err := parsed[i].play(ctx, bar)
			if errs[i] = err; err == nil {
				runs[i].replayed = *result
			}
		})
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", runs[i].Name, err)
		}
	}
	return runs, nil
}

// with is a spec of the flags that s was given, and others after them.
func (s *replaySpec) with(args []string) (*replaySpec, error) {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	out := addReplayFlags(f)
	var err error
	s.flags.Visit(func(o *flag.Flag) {
		if f.Lookup(o.Name) != nil {
			err = errors.Join(err, f.Set(o.Name, o.Value.String()))
		}
	})
	if err != nil {
		return nil, err
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return out, nil
}

// measure is a figure that runs are compared by.
type measure struct {
	name   string
	format string
	of     func(*sim.Result) float64
	// better says whether less or more is better: -1, 1, or 0 for neither.
	better int
}

var measures = []measure{
	{"completed", "%.0f", func(r *sim.Result) float64 { return float64(r.Completed) }, 1},
	{"errors", "%.0f", func(r *sim.Result) float64 { return float64(r.Errors) }, -1},
	{"duration s", "%.1f", func(r *sim.Result) float64 { return r.Duration }, 0},
	{"TTFT mean ms", "%.1f", func(r *sim.Result) float64 { return r.TTFT.Mean }, -1},
	{"TTFT p50", "%.1f", func(r *sim.Result) float64 { return r.TTFT.P50 }, -1},
	{"TTFT p90", "%.1f", func(r *sim.Result) float64 { return r.TTFT.P90 }, -1},
	{"TTFT p99", "%.1f", func(r *sim.Result) float64 { return r.TTFT.P99 }, -1},
	{"ITL mean ms", "%.2f", func(r *sim.Result) float64 { return r.ITL.Mean }, -1},
	{"ITL p99", "%.2f", func(r *sim.Result) float64 { return r.ITL.P99 }, -1},
	{"E2E mean ms", "%.1f", func(r *sim.Result) float64 { return r.E2E.Mean }, -1},
	{"E2E p99", "%.1f", func(r *sim.Result) float64 { return r.E2E.P99 }, -1},
	{"output tokens/s", "%.1f", func(r *sim.Result) float64 { return r.OutputRate }, 1},
	{"prefix reuse", "%.4f", func(r *sim.Result) float64 { return r.PrefixReuse }, 1},
	{"most loaded / mean", "%.2f", func(r *sim.Result) float64 { return r.Imbalance() }, -1},
}

// leastDifference is the smallest that is worth a word, as a share.
const leastDifference = 0.0005

// difference writes by how much v differs from the first run's.
func difference(v, first float64) string {
	if first == 0 || math.Abs(v/first-1) < leastDifference {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", 100*(v/first-1))
}

// printComparison writes the table for people: a column for each run, as wide as its name.
func printComparison(w io.Writer, runs []namedRun) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-18s", "")
	for i := range runs {
		fmt.Fprintf(&b, " %*s", columnWidth(i, runs), runs[i].Name)
	}
	b.WriteByte('\n')
	for _, m := range measures {
		fmt.Fprintf(&b, "%-18s", m.name)
		for i := range runs {
			v := m.of(&runs[i].Result)
			text := fmt.Sprintf(m.format, v)
			if i > 0 {
				text += fmt.Sprintf(" %9s", difference(v, m.of(&runs[0].Result)))
			}
			fmt.Fprintf(&b, " %*s", columnWidth(i, runs), text)
		}
		b.WriteByte('\n')
	}
	for i := range runs {
		fmt.Fprintf(&b, "\n%s: %s", runs[i].Name, runs[i].Settings)
		if runs[i].Interrupted {
			b.WriteString(" (interrupted)")
		}
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

func columnWidth(i int, runs []namedRun) int {
	least := 20
	if i == 0 {
		least = 10
	}
	return int(math.Max(float64(least), float64(len([]rune(runs[i].Name)))))
}
