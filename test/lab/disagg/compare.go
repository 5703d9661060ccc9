package disagg

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

// bench is one run of the command.
type bench struct {
	player
	seeds int
	slots chan struct{} // as many as runs at a time
	less  int           // divides the number of requests
}

// comparison is all modes on one workload and number of GPUs.
type comparison struct {
	plan
	grids [][]candidate
	rows  []row
}

// row is one mode of a comparison, with its best fleet.
type row struct {
	mode
	fleet
	rates []float64    // at which it meets the SLA, by seed
	equal []sim.Result // at the first mode's mean rate, by seed
	light []sim.Result // at a quarter of that rate, by seed
}

// plan has the workload, the number of GPUs and the candidates of a comparison.
type plan struct {
	workload
	gpus    int
	physics physics
	// fleets returns the candidates of a mode.
	fleets func(mode int) []fleet
}

// allFleets returns every candidate of a mode.
func allFleets(gpus int) func(mode int) []fleet {
	return func(mode int) []fleet { return modes[mode].fleets(gpus) }
}

// oneGPU returns the candidates of a mode whose engines have one GPU.
func oneGPU(gpus int) func(mode int) []fleet {
	return func(mode int) []fleet {
		return slices.DeleteFunc(modes[mode].fleets(gpus), func(f fleet) bool { return f.prefillTP > 1 || f.decodeTP > 1 })
	}
}

// like returns candidates that resemble the three best of another comparison, with k times as many GPUs.
func (c *comparison) like(k int) func(mode int) []fleet {
	return func(mode int) (list []fleet) {
		for _, x := range c.best(mode, 3) {
			for _, f := range x.near(k) {
				if !slices.Contains(list, f) {
					list = append(list, f)
				}
			}
		}
		return list
	}
}

// best returns the n best candidates of a mode, the best first.
func (c *comparison) best(mode, n int) []candidate {
	found := slices.DeleteFunc(slices.Clone(c.grids[mode]), func(x candidate) bool { return x.less })
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(b.rate, a.rate) })
	return found[:min(len(found), n)]
}

