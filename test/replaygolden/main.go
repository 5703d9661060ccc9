// Command replaygolden plays the Mooncake conversation trace as NVIDIA Dynamo's own offline replay was run
// on it. It prints both results with their relative differences, and exits with status 1 where one is too
// large: 2 % for round-robin, and 5 % for cost functions, whose ties Dynamo breaks differently in each run.
//
// Dynamo's figures are of its release 1.6.1: engine vllm, blocks of 64, 16,384 of them unless named
// otherwise, polynomial timing, open loop. Rows of scale 16 also show the result of our own cost function,
// for which there is no bound. docs/results/replay.md has the details.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"

	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/tracefiles"
)

// row is one run of Dynamo's replay, with the settings to repeat it.
type row struct {
	workers, blocks int
	speed           float64
	mode            string // round-robin, or the prefill load scale of its cost function
	scale           float64
	// The figures that its replay printed, the median of several runs where there were several. 0 means
	// that a figure was not recorded.
	reuse, ttft, p50, p99, itl, e2e float64
}

// golden has Dynamo's figures.
var golden = []row{
	{4, 16384, 1, "round-robin", 0, 0.0821, 515.7, 355.4, 2576.6, 10.54, 4115},
	{4, 16384, 1, "kv", 1, 0.1323, 463.6, 354.3, 2010, 10.05, 3895},
	{4, 16384, 1, "kv", 2, 0.1454, 435.7, 350.7, 1925, 9.93, 3829},
	{4, 16384, 1, "kv", 4, 0.1561, 415.4, 338.3, 1906, 9.92, 3804},
	{4, 16384, 1, "kv", 16, 0.1631, 400.8, 318.3, 1881, 10.04, 3831},
	{4, 16384, 1, "kv", 32, 0.1595, 400.4, 313.3, 1878, 10.16, 3871},
	{8, 16384, 1, "round-robin", 0, 0.0817, 321.1, 184.1, 2048, 7.59, 2913},
	{8, 16384, 1, "kv", 1, 0.2024, 277.0, 169.2, 1692, 7.26, 2759},
	{8, 16384, 1, "kv", 2, 0.2181, 265.1, 0, 0, 7.24, 2738},
	{8, 16384, 1, "kv", 4, 0.2305, 255.4, 0, 0, 7.23, 2727},
	{8, 16384, 1, "kv", 16, 0.2437, 243.5, 169.1, 1641, 7.26, 0},
	{8, 131072, 1, "round-robin", 0, 0.1373, 299.6, 169.1, 2030, 6.25, 2434},
	{8, 131072, 1, "kv", 1, 0.3002, 238.2, 169.1, 1595, 6.13, 2333},
	{8, 131072, 1, "kv", 16, 0.3414, 212.6, 146.2, 1533, 6.10, 2296},
	{8, 16384, 3, "round-robin", 0, 0.0816, 392.2, 229.4, 2406, 15.34, 5631},
	{8, 16384, 3, "kv", 1, 0.1683, 371.0, 270.8, 1839, 13.24, 4893},
	{8, 16384, 3, "kv", 16, 0.2332, 274.8, 181.3, 1716, 12.52, 4551},
}

func main() {
	path := flag.String("trace", "", "Mooncake's conversation_trace.jsonl (default: in traces, then in ../shared/traces)")
	jobs := flag.Int("jobs", runtime.GOMAXPROCS(0), "number of runs at a time")
	only := flag.String("only", "", "play only the rows whose names contain this text")
	flag.Parse()

	r := runner{path: *path, only: *only, jobs: max(1, *jobs)}
	bad, err := r.compare(os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "replaygolden:", err)
		os.Exit(2)
	}
	if bad > 0 {
		fmt.Fprintf(os.Stdout, "\n%d figures are outside of their bounds\n", bad)
		os.Exit(1)
	}
}

// name describes the settings of a row.
func (r *row) name() string {
	name := fmt.Sprintf("%d workers, %s", r.workers, r.mode)
	if r.mode == "kv" {
		name += fmt.Sprintf(", scale %g", r.scale)
	}
	if r.blocks != 16384 {
		name += fmt.Sprintf(", %d blocks", r.blocks)
	}
	if r.speed != 1 {
		name += fmt.Sprintf(", %g x arrivals", r.speed)
	}
	return name
}

// generatedRows and generatedSeed make the trace that is played where Mooncake's is not at hand.
const (
	generatedRows = 3000
	generatedSeed = 2
)

// runner plays the rows of the table.
type runner struct {
	path      string // of the trace
	generated bool   // the trace is generated, and Dynamo's figures do not apply
	only      string
	jobs      int
}

// open returns the trace from its first row.
func (r *runner) open() (next trace.Source, closeTrace func(), err error) {
	if r.generated {
		return trace.MooncakeList(trace.Conversations(generatedRows, generatedSeed)), func() {}, nil
	}
	f, err := os.Open(r.path)
	if err != nil {
		return nil, nil, err
	}
	return trace.Mooncake(f, trace.MooncakeBlock), func() { _ = f.Close() }, nil
}

