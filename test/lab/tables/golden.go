package tables

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

// Golden plays Mooncake's conversation trace as NVIDIA Dynamo's own offline replay was run on it: see golden.yaml. It prints both
// results with their relative differences, and fails if one is too large. docs/results/replay.md has the details.
func Golden(ctx context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("golden", flag.ContinueOnError)
	path := f.String("trace", "", "Mooncake's conversation_trace.jsonl (default: in traces, then in ../shared/traces)")
	jobs := f.Int("jobs", runtime.GOMAXPROCS(0), "number of runs at a time")
	only := f.String("only", "", "play only the rows whose names contain this text")
	if err := f.Parse(args); err != nil {
		return err
	}

	s, err := load("golden.yaml")
	if err != nil {
		return err
	}
	files, err := newTraceSet("", io.Discard)
	if err != nil {
		return err
	}
	defer files.close()
	g := golden{spec: s, player: newPlayer(ctx, *jobs), out: out}
	if err := g.open(*path, files); err != nil {
		return err
	}

	bad, err := g.compare(*only)
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d figures are outside of their bounds", bad)
	}
	return err
}

// golden is one run of the command.
type golden struct {
	*spec
	*player
	out       io.Writer
	trace     string // flags of the trace
	generated bool   // the trace is generated, and Dynamo's figures do not apply
}

// generatedRows is the number of rows of a generated trace that are played.
const generatedRows = 3000

// open finds the trace, or generates one that takes its place.
func (g *golden) open(path string, files *traceSet) error {
	if path == "" {
		_, found := tracefiles.Find("", tracefiles.Mooncake.Path)
		g.generated = !found
		flags, err := files.flags(situation{Trace: tracefiles.Mooncake.Path})
		if err != nil {
			return err
		}
		g.trace = flags
	} else {
		g.trace = "--format mooncake --trace " + path
	}
	if g.generated {
		g.trace += fmt.Sprintf(" --rows %d", generatedRows)
		fmt.Fprintf(g.out, "Mooncake's trace is not at hand: a generated one is played, without Dynamo's figures to compare with. %s\n\n",
			tracefiles.Hint)
	}
	return nil
}

// both is the results of a row: with Dynamo's cost function, and with ours where that is of interest.
type both struct{ theirs, ours func() ([]sim.Result, error) }

// compare plays all rows, prints them in order, and returns how many figures are outside of their bounds.
func (g *golden) compare(only string) (bad int, err error) {
	fmt.Fprintf(g.out, "%-38s", "")
	for _, c := range g.Columns {
		fmt.Fprintf(g.out, " %*s", c.Width, c.Title)
	}
	fmt.Fprintln(g.out)

	const common = "--block-size 64"
	results := make([]both, len(g.Situations))
	for i, s := range g.Situations {
		if !strings.Contains(s.Name, only) {
			continue
		}
		results[i].theirs = g.start(1, 1, g.trace, common, s.Flags, g.Contenders[0].Flags, s.Theirs)
		if s.Ours {
			results[i].ours = g.start(1, 1, g.trace, common, s.Flags)
		}
	}

	for i, r := range results {
		if r.theirs == nil {
			continue
		}
		n, err := g.printRow(&g.Situations[i], r)
		if err != nil {
			return bad, err
		}
		bad += n
	}
	return bad, nil
}

// printRow writes Dynamo's figures, ours with its cost function, the differences, and ours with our own cost function. Of a generated
// trace it writes our figures alone.
func (g *golden) printRow(s *situation, r both) (bad int, err error) {
	theirs, err := r.theirs()
	if err != nil {
		return 0, err
	}
	have := g.figures(&theirs[0])
	if g.generated {
		g.printLine(s.Name, have)
	} else {
		g.printLine(s.Name, s.Want)
		g.printLine("  the same here", have)
		bad = g.printDifferences(s, have)
	}

	if r.ours == nil {
		return bad, nil
	}
	ours, err := r.ours()
	if err != nil {
		return bad, err
	}
	g.printLine("  our own cost", g.figures(&ours[0]))
	return bad, nil
}

// figures returns the compared figures of a result.
func (g *golden) figures(r *sim.Result) (list []float64) {
	for _, c := range g.Columns {
		list = append(list, c.Figure.of(r))
	}
	return list
}

// printLine writes a line of figures.
func (g *golden) printLine(name string, figures []float64) {
	fmt.Fprintf(g.out, "%-38s", name)
	for i, c := range g.Columns {
		fmt.Fprintf(g.out, " %*s", c.Width, fmt.Sprintf(c.Format, figures[i]))
	}
	fmt.Fprintln(g.out)
}

// printDifferences writes the relative differences from the wanted figures, and returns how many are outside of their bound.
func (g *golden) printDifferences(s *situation, have []float64) (bad int) {
	fmt.Fprintf(g.out, "%-38s", "  difference")
	for i, c := range g.Columns {
		text := "-"
		if want := s.Want[i]; want > 0 {
			d := have[i]/want - 1
			text = fmt.Sprintf("%+.1f %%", 100*d)
			if math.Abs(d) > s.Bound {
				text += "!"
				bad++
			}
		}
		fmt.Fprintf(g.out, " %*s", c.Width, text)
	}
	fmt.Fprintln(g.out)
	return bad
}
