// Command replaymatrix compares the router with rivals over a matrix of loads and fleets in the simulator. It prints the tables
// of docs/results/benchmarks.md.
//
// Every router plays the same arrivals, noise and seeds. kv has its defaults. Each rival has its documented default, and the best of
// some settings in each cell, by a search on a seed that the tables do not have. The cells are in design.go. They are split into two
// halves: A may be looked at while the router is changed, and B is for the end.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	half, only       string
	json, page, rows string
	list, markdown   bool
	quick, smoke     bool
	resume, again    bool
	seeds, cellsEach int
	design           uint64
}

func main() {
	var o options
	flag.StringVar(&o.half, "half", "A", "play half A, B or both")
	flag.Uint64Var(&o.design, "design", theDesign, "draw the cells by this `seed`; other seeds have no cell of the default")
	flag.StringVar(&o.only, "only", "", "play only cells whose names contain this `text`")
	flag.BoolVar(&o.list, "list", false, "print the names of the cells, and play nothing")
	flag.BoolVar(&o.quick, "quick", false, "play the named cells and some small ones, on one seed")
	flag.BoolVar(&o.smoke, "smoke", false, "play little, to see that everything runs")
	flag.BoolVar(&o.markdown, "markdown", false, "print the tables of docs/results/benchmarks.md instead of all rows")
	flag.StringVar(&o.json, "json", "", "write all rows to this `file`, one line of JSON for each cell")
	flag.BoolVar(&o.resume, "resume", false, "keep the cells that the file of --json has, and play the others")
	flag.StringVar(&o.rows, "rows", "", "play nothing, and report the rows of this `file` that --json wrote")
	flag.BoolVar(&o.again, "again", false, "play kv again in the cells of --rows, beside the rivals' figures of that file")
	flag.StringVar(&o.page, "page", "", "write a page with a heat map to this `file`")
	flag.IntVar(&o.seeds, "seeds", 2, "number of runs of each kind")
	flag.IntVar(&o.cellsEach, "jobs", 2, "number of cells at a time")
	flag.Parse()
	if o.quick || o.smoke {
		o.seeds = 1
	}

	if err := o.playAndReport(); err != nil {
		fmt.Fprintln(os.Stderr, "replaymatrix:", err)
		os.Exit(1)
	}
}

func (o *options) playAndReport() error {
	if o.half != "A" && o.half != "B" && o.half != both {
		return fmt.Errorf("--half is %q: use A, B or %s", o.half, both)
	}
	cells := o.cells()
	if o.list {
		for i := range cells {
			fmt.Fprintln(os.Stdout, cells[i].half(), cells[i].name())
		}
		return nil
	}

	if o.rows != "" {
		return o.reportRows()
	}

	began, before := time.Now(), loadAverage()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	stored, kept, err := openStore(o.json, o.resume)
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(cells), func(c cell) bool {
		return slices.ContainsFunc(kept, func(o outcome) bool { return o.Cell == c.name() })
	})
	b := bench{seeds: max(1, o.seeds), jobs: o.cellsEach, routers: contestants(), capacities: newCapacities()}
	list, failed := b.playCells(ctx, left, stored.addOutcome)
	stop()
	failed = errors.Join(failed, stored.close())
	list = append(kept, list...)
	if len(list) == 0 {
		return cmp.Or(failed, errors.New("no cell was played"))
	}

	conditions := fmt.Sprintf("%d of the %d cells of half %s, %d rounds each, in %.0f minutes; load average %s before and %s after.",
		len(list), len(cells), o.half, b.seeds, time.Since(began).Minutes(), before, loadAverage())
	return errors.Join(failed, o.report(summarize(list), conditions))
}

// reportRows reports the rows of an earlier run.
func (o *options) reportRows() error {
	list, err := readOutcomes(o.rows)
	if err != nil {
		return err
	}
	if o.again {
		if err := playAgain(list, o.cellsEach); err != nil {
			return err
		}
	}
	if len(list) == 0 {
		return fmt.Errorf("%s has no cells", o.rows)
	}
	return o.report(summarize(list), fmt.Sprintf("%d cells, %d rounds each.", len(list), len(list[0].Rows[0].Seeds)))
}

// report writes the outputs that the flags ask for.
func (o *options) report(s *summary, conditions string) error {
	if !o.markdown {
		s.writeCells(os.Stdout)
	}
	s.writeMarkdown(os.Stdout, conditions)
	if o.page == "" {
		return nil
	}

	var page bytes.Buffer
	if err := s.writePage(&page, conditions); err != nil {
		return err
	}
	return os.WriteFile(o.page, page.Bytes(), 0o644)
}

// loadAverage returns the load average of the last minute.
func loadAverage() string {
	data, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(data), " ")
	return one
}

// smoke has the cells of a short run.
var smoke = []cell{{
	title: "smoke",
	fixed: "--format generate --requests 200 --concurrency 50 --isl 1000 --osl 50 --prefix-share 0.5 --prefixes 10 --workers 2",
}}

// quickEvery is the ratio of all small cells to the cells of a quick run.
const quickEvery = 8

// cells returns the cells that the flags name.
func (o *options) cells() []cell {
	if o.smoke {
		return smoke
	}
	var list []cell
	small := 0
	for _, c := range design(o.design) {
		half := c.half()
		if o.half != both && half != both && half != o.half || !strings.Contains(c.name(), o.only) {
			continue
		}
		if o.quick && c.fixed == "" {
			small++
			if c.engines > largeFleet || small%quickEvery != 0 {
				continue
			}
		}
		list = append(list, c)
	}
	return list
}