// play repeats a row with Dynamo's cost function, or with our default where ours is set.
func (r *runner) play(row *row, ours bool) (*sim.Result, error) {
	next, closeTrace, err := r.open()
	if err != nil {
		return nil, err
	}
	defer closeTrace()

	cfg := sim.Config{
		Workers: row.workers, Policy: row.mode, ArrivalSpeedup: row.speed, Seed: 1,
		Engine: engine.Config{BlockSize: 64, Blocks: row.blocks},
	}
	if !ours {
		w := cost.Dynamo()
		w.PrefillLoadScale = row.scale
		cfg.Cost = w
		cfg.PredictFor = -1 // Dynamo's router uses events and answers alone
		cfg.FirstTokens = true
	}
	return sim.Run(cfg, next)
}

// pair is the results of a row: with Dynamo's cost function, and with ours where that is of interest.
type pair struct {
	theirs, ours *sim.Result
	err          error
}

// both plays a row. The pair is empty for a row that was not asked for.
func (r *runner) both(row *row) (p pair) {
	if !strings.Contains(row.name(), r.only) {
		return p
	}
	p.theirs, p.err = r.play(row, false)
	if p.err == nil && row.scale == 16 {
		p.ours, p.err = r.play(row, true)
	}
	return p
}

// compare plays all rows, prints them in order, and returns how many figures are outside of their bounds.
func (r *runner) compare(w io.Writer) (bad int, err error) {
	if r.path == "" {
		var ok bool
		r.path, ok = tracefiles.Find("", tracefiles.Mooncake.Path)
		r.generated = !ok
	}
	if r.generated {
		fmt.Fprintf(w, "Mooncake's trace is not at hand: a generated one is played, without Dynamo's figures to compare with. %s\n\n",
			tracefiles.Hint)
	}
	fmt.Fprintf(w, "%-38s %8s %9s %9s %9s %8s %9s\n", "", "reuse", "TTFT ms", "p50", "p99", "ITL ms", "e2e ms")

	for i, result := range r.start() {
		p := <-result
		if p.err != nil {
			return bad, p.err
		}
		if p.theirs != nil {
			bad += golden[i].table(w, p, r.generated)
		}
	}
	return bad, nil
}

// start plays the rows, a few at a time, and returns a channel for the result of each. The first rows are
// played first, because they are printed first.
func (r *runner) start() []chan pair {
	results := make([]chan pair, len(golden))
	for i := range results {
		results[i] = make(chan pair, 1)
	}

	slots := make(chan struct{}, r.jobs)
	go func() {
		for i := range golden {
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				results[i] <- r.both(&golden[i])
			}()
		}
	}()
	return results
}

// Bounds of a relative difference. Dynamo breaks ties of its cost function differently in each run.
const (
	roundRobinBound = 0.02
	costBound       = 0.05
)

// table writes Dynamo's figures, ours with its cost function, the differences, and ours with our own cost
// function. Of a generated trace it writes our figures alone.
func (r *row) table(w io.Writer, p pair, generated bool) (bad int) {
	have := figures(p.theirs)
	if generated {
		printLine(w, r.name(), have)
	} else {
		want := []float64{r.reuse, r.ttft, r.p50, r.p99, r.itl, r.e2e}
		printLine(w, r.name(), want)
		printLine(w, "  the same here", have)
		bad = r.printDifferences(w, want, have)
	}
	if p.ours != nil {
		printLine(w, "  our own cost", figures(p.ours))
	}
	return bad
}

// figures returns the compared figures of a result.
func figures(r *sim.Result) []float64 {
	return []float64{r.PrefixReuse, r.TTFT.Mean, r.TTFT.P50, r.TTFT.P99, r.ITL.Mean, r.E2E.Mean}
}

func printLine(w io.Writer, name string, v []float64) {
	fmt.Fprintf(w, "%-38s %8.4f %9.1f %9.1f %9.1f %8.2f %9.1f\n", name, v[0], v[1], v[2], v[3], v[4], v[5])
}

// printDifferences writes the relative differences and returns how many are outside of their bound. A
// figure of 0 was not recorded.
func (r *row) printDifferences(w io.Writer, want, have []float64) (bad int) {
	bound := costBound
	if r.mode == "round-robin" {
		bound = roundRobinBound
	}

	fmt.Fprintf(w, "%-38s", "  difference")
	for i := range want {
		text := "-"
		if want[i] > 0 {
			d := have[i]/want[i] - 1
			text = fmt.Sprintf("%+.1f %%", 100*d)
			if math.Abs(d) > bound {
				text += "!"
				bad++
			}
		}
		fmt.Fprintf(w, " %*s", []int{8, 9, 9, 9, 8, 9}[i], text)
	}
	fmt.Fprintln(w)
	return bad
}
