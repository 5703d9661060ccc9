package tables

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/stats"
)

// Headline plays the workload of a claim that NVIDIA published for Dynamo: see headline.yaml. It prints by which factor times become
// shorter.
func Headline(ctx context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("headline", flag.ContinueOnError)
	requests := f.Int("requests", 100_000, "`number` of requests of each run")
	seeds := f.Int("seeds", 3, "number of runs of each kind")
	jobs := f.Int("jobs", 2, "number of replays at a time")
	if err := f.Parse(args); err != nil {
		return err
	}

	s, err := load("headline.yaml")
	if err != nil {
		return err
	}
	workload := s.Situations[0].Flags
	fmt.Fprintf(out, "%d requests: `%s`\n\n", *requests, workload)
	fmt.Fprint(out, head(append(s.titles("requests/s", "policy"), "TTFT, times", "e2e, times")...))

	// All runs share the slots, and rows are printed in order.
	p := newPlayer(ctx, *jobs)
	rows := make([]func() ([]sim.Result, error), 0, len(s.Levels)*len(s.Contenders))
	for _, l := range s.Levels {
		for _, c := range s.Contenders {
			rows = append(rows, p.start(1, *seeds, workload, fmt.Sprintf("--requests %d", *requests), l.Flags, c.Flags))
		}
	}
	var first []sim.Result
	for i, result := range rows {
		list, err := result()
		if err != nil {
			return err
		}
		at := i % len(s.Contenders)
		if at == 0 {
			first = list
		}
		row := s.tableRow(list, s.Levels[i/len(s.Contenders)].Name, s.Contenders[at].Name)
		fmt.Fprintf(out, "%s %s | %s |\n", strings.TrimSuffix(row, "\n"), times(first, list, "ttft"), times(first, list, "e2e"))
	}
	return nil
}

// times is by which factor a figure is smaller in the second list, for the mean, and for the least and the largest of the pairs of
// equal seed.
func times(a, b []sim.Result, f figure) string {
	least, most := 0.0, 0.0
	for i := range a {
		v := f.of(&a[i]) / f.of(&b[i])
		if i == 0 || v < least {
			least = v
		}
		most = max(most, v)
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", stats.MeanOf(a, f.of)/stats.MeanOf(b, f.of), least, most)
}
