package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stator-project/stator/test/stats"
)

// printTable compares policies. Times are given on the trace's clock: what clients waited,
// times the speed.
func printTable(out io.Writer, results []result, bound, speed float64) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POLICY\tBLOCK HIT RATE\tTTFT MEAN\tTTFT P99\tCOMPLETED\tFAILED\tREQUESTS PER WORKER\tNOT SERVED AS PICKED")

	for _, r := range results {
		mean := time.Duration(stats.MeanOf(r.ttft, func(d *time.Duration) float64 { return float64(*d) }))
		fmt.Fprintf(w, "%s\t%.3f\t%s\t%s\t%d\t%d\t%s\t%d\n", r.policy, float64(r.cached)/float64(max(1, r.prompt)),
			traceTime(mean, speed), traceTime(stats.Percentile(r.ttft, 0.99), speed), r.completed, r.failed, perWorker(r), r.unobeyed)
	}
	fmt.Fprintf(w, "one infinite cache\t%.3f\t\t\t\t\t\t\n", bound)
	_ = w.Flush()

	for _, r := range results {
		if r.failed > 0 {
			fmt.Fprintf(out, "%s: the last failure was: %s\n", r.policy, r.lastError)
		}
	}

	fmt.Fprintf(out, "\nTTFT is on the trace's clock: what clients waited × %g.\n", speed)
	compare(out, results)
}

func compare(out io.Writer, results []result) {
	rate := map[string]float64{}
	for _, r := range results {
		rate[r.policy] = float64(r.cached) / float64(max(1, r.prompt))
	}
	if kv, rr := rate["kv"], rate["round-robin"]; kv > 0 && rr > 0 {
		fmt.Fprintf(out, "kv finds %.1f times as many blocks as round-robin.\n", kv/rr)
	}
}

func traceTime(d time.Duration, speed float64) string {
	return fmt.Sprintf("%.0f ms", d.Seconds()*1000*speed)
}

func perWorker(r result) string {
	var parts []string
	for _, w := range slices.Sorted(maps.Keys(r.perWorker)) {
		parts = append(parts, fmt.Sprint(r.perWorker[w]))
	}
	return strings.Join(parts, " ")
}
