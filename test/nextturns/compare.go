package nextturns

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stator-project/stator/test/stats"
	"github.com/stator-project/stator/test/streams"
)

// Comparison has the results of both ways, by round.
type Comparison struct{ Without, With []Result }

// Add adds the result of one way in the next round.
func (c *Comparison) Add(hinted bool, r Result) {
	if hinted {
		c.With = append(c.With, r)
		return
	}
	c.Without = append(c.Without, r)
}

// Figure is a figure of all answers of a kind, without and with the hint.
type Figure struct {
	Name, format  string
	Without, With []float64
	// Difference is the one of the means. It pairs later turns. Of the other clients it pairs the means of rounds, because their requests
	// follow each other at the pace of their answers, so that no two belong together.
	Difference stats.Interval
}

// Later returns the figures of later turns: the time to the first token, and the share of prompts that was cached.
func (c *Comparison) Later() []Figure {
	first := Figure{Name: "first token of later turns, ms", format: "%.1f"}
	share := Figure{Name: "share of their prompts in a cache", format: "%.3f"}
	first.Without, share.Without = later(c.Without)
	first.With, share.With = later(c.With)
	first.Difference = stats.Difference(first.With, first.Without)
	share.Difference = stats.Difference(share.With, share.Without)
	return []Figure{first, share}
}

func later(list []Result) (first, share []float64) {
	for _, r := range list {
		for i := range r.Later {
			a := &r.Later[i]
			first = append(first, firstToken(a))
			share = append(share, float64(a.Cached)/float64(max(1, a.Prompt)))
		}
	}
	return first, share
}

// Others returns the figures of the other clients, if there were any: the times to the first token and to the end.
func (c *Comparison) Others() []Figure {
	first := Figure{Name: "first token of the others, ms", format: "%.1f"}
	whole := Figure{Name: "whole answers of the others, ms", format: "%.1f"}
	for _, f := range []struct {
		*Figure
		of func(*streams.Answer) float64
	}{{&first, firstToken}, {&whole, wholeAnswer}} {
		var without, with []float64
		f.Without, without = others(c.Without, f.of)
		f.With, with = others(c.With, f.of)
		if len(f.Without) == 0 || len(f.With) == 0 {
			return nil
		}
		f.Difference = stats.Difference(with, without)
	}
	return []Figure{first, whole}
}

// others returns a figure of all answers, and its mean in each round.
func others(list []Result, of func(*streams.Answer) float64) (all, means []float64) {
	for _, r := range list {
		begin := len(all)
		for i := range r.Others {
			all = append(all, of(&r.Others[i]))
		}
		means = append(means, stats.Mean(all[begin:]))
	}
	return all, means
}

func firstToken(a *streams.Answer) float64  { return a.First.Seconds() * 1000 }
func wholeAnswer(a *streams.Answer) float64 { return a.Whole.Seconds() * 1000 }

// Prefills returns the counts of speculative prefills by result in all rounds with the hint, as a list too, and the tokens that they have
// computed. A request that is picked for the rank of one stops it, which is counted as cancelled. So the other ones have delayed none.
func (c *Comparison) Prefills() (counts map[string]float64, list string, tokens float64) {
	counts = map[string]float64{}
	for _, r := range c.With {
		tokens += r.Tokens
		for result, n := range r.Prefills {
			counts[result] += n
		}
	}
	var words []string
	for _, result := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s %g", result, counts[result]))
	}
	return counts, strings.Join(words, ", "), tokens
}

// Titles are the titles of the cells of a figure.
var Titles = []any{"", "number without and with", "without the hint: mean, p50, p99", "with it", "difference"}

// Cells returns a row of a table.
func (f *Figure) Cells() []any {
	cell := func(v []float64) string {
		return fmt.Sprintf(f.format+", "+f.format+", "+f.format, stats.Mean(v), stats.Percentile(v, 0.5), stats.Percentile(v, 0.99))
	}
	return []any{f.Name, fmt.Sprintf("%d, %d", len(f.Without), len(f.With)), cell(f.Without), cell(f.With), f.Difference}
}
