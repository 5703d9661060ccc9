// Command replaygolden plays the Mooncake conversation trace with the settings of a run of NVIDIA Dynamo's
// offline replay. It prints both results with their relative differences, and exits with status 1 when a
// difference is larger than allowed: 2 % for round-robin, 5 % for cost functions, because Dynamo breaks
// their ties differently in each run.
//
// Dynamo's figures are those of its release 1.6.1: engine vllm, 16,384 blocks of 64 tokens unless a row has
// another number, polynomial timing, open loop. Each of its rows is followed by one with Stator's own cost
// function, for which there is no bound. docs/replay.md lists the sources.
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
)

// row is one run of Dynamo's replay, and how to repeat it.
type row struct {
	workers, blocks int
	speed           float64
	mode            string // round-robin, or the prefill load scale of its cost function
	scale           float64
	// What its replay printed, the middle of several runs where there were: 0 was not written down.
	reuse, ttft, p50, p99, itl, e2e float64
}

// golden is Dynamo's table.
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
	trace := flag.String("trace", "", "Mooncake's conversation_trace.jsonl")
	jobs := flag.Int("jobs", runtime.GOMAXPROCS(0), "runs at a time")
	only := flag.String("only", "", "play only the rows whose name has this in it")
	flag.Parse()
	bad, err := compare(os.Stdout, *trace, *only, *jobs)

	if err != nil {
		fmt.Fprintln(os.Stderr, "replaygolden:", err)
		os.Exit(2)
	}
	if bad > 0 {
		fmt.Fprintf(os.Stdout, "\n%d figures are outside of their bars\n", bad)
		os.Exit(1)
	}
}

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

// play repeats a row; ours takes our own cost function instead.
func (r *row) play(path string, ours bool) (*sim.Result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	defer func() { _ = f.Close() }()
	cfg := sim.Config{
		Workers: r.workers, Policy: r.mode, ArrivalSpeedup: r.speed, Seed: 1,
		Engine: engine.Config{BlockSize: 64, Blocks: r.blocks},
	}

	if !ours {
		w := cost.Dynamo()
		w.PrefillLoadScale = r.scale
		cfg.Cost = w
		cfg.PredictFor = -1
		cfg.FirstTokens = true // its router learns of first tokens from events and responses
	}
	return sim.Run(cfg, trace.Mooncake(f, 512))
}

// pair is what came of a row: with Dynamo's cost function, and with ours where that is of interest.
type pair struct {
	theirs, ours *sim.Result
	err          error
}

// both plays a row; nothing comes of one that was not asked for.
func (r *row) both(trace, only string) (p pair) {
	if !strings.Contains(r.name(), only) {
		return p
	}
	p.theirs, p.err = r.play(trace, false)
	if p.err == nil && r.scale == 16 {
		p.ours, p.err = r.play(trace, true)
	}
	return p
}

// compare plays all rows and prints them, in order, and returns how many figures are off.
func compare(w io.Writer, trace, only string, jobs int) (bad int, err error) {
	fmt.Fprintf(w, "%-38s %8s %9s %9s %9s %8s %9s\n", "", "reuse", "TTFT ms", "p50", "p99", "ITL ms", "e2e ms")
	slots := make(chan struct{}, max(1, jobs))

	wait := make([]chan pair, len(golden))
	for i := range wait {
		wait[i] = make(chan pair, 1)
	}

	go func() {
		for i := range golden { // the first rows are printed first
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				wait[i] <- golden[i].both(trace, only)
			}()
		}
	}()

	for i := range golden {
		p := <-wait[i]
		if p.err != nil {
			return bad, p.err
		}
		if p.theirs != nil {
			bad += golden[i].table(w, p.theirs, p.ours)
		}
	}

	return bad, nil
}

// table writes Dynamo's row, ours with its cost function, the differences, and ours with our own.
func (r *row) table(w io.Writer, got, ours *sim.Result) (bad int) {
	bar := 0.05
	if r.mode == "round-robin" {
		bar = 0.02
	}

	line := func(name string, v []float64) {
		fmt.Fprintf(w, "%-38s %8.4f %9.1f %9.1f %9.1f %8.2f %9.1f\n", name, v[0], v[1], v[2], v[3], v[4], v[5])
	}
	figures := func(r *sim.Result) []float64 {
		return []float64{r.PrefixReuse, r.TTFT.Mean, r.TTFT.P50, r.TTFT.P99, r.ITL.Mean, r.E2E.Mean}
	}
	want, have := []float64{r.reuse, r.ttft, r.p50, r.p99, r.itl, r.e2e}, figures(got)
	line(r.name(), want)
	line("  the same here", have)
	fmt.Fprintf(w, "%-38s", "  difference")

	for i := range want {
		text := "-"
		if want[i] > 0 {
			d := have[i]/want[i] - 1
			text = fmt.Sprintf("%+.1f %%", 100*d)
			if math.Abs(d) > bar {
				text += "!"
				bad++
			}
		}
		fmt.Fprintf(w, " %*s", []int{8, 9, 9, 9, 8, 9}[i], text)
	}

	fmt.Fprintln(w)
	if ours != nil {
		line("  our own cost", figures(ours))
	}
	return bad
}
