package main

import (
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"

	"github.com/stator-project/stator/test/stats"
)

// busyShare is the share of processor time above which figures depend on the processors.
const busyShare = 0.8

// titles and formats belong to the figures.
var (
	titles = [columns]string{"REQUESTS/S", "TOKENS/S", "TTFT MEAN", "TTFT P50", "TTFT P99", "E2E MEAN", "CACHED", "BUSIEST/MEAN", "CPU",
		"MACHINE"}
	format = [columns]string{"%.1f", "%.0f", "%.0f", "%.0f", "%.0f", "%.0f", "%.3f", "%.2f", "%.2f", "%.2f"}
)

// compared are the figures in which the first policy is compared with the others.
var compared = []int{rate, ttft, ttft99, e2e}

func printHead(out io.Writer, o *options) {
	_, _ = fmt.Fprintf(out, "%d simulated engines of %d slots behind Envoy, times divided by %g; chats of %d tokens, streams of %d "+
		"tokens, written %d at a time; %d rounds, seed %d, %d cores. Times are in ms.\n",
		engines, slots, o.speed, promptTokens, o.answer, o.interval, o.rounds, o.seed, runtime.NumCPU())
}

// printLoad prints the results of one load, by policy and round.
func printLoad(out io.Writer, l load, policies []string, results [][]result) {
	_, _ = fmt.Fprintf(out, "\n%s: %d requests, %d at a time; the first %d tokens of a prompt are one of %d prefixes\n\n",
		l.shape.name, l.requests, l.concurrent, l.shape.prefix, l.shape.prefixes)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(first string, cell func(column int) any, columns ...int) {
		_, _ = fmt.Fprint(w, first, "\t")
		for _, c := range columns {
			_, _ = fmt.Fprint(w, cell(c), "\t")
		}
		_, _ = fmt.Fprintln(w)
	}
	title := func(c int) any { return titles[c] }
	all := []int{rate, tokens, ttft, ttft50, ttft99, e2e, cached, busiest, own, machine}

	line("POLICY", title, all...)
	var ours, everything float64
	for i, list := range results {
		line(policies[i], func(c int) any { return fmt.Sprintf(format[c], stats.Mean(values(list, c))) }, all...)
		ours = max(ours, stats.Mean(values(list, own)))
		everything = max(everything, stats.Mean(values(list, machine)))
	}
	_, _ = fmt.Fprintln(w)
	line(policies[0]+" AGAINST", title, compared...)
	for i := 1; i < len(results); i++ {
		line(policies[i], func(c int) any { return stats.Difference(values(results[0], c), values(results[i], c)) }, compared...)
	}
	_ = w.Flush()
	_, _ = fmt.Fprint(out, "\n", verdict(ours, everything), "\n")
}

// verdict returns whether the processors had time left, from the largest shares of it that this program's processes and all used.
func verdict(ours, all float64) string {
	text := fmt.Sprintf("Gateway, engines and clients used at most %.0f %% of the processors, and with all other programs %.0f %%.",
		100*ours, 100*all)
	switch {
	case ours >= busyShare:
		text += " CPU BOUND: these figures are not about routing. Make the engines slower with --speed."
	case all >= busyShare:
		text += " DISTURBED: other programs may have delayed requests. Repeat this on an idle machine."
	}
	return text
}

func values(list []result, column int) (v []float64) {
	for _, r := range list {
		v = append(v, r[column])
	}
	return v
}
