package main

import (
	"fmt"
	"strings"

	"github.com/stator-project/stator/internal/sim"
)

// The headline's workload has the lengths of a claim that NVIDIA published for Dynamo: 100,000 requests to R1 with
// 4,000 tokens of prompt and 800 of answer on average, where routing by caches had a third of the time to first
// token and half of the latency of random routing. What the prompts had in common was not published. Here a
// prompt has 80 % of its tokens in common with others: 1,500 beginnings, which fit into the caches of all engines
// together and not into one.
const headline = "--format generate --isl 4000 --osl 800 --spread 0.5 --prefix-share 0.8 --prefixes 1500 --workers 8 --noise 0.3"

// rates are requests per second: half of what random routing can serve, which is about 42, up to a little more than that.
var rates = []int{24, 36, 39, 42, 45}

// headlinePolicies are compared with the first of them.
var headlinePolicies = []policy{{"random", "--policy random", nil}, {"kv", "", nil}}

// headline prints by which factor times become shorter.
func (b *bench) headline(requests int) error {
	fmt.Fprintf(b.out, "%d requests: `%s`\n\n", requests, headline)
	fmt.Fprint(b.out, "| requests/s | policy | reuse | TTFT mean, ms | TTFT p99, ms | e2e mean, ms | TTFT, times | e2e, times |\n")
	fmt.Fprint(b.out, "|---|---|---|---|---|---|---|---|\n")

	// All runs share the slots of b.jobs, and rows are printed in order.
	rows := make([]func() ([]sim.Result, error), 0, len(rates)*len(headlinePolicies))
	for _, rate := range rates {
		for _, p := range headlinePolicies {
			rows = append(rows, b.start(1, b.seeds, headline, fmt.Sprintf("--requests %d --rate %d", requests, rate), p.flags))
		}
	}
	var random []sim.Result
	for i, result := range rows {
		list, err := result()
		if err != nil {
			return err
		}
		p := i % len(headlinePolicies)
		if p == 0 {
			random = list
		}
		row := rowOf(fmt.Sprint(rates[i/len(headlinePolicies)]), headlinePolicies[p].name, list)
		fmt.Fprintf(b.out, "%s %s | %s |\n", strings.TrimSuffix(row, "\n"), times(random, list, ttftMean), times(random, list, e2eMean))
	}
	fmt.Fprintln(b.out)
	return nil
}

// times is by which factor a figure is smaller in the second list, for the least, the mean and the largest of the
// pairs of equal seed.
func times(a, b []sim.Result, of measure) string {
	least, most := 0.0, 0.0
	for i := range a {
		v := of(&a[i]) / of(&b[i])
		if i == 0 || v < least {
			least = v
		}
		most = max(most, v)
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", meanOf(a, of)/meanOf(b, of), least, most)
}
