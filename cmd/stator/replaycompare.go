package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/replay"
)

const replayCompareAbout = `Puts runs side by side: their figures, and by how much they differ from the first run. The runs
are results that ` + "`stator replay --json`" + ` printed, or are played here: give --run "NAME: FLAGS" for
each, and the flags that all of them share as flags of this command. --html writes a page with
plots, which is one file and loads nothing.

  stator replay compare --trace FILE --workers 8 --run "turns: --policy round-robin" --run "kv:" --html page.html`

func runReplayCompare(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "replay compare [RESULT.json…]", replayCompareAbout)
	var specs cli.List
	var page *string
	var asJSON *bool
	var jobs *int
	f.Group("Runs", func() {
		f.Var(&specs, "run", "`name: flags` of a run; may be given more than once")
		page = f.String("html", "", "write a page with plots to this `file`")
		asJSON = f.Bool("json", false, "print JSON: a list of the results")
		jobs = f.Int("jobs", 1, "runs at a time; each needs a core and the memory of its fleet")
	})
	base := addReplayFlags(f)
	files, err := f.ReadMixed(args)
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
	runs = append(runs, played...)
	if len(runs) == 0 {
		return f.UsageError("name results of `stator replay --json`, or runs with --run")
	}

	if *page != "" {
		if err := writePage(*page, runs); err != nil {
			return err
		}
	}
	if *asJSON {
		return printJSON(env.out, runs)
	}
	_, err = io.WriteString(env.out, replay.Table(runs))
	return err
}

// maxResultBytes bounds a file with a result.
const maxResultBytes = 64 << 20

// readResults reads results from files. A run's name is the file's.
func readResults(files []string) ([]replay.Run, error) {
	if len(files) > replay.MaxRuns {
		return nil, fmt.Errorf("%d results: at most %d can be compared", len(files), replay.MaxRuns)
	}

	var runs []replay.Run
	for _, path := range files {
		data, err := modelfile.ReadBounded(path, maxResultBytes)
		if err != nil {
			return nil, fmt.Errorf("read result: %w", err)
		}
		result, err := replay.Parse(data)
		if err != nil {
			return nil, fmt.Errorf("read result %s: %w", path, err)
		}
		runs = append(runs, replay.Run{Name: strings.TrimSuffix(filepath.Base(path), ".json"), Result: result})
	}
	return runs, nil
}

// writePage writes a page with the runs, and with notes above them.
func writePage(path string, runs []replay.Run, notes ...string) error {
	page, err := replay.Page(runs, notes...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, page, 0o644); err != nil { //nolint:gosec // others may read a page
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// playAll plays a run for each "name: flags", with the flags of r before its own. Runs share nothing, so
// they may be played at the same time; they are returned in the order of specs.
func (r *replayRun) playAll(ctx context.Context, env environment, specs []string, jobs int) ([]replay.Run, error) {
	if len(specs) > replay.MaxRuns {
		return nil, fmt.Errorf("%d runs: at most %d can be compared", len(specs), replay.MaxRuns)
	}
	runs := make([]replay.Run, len(specs))
	parsed := make([]*replayRun, len(specs))
	for i, text := range specs {
		name, own, ok := strings.Cut(text, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf("--run %q: begin it with a name and a colon", text)
		}
		spec, err := r.with(strings.Fields(own))
		if err != nil {
			return nil, fmt.Errorf("--run %q: %w", text, err)
		}
		runs[i].Name = strings.TrimSpace(name)
		parsed[i] = spec
	}

	errs := make([]error, len(specs))
	slots := make(chan struct{}, jobs)
	var running sync.WaitGroup
	for i := range specs {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			var bar *cli.ProgressBar
			if jobs == 1 {
				bar = cli.NewProgressBar(env.err)
			}
			result, err := parsed[i].play(ctx, bar)
			if err != nil {
				errs[i] = fmt.Errorf("run %s: %w", runs[i].Name, err)
				return
			}
			runs[i].Result = *result
		})
	}
	running.Wait()
	return runs, errors.Join(errs...)
}

// with returns a run of the flags that r was given, and others after them.
func (r *replayRun) with(args []string) (*replayRun, error) {
	f := cli.New(io.Discard, io.Discard, "replay", "")
	spec := addReplayFlags(f)
	var errs []error
	r.flags.Visit(func(o *flag.Flag) {
		if f.Lookup(o.Name) != nil {
			errs = append(errs, f.Set(o.Name, o.Value.String()))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	if err := f.Parse(args); err != nil {
		return nil, errors.New(f.Explain(err))
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return spec, nil
}
