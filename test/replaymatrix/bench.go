package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// row is a contestant with one of its settings in a cell.
type row struct {
	Router  string `json:"router"`
	Setting string `json:"setting"`
	// Best is set for the setting that the search chose, if it is not the default.
	Best bool `json:"best"`
	figures
	Seeds []figures `json:"seeds"`
}

// title names the row in tables.
func (r *row) title() string {
	if r.Best {
		return r.Router + ", best"
	}
	return r.Router
}

// outcome is all rows of a cell; the first one is kv's.
type outcome struct {
	Cell  string `json:"cell"`
	Half  string `json:"half"`
	Flags string `json:"flags"`
	// Sessions means that no flags of `stator replay` make the prompts.
	Sessions bool  `json:"sessions,omitempty"`
	Rows     []row `json:"rows"`
	// Search has the runs by which settings were chosen, all on one seed; the first one is kv's.
	Search []row `json:"search"`
}

// bench plays cells.
type bench struct {
	seeds      int
	jobs       int
	routers    []contestant
	capacities *capacities
}

// playAgain replaces kv's rows by the results of today's router, on the same seeds. Rivals do not change with it.
func playAgain(list []outcome, jobs int) error {
	errs := make([]error, len(list))
	places := make(chan struct{}, max(1, jobs))
	var running sync.WaitGroup
	var b bench
	kv := &contestants()[0]
	for i := range list {
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			o := &list[i]
			o.Search = slices.DeleteFunc(o.Search, func(r row) bool { return r.Router == kv.name })
			searched, err := b.playRow(o, kv.name, &kv.settings[0], searchSeed, 1)
			o.Search = slices.Insert(o.Search, 0, searched)
			if err == nil {
				o.Rows[0], err = b.playRow(o, kv.name, &kv.settings[0], 1, len(o.Rows[0].Seeds))
			}
			errs[i] = err
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// searchSeed is the seed of the search. The tables have the seeds from 1.
const searchSeed = 1001

// playCells plays all cells, some at a time, and returns their outcomes in order. A cell that fails is left out, and in the error. When
// ctx is done no further cell begins. ended is called with each outcome, from several goroutines.
func (b *bench) playCells(ctx context.Context, cells []cell, ended func(*outcome) error) ([]outcome, error) {
	list := make([]outcome, len(cells))
	errs := make([]error, len(cells))
	began := time.Now()
	var running sync.WaitGroup
	var mu sync.Mutex
	next, done := 0, 0

	for range max(1, b.jobs) {
		running.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(cells) || ctx.Err() != nil {
					return
				}

				var err error
				list[i], err = b.cell(&cells[i])
				if err == nil {
					err = ended(&list[i])
				}
				if err != nil {
					errs[i] = fmt.Errorf("%s: %w", cells[i].name(), err)
				}
				mu.Lock()
				done++
				fmt.Fprintf(os.Stderr, "%4d of %d after %s: %s\n", done, len(cells), time.Since(began).Round(time.Second), cells[i].name())
				mu.Unlock()
			}
		})
	}
	running.Wait()
	played := list[:0]
	for i := range list {
		if errs[i] == nil && len(list[i].Rows) > 0 {
			played = append(played, list[i])
		}
	}
	return played, errors.Join(errs...)
}

// cell plays every contestant in a cell: with its default, and with the setting that is best on another seed.
func (b *bench) cell(c *cell) (outcome, error) {
	rate := 0.0
	if c.fixed == "" && c.arrival.kind != closedLoop {
		var err error
		rate, err = b.capacities.capacityOf(c)
		if err != nil {
			return outcome{}, err
		}
	}

	out := outcome{Cell: c.name(), Half: c.half(), Flags: c.flags(rate), Sessions: c.sharing.sessions}
	for i := range b.routers {
		r := &b.routers[i]
		byDefault, err := b.playRow(&out, r.name, &r.settings[0], 1, b.seeds)
		if err != nil {
			return out, err
		}
		out.Rows = append(out.Rows, byDefault)

		best, err := b.search(&out, r)
		if err != nil {
			return out, err
		}
		if best == 0 {
			continue
		}
		chosen, err := b.playRow(&out, r.name, &r.settings[best], 1, b.seeds)
		if err != nil {
			return out, err
		}
		chosen.Best = true
		out.Rows = append(out.Rows, chosen)
	}
	return out, nil
}

// search returns the number of the setting with the least mean time of whole requests on the seed of the search.
func (b *bench) search(out *outcome, r *contestant) (best int, err error) {
	if len(r.settings) == 1 && len(out.Search) > 0 { // kv, which comes first, has one setting: others are compared with it
		return 0, nil
	}
	tried := make([]row, len(r.settings))
	for i := range r.settings {
		tried[i], err = b.playRow(out, r.name, &r.settings[i], searchSeed, 1)
		if err != nil {
			return 0, err
		}
	}
	out.Search = append(out.Search, tried...)

	least := slices.MinFunc(tried, func(a, b row) int { return cmp.Compare(a.badness(), b.badness()) })
	return slices.IndexFunc(tried, func(r row) bool { return r.Setting == least.Setting }), nil
}

// badness is the figure that the search makes least: the mean time of a request. Failed requests make it larger.
func (r *row) badness() float64 { return r.E2E * (1 + r.Errors) }

// playRow plays a setting on so many seeds.
func (b *bench) playRow(out *outcome, router string, s *setting, from, seeds int) (row, error) {
	r := row{Router: router, Setting: s.name}
	for seed := from; seed < from+seeds; seed++ {
		flags := strings.Join([]string{out.Flags, s.flags, fmt.Sprint("--seed ", seed)}, " ")
		result, err := play(flags, out.Sessions, s.change)
		if err != nil {
			return r, fmt.Errorf("%s, %s: %w", router, flags, err)
		}
		r.Seeds = append(r.Seeds, figuresOf(result))
	}
	r.figures = over(r.Seeds)
	return r, nil
}
