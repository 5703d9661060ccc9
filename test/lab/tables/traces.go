package tables

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/stator-project/stator/internal/sim"
)

// Traces plays the default cost function on traces that it was not tuned on: see traces.yaml. It prints the table of
// docs/results/replay.md. Each row is a situation and each column a router. A trace that is not on this machine is replaced by a
// generated one, and the table has other figures then.
func Traces(ctx context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("traces", flag.ContinueOnError)
	traces := f.String("traces", "", "`folder` of traces (default: traces, then ../shared/traces)")
	only := f.String("only", "", "play only situations whose names contain this `text`")
	jobs := f.Int("jobs", 2, "number of replays at a time")
	if err := f.Parse(args); err != nil {
		return err
	}

	s, err := load("traces.yaml")
	if err != nil {
		return err
	}
	files, err := newTraceSet(*traces, out)
	if err != nil {
		return err
	}
	defer files.close()
	return s.playTraces(out, newPlayer(ctx, *jobs), files, *only)
}

// playTraces plays the situations, and prints them.
func (s *spec) playTraces(w io.Writer, p *player, files *traceSet, only string) error {
	titles := []string{"TTFT mean / p50 / p99, ms"}
	for _, c := range s.Contenders {
		titles = append(titles, c.Name)
	}

	begun := false
	for _, x := range s.Situations {
		if !strings.Contains(x.Name, only) {
			continue
		}
		flags, err := files.flags(x)
		if err != nil {
			return err
		}
		if !begun {
			fmt.Fprint(w, head(titles...))
			begun = true
		}
		results, err := s.playContenders(p, flags)
		if err != nil {
			return fmt.Errorf("%s: %w", x.Name, err)
		}
		printRouters(w, x.Name, results)
	}
	return nil
}

// playContenders plays a situation with every contender.
func (s *spec) playContenders(p *player, flags string) ([]sim.Result, error) {
	started := make([]func() ([]sim.Result, error), 0, len(s.Contenders))
	for _, c := range s.Contenders {
		started = append(started, p.start(1, 1, flags, c.Flags))
	}
	var results []sim.Result
	for _, result := range started {
		list, err := result()
		if err != nil {
			return nil, err
		}
		results = append(results, list...)
	}
	return results, nil
}

// printRouters prints a situation: reuse, times to first token with their difference from the first router, times of whole
// requests with the most loaded worker, and failures if there were any.
func printRouters(w io.Writer, name string, results []sim.Result) {
	line := func(title string, cell func(i int, r *sim.Result) string) {
		fmt.Fprintf(w, "| %s |", title)
		for i := range results {
			fmt.Fprintf(w, " %s |", cell(i, &results[i]))
		}
		fmt.Fprintln(w)
	}

	line(name+": reuse", func(_ int, r *sim.Result) string { return fmt.Sprintf("%.3f", r.PrefixReuse) })
	line("TTFT", func(i int, r *sim.Result) string {
		text := fmt.Sprintf("%.0f / %.0f / %.0f", r.TTFT.Mean, r.TTFT.P50, r.TTFT.P99)
		if i == 1 || i == 2 {
			text += fmt.Sprintf(" (%+.1f %%)", 100*(r.TTFT.Mean/results[0].TTFT.Mean-1))
		}
		return text
	})
	line("e2e, most loaded", func(_ int, r *sim.Result) string { return fmt.Sprintf("%.0f, %.2f", r.E2E.Mean, r.Imbalance()) })

	failed := 0
	for i := range results {
		failed += results[i].Errors
	}
	if failed > 0 {
		line("failed", func(_ int, r *sim.Result) string { return fmt.Sprint(r.Errors) })
	}
}