// compare searches the best fleet of each mode, and its capacity with every seed. Then it plays all at equal load.
func (b *bench) compare(l plan) (*comparison, error) {
	c := &comparison{plan: l, grids: make([][]candidate, len(modes)), rows: make([]row, len(modes))}
	err := process.Each(b.slots, len(modes), func(i int) error {
		x := setting{workload: l.workload, mode: modes[i], physics: l.physics, less: b.less, seed: searchSeed}
		list, best, err := b.grid(x, l.fleets(i), l.guess*float64(l.gpus))
		c.grids[i] = list
		c.rows[i] = row{mode: modes[i], fleet: best.fleet, rates: make([]float64, b.seeds)}
		c.rows[i].equal = make([]sim.Result, b.seeds)
		c.rows[i].light = make([]sim.Result, b.seeds)
		if err != nil || best.rate == 0 {
			return err
		}

		x.fleet = best.fleet
		x.requests = l.searched * l.gpus / b.less
		for seed := range b.seeds {
			x.seed = uint64(seed + 1)
			c.rows[i].rates[seed], err = b.capacity(&x, best.rate)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = b.playEqual(c, 1, func(w *row) []sim.Result { return w.equal })
	if err != nil {
		return nil, err
	}
	return c, b.playEqual(c, lightLoad, func(w *row) []sim.Result { return w.light })
}

// searchSeed is the seed of searches for the best fleet; the tables have those from 1.
const searchSeed = 1001

// lightLoad is the share of the first mode's rate at which a fleet has little to do.
const lightLoad = 0.25

// playEqual plays the best fleets at a share of the rate that the first one serves. into returns the place of a row's results.
func (b *bench) playEqual(c *comparison, share float64, into func(w *row) []sim.Result) error {
	rate := share * stats.Mean(c.rows[0].rates)
	if rate == 0 {
		return nil
	}
	return process.Each(b.slots, len(c.rows)*b.seeds, func(i int) error {
		w := &c.rows[i/b.seeds]
		if w.gpus() == 0 {
			return nil
		}
		x := setting{
			workload: c.workload, mode: w.mode, fleet: w.fleet, physics: c.physics,
			requests: int(share*float64(c.played)) * c.gpus / b.less, seed: uint64(i%b.seeds + 1),
		}
		o, err := b.play(&x, rate, false)
		if err == nil {
			into(w)[i%b.seeds] = *o.Result
		}
		return err
	})
}

// The figures of a result.
func ttftMean(r *sim.Result) float64    { return r.TTFT.Mean }
func ttftP99(r *sim.Result) float64     { return r.TTFT.P99 }
func itlMean(r *sim.Result) float64     { return r.ITL.Mean }
func itlP99(r *sim.Result) float64      { return r.ITL.P99 }
func transferred(r *sim.Result) float64 { return r.Transferred }

// header is the head of the table of comparisons.
const header = "| workload | GPUs | mode | best fleet | requests/s at the SLA | output tokens/s per GPU | × aggregated | " +
	"TTFT mean, p99 | ITL mean, p99 | transferred | at a quarter of the load: TTFT mean, p99 | ITL p99 | transferred |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"

// String returns the rows of the table. Latencies are those at the rate of the first row, and at a quarter of it.
func (c *comparison) String() string {
	var b strings.Builder
	for i := range c.rows {
		w := &c.rows[i]
		rate := stats.Mean(w.rates)
		tokens := rate * c.meanOutput() / float64(c.gpus)
		equal := func(of func(*sim.Result) float64) float64 { return stats.MeanOf(w.equal, of) }
		light := func(of func(*sim.Result) float64) float64 { return stats.MeanOf(w.light, of) }
		fmt.Fprintf(&b, "| %s | %d | %s | %v | %.1f ± %.1f | %.0f | %.2f | %.0f, %.0f ms | %.1f, %.1f ms | %.0f %% |", c.name, c.gpus,
			w.mode.name, w.fleet, rate, stats.Deviation(w.rates), tokens, c.ratio(i), equal(ttftMean), equal(ttftP99), equal(itlMean),
			equal(itlP99), 100*equal(transferred))
		fmt.Fprintf(&b, " %.0f, %.0f ms | %.1f ms | %.0f %% |\n", light(ttftMean), light(ttftP99), light(itlP99), 100*light(transferred))
	}
	return b.String()
}

// meanOutput is the mean number of tokens of an answer.
func (c *comparison) meanOutput() float64 {
	if !c.mooncake {
		return float64(c.output)
	}
	sum, n := 0.0, 0.0
	for i := range c.rows[0].equal {
		r := &c.rows[0].equal[i]
		for _, w := range r.PerWorker {
			sum += float64(w.OutputTokens)
		}
		n += float64(r.Completed) * (1 - 1.0/warmShare)
	}
	return sum / max(1, n)
}

// ratio is the rate of a row divided by the first row's rate.
func (c *comparison) ratio(i int) float64 {
	return stats.Mean(c.rows[i].rates) / max(1e-9, stats.Mean(c.rows[0].rates))
}

// shown is the number of candidates of a grid that are printed.
const shown = 6

// gridText lists the best candidates of all modes.
func (c *comparison) gridText() string {
	var b strings.Builder
	for i, grid := range c.grids {
		found := c.best(i, shown)
		var words []string
		for _, x := range found {
			words = append(words, fmt.Sprintf("%v: %.1f", x.fleet, x.rate))
		}
		fmt.Fprintf(&b, "- %s on %d GPUs, %s, requests/s: %s. The other %d of %d have less.\n", c.name, c.gpus, c.rows[i].mode.name,
			strings.Join(words, "; "), len(grid)-len(found), len(grid))
	}
	return b.String()
}
