package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/test/stats"
)

// The set-ups of --legs. Both have one worker that answers; two legs have a prefill worker before it.
const (
	oneColdName = "one leg, cold"
	oneWarmName = "one leg, warm"
	twoColdName = "two legs, cold"
	twoWarmName = "two legs, warm"

	beforeTwoColdName = "before, two legs, cold"
	beforeTwoWarmName = "before, two legs, warm"
)

// legsLimit is the goal for the CPU time of ext_proc with two legs, as a multiple of that with one leg.
const legsLimit = 1.5

// startLegs starts a router with an aggregated worker and one with a prefill and a decode worker, if that is asked for.
func (b *bench) startLegs() error {
	if !b.legs {
		return nil
	}
	one := pool{single: true, router: "policy: kv", workers: fmt.Sprintf("  - {name: w0, address: %q}\n", b.workers.addresses[0])}
	if err := b.startRouter("one-leg", b.stator, oneColdName, oneWarmName, one); err != nil {
		return err
	}

	var err error
	b.prefills, err = startWorkers(1, answerPrefill)
	if err != nil {
		return fmt.Errorf("start a prefill worker: %w", err)
	}
	const worker = "  - {name: %s, role: %[1]s, transfer: nixl, healthPath: none, address: %q}\n"
	two := pool{
		single: true, router: "policy: kv, prefill: remote", prefills: b.prefills,
		workers: fmt.Sprintf(worker, "prefill", b.prefills.addresses[0]) + fmt.Sprintf(worker, "decode", b.workers.addresses[0]),
	}
	if err := b.startRouter("two-legs", b.stator, twoColdName, twoWarmName, two); err != nil || b.before == "" {
		return err
	}
	return b.startRouter("before-two-legs", b.before, beforeTwoColdName, beforeTwoWarmName, two)
}

// prefillKey returns the count of an outcome of requests to prefill workers.
func prefillKey(outcome string) string { return "prefill_" + outcome }

// legsWitness also reads how the requests to prefill workers ended.
type legsWitness struct{ ourWitness }

func (w legsWitness) prove(seen counts, n int) error {
	for _, o := range prefill.Outcomes() {
		want := 0
		if o == prefill.Transferred {
			want = n
		}
		if got := seen[prefillKey(string(o))]; got != float64(want) {
			return fmt.Errorf("%g of %d requests to prefill workers were %s, not %d", got, n, o, want)
		}
	}
	return w.ourWitness.prove(seen, n)
}

// legsRatio is the CPU time of ext_proc with two legs over that with one leg, compared within each round.
type legsRatio struct {
	Setup   string  `json:"setup"` // that with two legs
	Chars   int     `json:"prompt_chars"`
	One     float64 `json:"one_leg_ext_proc_us"`
	Two     float64 `json:"two_legs_ext_proc_us"`
	Ratio   float64 `json:"two_over_one"`
	Lowest  float64 `json:"two_over_one_min"`
	Highest float64 `json:"two_over_one_max"`
	Limit   float64 `json:"limit"`
}

// compareLegs returns the ratios at all sizes; none without the set-ups of --legs.
func (r *report) compareLegs() []legsRatio {
	var out []legsRatio
	for _, row := range r.Rows {
		switch row.Setup {
		case beforeTwoColdName, twoColdName:
			out = append(out, r.legsRatio(oneColdName, row))
		case beforeTwoWarmName, twoWarmName:
			out = append(out, r.legsRatio(oneWarmName, row))
		}
	}
	return out
}

// legsRatio compares a row of two legs with the set-up of one leg at the same size.
func (r *report) legsRatio(one string, two row) legsRatio {
	costs := map[int]float64{} // of one leg, by round
	for _, c := range r.cells {
		if c.Setup == one && c.Chars == two.Chars {
			costs[c.Round] = c.ExtProc
		}
	}

	var ratios []float64
	for _, c := range r.cells {
		if c.Setup == two.Setup && c.Chars == two.Chars && costs[c.Round] > 0 { // a tiny cell may cost less than a tick
			ratios = append(ratios, c.ExtProc/costs[c.Round])
		}
	}

	out := legsRatio{Setup: two.Setup, Chars: two.Chars, One: r.row(one, two.Chars).ExtProc, Two: two.ExtProc, Limit: legsLimit}
	if len(ratios) > 0 {
		out.Ratio = stats.Median(ratios)
		out.Lowest = slices.Min(ratios)
		out.Highest = slices.Max(ratios)
	}
	return out
}

// writeLine writes one line for people.
func (l *legsRatio) writeLine(w io.Writer) {
	fmt.Fprintf(w, "goal: ext_proc with %s at %d characters at most %.2f × one leg: %.0f against %.0f µs, %.2f (%.2f-%.2f), %s\n",
		l.Setup, l.Chars, l.Limit, l.Two, l.One, l.Ratio, l.Lowest, l.Highest, verdict(l.Ratio, l.Limit))
}
