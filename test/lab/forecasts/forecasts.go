// Package forecasts compares the models of internal/plan/forecast on series of arrivals. It prints the tables of docs/results/forecasts.md.
//
// Each series is the requests per second of steps of 5 s. A model predicts the step that is 30 s ahead, and the one 120 s ahead: about
// the time in which a worker becomes ready. A series whose trace is not on this machine is left out, and the output names it.
package forecasts

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stator-project/stator/internal/plan/forecast"
)

// Run compares the models, and prints the tables.
func Run(_ context.Context, args []string, out, _ io.Writer) error {
	f := flag.NewFlagSet("forecasts", flag.ContinueOnError)
	traces := f.String("traces", "", "`folder` of traces (default: traces, then ../shared/traces)")
	only := f.String("only", "", "use only series whose names contain this `text`")
	seed := f.Uint64("seed", 1, "seed of the generated series")
	quick := f.Bool("quick", false, "use short series, to see that everything runs")
	if err := f.Parse(args); err != nil {
		return err
	}
	return printTables(out, *traces, *only, *seed, *quick)
}

// step is the time of one value, and horizons are the distances of predictions, in steps.
const step = 5 * time.Second

var horizons = []int{6, 24}

// quantile is the one that plans use, and that is scored.
const quantile = 0.9

// contender is a model with its options.
type contender struct {
	label, name string
	options     forecast.Options
	// seasonal has the series' season in its options.
	seasonal bool
}

var contenders = []contender{
	{label: "constant", name: "constant"},
	{label: "kalman", name: "kalman"},
	{label: "kalman, whole trend", name: "kalman", options: forecast.Options{Damping: 1}},
	{label: "arima", name: "arima"},
	{label: "arima, log1p", name: "arima", options: forecast.Options{Log1p: true}},
	{label: "trend", name: "seasonal"},
	{label: "seasonal", name: "seasonal", seasonal: true},
	{label: "seasonal, multiplicative", name: "seasonal", options: forecast.Options{Multiplicative: true}, seasonal: true},
	{label: "auto", name: "auto", seasonal: true},
}

// score has the errors of one model's forecasts.
type score struct {
	contender string
	// absolute is the mean absolute error of the mean, and pinball the mean pinball loss of the 0.9 quantile: both as shares of the
	// mean of the series. covered is the share of values that the quantile covered.
	absolute, pinball, covered float64
}

// printTables prints a table for each series and horizon, and then what won.
func printTables(w io.Writer, traces, only string, seed uint64, quick bool) error {
	list, skipped, err := allSeries(traces, seed, quick)
	if err != nil {
		return err
	}

	losses := map[string][]float64{}
	for _, s := range list {
		if !strings.Contains(s.name, only) {
			continue
		}
		fmt.Fprintf(w, "\n%s: %d steps of %v, %.1f requests/s in the mean, deviation %.1f\n",
			s.name, len(s.values), step, s.mean(), s.deviation())
		for _, h := range horizons {
			scores, err := compare(s, h)
			if err != nil {
				return err
			}
			printTable(w, h, scores)
			for _, c := range scores {
				losses[c.contender] = append(losses[c.contender], c.pinball/best(scores).pinball)
			}
		}
	}

	for _, why := range skipped {
		fmt.Fprintf(w, "\n%s\n", why)
	}
	printSummary(w, losses)
	return nil
}

// best returns the score with the least pinball loss at the quantile that plans use.
func best(scores []score) score {
	return slices.MinFunc(scores, func(a, b score) int { return cmp.Compare(a.pinball, b.pinball) })
}

// printTable prints the table of one horizon, and the winner.
func printTable(w io.Writer, horizon int, scores []score) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%v ahead\terror of the mean\tpinball loss at %v\tcovered by it\t\n", time.Duration(horizon)*step, quantile)
	for _, s := range scores {
		fmt.Fprintf(t, "%s\t%.1f %%\t%.2f %%\t%.1f %%\t\n", s.contender, 100*s.absolute, 100*s.pinball, 100*s.covered)
	}
	_ = t.Flush()
	fmt.Fprintf(w, "least pinball loss: %s\n\n", best(scores).contender)
}

// printSummary prints how far each model is from the best one, in the mean of all series and horizons.
func printSummary(w io.Writer, losses map[string][]float64) {
	names := make([]string, 0, len(losses))
	means, worst := map[string]float64{}, map[string]float64{}
	for name, list := range losses {
		names = append(names, name)
		logs := 0.0
		for _, v := range list {
			logs += math.Log(v) / float64(len(list))
		}
		means[name], worst[name] = math.Exp(logs), slices.Max(list)
	}
	if len(names) == 0 {
		return
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(means[a], means[b]), cmp.Compare(a, b)) })

	fmt.Fprintln(w, "Pinball loss relative to the best model of each series and horizon:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tgeometric mean\tworst\t")
	for _, name := range names {
		fmt.Fprintf(t, "%s\t%.3f\t%.3f\t\n", name, means[name], worst[name])
	}
	_ = t.Flush()
	fmt.Fprintf(w, "nearest to the best in the mean: %s\n", names[0])
}

// compare runs all contenders on a series.
func compare(s series, horizon int) ([]score, error) {
	var out []score
	for _, c := range contenders {
		o := c.options
		if c.seasonal {
			o.Season = s.season
		}
		f, err := forecast.New(c.name, o)
		if err != nil {
			return nil, err
		}
		judged := judge(f, s, horizon)
		judged.contender = c.label
		out = append(out, judged)
	}
	return out, nil
}

// judge has a forecaster predict a series, and compares from its first scored step on.
func judge(f forecast.Forecaster, s series, horizon int) score {
	var out score
	n, sum := 0.0, 0.0
	for i, v := range s.values[:len(s.values)-horizon] {
		f = f.Observe(v)
		if i < s.scored {
			continue
		}
		came, e := s.values[i+horizon], f.At(horizon)
		q := e.Quantile(quantile)
		out.absolute += math.Abs(came - e.Mean)
		out.pinball += max(quantile*(came-q), (quantile-1)*(came-q))
		if came <= q {
			out.covered++
		}
		n++
		sum += came
	}
	mean := max(sum/n, 1e-9)
	out.absolute /= n * mean
	out.pinball /= n * mean
	out.covered /= n
	return out
}
