package tables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/stats"
)

// tableRow returns a row of a table: means over seeds, and standard deviations.
func (s *spec) tableRow(list []sim.Result, first ...string) string {
	cells := first
	for _, c := range s.Columns {
		values := make([]float64, len(list))
		for i := range list {
			values[i] = c.Figure.of(&list[i])
		}
		cells = append(cells, fmt.Sprintf(c.Format+" ± "+c.Format, stats.Mean(values), stats.Deviation(values)))
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// worstP99 is by how much the 99th percentile may be worse.
const worstP99 = 0.05

// differenceRow prints paired differences, and whether the first list is at least as good as the second. If
// an interval has both signs, neither is better.
func differenceRow(level string, a, b []sim.Result) string {
	ofReuse := interval(a, b, "reuse")
	ofMean := interval(a, b, "ttft")
	ofP99 := interval(a, b, "ttft p99")
	met := "yes"
	switch {
	case ofReuse.high < 0:
		met = "no: reuse"
	case ofMean.low > 0:
		met = "no: TTFT"
	case ofP99.mean > worstP99:
		met = "no: p99"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", level, ofReuse, ofMean, ofP99, met)
}

// relative is the paired difference of two lists, with its interval.
func relative(a, b []sim.Result, f figure) string { return interval(a, b, f).String() }

// spread is a mean difference and its interval, as shares of the second list's mean.
type spread struct{ mean, low, high float64 }

// String writes the difference in percent.
func (s spread) String() string {
	return fmt.Sprintf("%+.1f %% [%+.1f, %+.1f]", 100*s.mean, 100*s.low, 100*s.high)
}

// resamples is the number of bootstrap samples of an interval.
const resamples = 10_000

// interval returns the mean of paired differences and its 95 % interval by the bootstrap over seeds.
func interval(a, b []sim.Result, f figure) spread {
	base := stats.MeanOf(b, f.of)
	pairs := make([]float64, len(a))
	for i := range a {
		pairs[i] = (f.of(&a[i]) - f.of(&b[i])) / base
	}

	rng := rand.New(rand.NewPCG(1, 1))
	means := make([]float64, resamples)
	for i := range means {
		for range pairs {
			means[i] += pairs[rng.IntN(len(pairs))] / float64(len(pairs))
		}
	}
	slices.Sort(means)
	return spread{stats.Mean(pairs), means[resamples/40], means[resamples-1-resamples/40]}
}
