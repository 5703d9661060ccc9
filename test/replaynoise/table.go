package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/stator-project/stator/internal/sim"
)

// measure is a figure of a run.
type measure func(*sim.Result) float64

func reuse(r *sim.Result) float64    { return r.PrefixReuse }
func ttftMean(r *sim.Result) float64 { return r.TTFT.Mean }
func ttftP99(r *sim.Result) float64  { return r.TTFT.P99 }
func e2eMean(r *sim.Result) float64  { return r.E2E.Mean }

// printRow prints the means over seeds, and standard deviations.
func printRow(w io.Writer, level, name string, list []sim.Result) {
	fmt.Fprint(w, rowOf(level, name, list))
}

// rowOf is the row that printRow prints.
func rowOf(level, name string, list []sim.Result) string {
	cell := func(format string, of measure) string {
		return fmt.Sprintf(format+" ± "+format, meanOf(list, of), deviation(list, of))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |\n", level, name, cell("%.3f", reuse), cell("%.1f", ttftMean), cell("%.0f", ttftP99),
		cell("%.0f", e2eMean))
}

// worstP99 is by how much the 99th percentile may be worse.
const worstP99 = 0.05

// differenceRow prints paired differences, and whether the first list is at least as good as the second: where
// an interval has both signs, neither is better.
func differenceRow(level string, a, b []sim.Result) string {
	ofReuse := interval(a, b, reuse)
	ofMean := interval(a, b, ttftMean)
	ofP99 := interval(a, b, ttftP99)
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
func relative(a, b []sim.Result, of measure) string { return interval(a, b, of).String() }

// spread is a mean difference and its interval, as shares of the second list's mean.
type spread struct{ mean, low, high float64 }

// String writes the difference in percent.
func (s spread) String() string {
	return fmt.Sprintf("%+.1f %% [%+.1f, %+.1f]", 100*s.mean, 100*s.low, 100*s.high)
}

// resamples is how many bootstrap samples an interval has.
const resamples = 10_000

// interval returns the mean of paired differences and its 95 % interval by the bootstrap over seeds.
func interval(a, b []sim.Result, of measure) spread {
	base := meanOf(b, of)
	pairs := make([]float64, len(a))
	for i := range a {
		pairs[i] = (of(&a[i]) - of(&b[i])) / base
	}

	rng := rand.New(rand.NewPCG(1, 1))
	means := make([]float64, resamples)
	for i := range means {
		for range pairs {
			means[i] += pairs[rng.IntN(len(pairs))] / float64(len(pairs))
		}
	}
	slices.Sort(means)
	mean := 0.0
	for _, v := range pairs {
		mean += v / float64(len(pairs))
	}
	return spread{mean, means[resamples/40], means[resamples-1-resamples/40]}
}

func meanOf(list []sim.Result, of measure) float64 {
	sum := 0.0
	for i := range list {
		sum += of(&list[i])
	}
	return sum / float64(len(list))
}

// deviation is the standard deviation over seeds.
func deviation(list []sim.Result, of measure) float64 {
	mean, squares := meanOf(list, of), 0.0
	for i := range list {
		squares += (of(&list[i]) - mean) * (of(&list[i]) - mean)
	}
	return math.Sqrt(squares / float64(max(1, len(list)-1)))
}
