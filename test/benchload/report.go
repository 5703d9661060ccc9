package main

import (
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"

	"github.com/stator-project/stator/test/paired"
)

// busyShare is the share of processor time above which figures depend on the processors.
const busyShare = 0.8

func printHead(out io.Writer, o *options) {
	_, _ = fmt.Fprintf(out, "%d simulated engines of %d slots behind Envoy, times divided by %g; chats of %d tokens, streams of %d tokens, "+
		"written %d at a time; %d rounds, seed %d, %d cores\n",
		o.engines, slots, o.speed, promptTokens, o.answer, o.interval, o.rounds, o.seed, runtime.NumCPU())
}

// figures are the columns in which the first policy is compared with the others.
var figures = []struct {
	name string
	of   func(*result) float64
}{
	{"REQUESTS/S", func(r *result) float64 { return r.rate }},
	{"TTFT MEAN", func(r *result) float64 { return r.ttft }},
	{"TTFT P99", func(r *result) float64 { return r.ttft99 }},
	{"E2E MEAN", func(r *result) float64 { return r.e2e }},
}

// printLoad prints the results of one load, by policy and round.
func printLoad(out io.Writer, l load, policies []string, results [][]result) {
	_, _ = fmt.Fprintf(out, "\n%s: %d requests, %d at a time; the first %d tokens of a prompt are those of one of %d prefixes\n\n", l.shape.name,
		l.requests, l.concurrent, l.shape.prefix, l.shape.prefixes)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "POLICY\tREQUESTS/S\tTOKENS/S\tTTFT MEAN\tP50\tP99\tE2E MEAN\tCACHED\tBUSIEST/MEAN\tCPU\tMACHINE\t")
	most := 0.0
	for i, list := range results {
		m := mean(list)
		_, _ = fmt.Fprintf(w, "%s\t%.1f\t%.0f\t%.0f ms\t%.0f ms\t%.0f ms\t%.0f ms\t%.3f\t%.2f\t%.0f %%\t%.0f %%\t\n", policies[i], m.rate, m.tokens,
			m.ttft, m.ttft50, m.ttft99, m.e2e, m.cached, m.busiest, 100*m.own, 100*m.machine)
		most = max(most, m.own, m.machine)
	}
	_ = w.Flush()

	_, _ = fmt.Fprintf(out, "\n%s against the others, in pairs of one round, with 95 %% intervals\n\n", policies[0])
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprint(w, "POLICY\t")
	for _, f := range figures {
		_, _ = fmt.Fprint(w, f.name, "\t")
	}
	for i := 1; i < len(results); i++ {
		_, _ = fmt.Fprint(w, "\n", policies[i], "\t")
		for _, f := range figures {
			_, _ = fmt.Fprint(w, paired.Difference(values(results[0], f.of), values(results[i], f.of)), "\t")
		}
	}
	_, _ = fmt.Fprintln(w)
	_ = w.Flush()
	_, _ = fmt.Fprint(out, "\n", verdict(most), "\n")
}

// verdict returns whether the processors had time left, from the largest share of it that was used.
func verdict(share float64) string {
	if share < busyShare {
		return fmt.Sprintf("The processors were busy for at most %.0f %% of the time.", 100*share)
	}
	return fmt.Sprintf("CPU BOUND: the processors were busy for %.0f %% of the time, so these figures are not about routing. "+
		"Make the engines slower with --speed.", 100*share)
}

func values(list []result, of func(*result) float64) (v []float64) {
	for i := range list {
		v = append(v, of(&list[i]))
	}
	return v
}

func mean(list []result) (m result) {
	for _, of := range []func(*result) *float64{
		func(r *result) *float64 { return &r.rate }, func(r *result) *float64 { return &r.tokens },
		func(r *result) *float64 { return &r.ttft }, func(r *result) *float64 { return &r.ttft50 },
		func(r *result) *float64 { return &r.ttft99 }, func(r *result) *float64 { return &r.e2e },
		func(r *result) *float64 { return &r.cached }, func(r *result) *float64 { return &r.busiest },
		func(r *result) *float64 { return &r.own }, func(r *result) *float64 { return &r.machine },
	} {
		for i := range list {
			*of(&m) += *of(&list[i]) / float64(len(list))
		}
	}
	return m
}
