// Command replaymatrix compares the router with rivals over a matrix of loads and fleets in the simulator. It prints the tables
// of docs/benchmarks.md.
//
// Every router plays the same arrivals, noise and seeds. kv has its defaults. Each rival has its documented default, and the best of
// some settings in each cell, by a search on a seed that the tables do not have. The cells are those of design.go. They
// are split into two halves: A may be looked at while the router is changed, and B is for the end.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	half, only, json string
	list             bool
	quick, smoke     bool
}

func main() {
	var o options
	b := bench{routers: contestants(), capacities: capacities{known: map[string]func() (float64, error){}}}
	flag.StringVar(&o.half, "half", "A", "play half A, B or both")
	flag.StringVar(&o.only, "only", "", "play only cells whose names contain this `text`")
	flag.BoolVar(&o.list, "list", false, "print the names of the cells and play nothing")
	flag.BoolVar(&o.quick, "quick", false, "play the named cells and some small ones, on one seed")
	flag.BoolVar(&o.smoke, "smoke", false, "play little, to see that everything runs")
	flag.StringVar(&o.json, "json", "", "write all rows to this `file`")
	flag.IntVar(&b.seeds, "seeds", 2, "number of runs of each kind")
	flag.IntVar(&b.jobs, "jobs", 2, "number of cells at a time")
	flag.Parse()

	if o.quick || o.smoke {
		b.seeds = 1
	}
	if err := run(&o, &b); err != nil {
		fmt.Fprintln(os.Stderr, "replaymatrix:", err)
		os.Exit(1)
	}
}

func run(o *options, b *bench) error {
	cells := o.cells()
	if o.list {
		for i := range cells {
			fmt.Println(cells[i].half(), cells[i].name())
		}
		return nil
	}

	began := time.Now()
	list, failed := b.run(cells)
	if o.json != "" {
		data, err := json.MarshalIndent(list, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, data, 0o644); err != nil {
			return err
		}
	}
	writeCells(os.Stdout, list)
	s := summarize(list)
	s.write(os.Stdout)
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("\n%d cells, %d seeds, half %s, %.0f min, load average %s", len(list), b.seeds, o.half, time.Since(began).Minutes(), load)
	return failed
}

// smoke is what a short run plays.
var smoke = []cell{{
	title: "smoke",
	fixed: "--format generate --requests 200 --concurrency 50 --isl 1000 --osl 50 --prefix-share 0.5 --prefixes 10 --workers 2",
}}

// quickEvery is how many small cells there are for one that a quick run has.
const quickEvery = 6

// cells returns the cells that the flags name.
func (o *options) cells() []cell {
	if o.smoke {
		return smoke
	}
	var list []cell
	small := 0
	for _, c := range design() {
		half := c.half()
		if o.half != both && half != both && half != o.half || !strings.Contains(c.name(), o.only) {
			continue
		}
		if o.quick && c.fixed == "" {
			small++
			if c.engines > 8 || small%quickEvery != 0 {
				continue
			}
		}
		list = append(list, c)
	}
	return list
}
