package propose

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// Write prints the proposals as a table, at most most of them.
func Write(w io.Writer, list []Proposal, most int) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FLEET\tGPUS\tWATTS\tREQUESTS/S\tIF SLOWER\tLIMIT\tTTFT\tITL\tE2E\tLOAD")
	for i := range list[:min(most, len(list))] {
		p := &list[i]
		watts := "?"
		if p.Watts > 0 {
			watts = fmt.Sprintf("%.0f", p.Watts)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%.1f\t%.1f\t%s\t%s\t%s\t%s\t%.0f %%\n", p, p.GPUs, watts, p.Rate, p.SlowRate, p.Limit,
			text(p.Latency.TTFT), text(p.Latency.ITL), text(p.Latency.E2E), 100*min(p.Latency.Load, 9.99))
	}
	_ = t.Flush() // errors of w are the caller's
}

// text prints a latency with three digits or so.
func text(d time.Duration) string {
	switch {
	case d == capacity.Never:
		return "never"
	case d < 100*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// Why explains in a sentence why the first proposal is the best.
func Why(q Question, list []Proposal) string {
	best := &list[0]
	if !best.Met {
		return unmet(q, best)
	}
	other := rival(list)
	if other == nil {
		return "It is the only fleet that meets the targets."
	}
	if q.Rate > 0 && other.GPUs != best.GPUs {
		return fmt.Sprintf("It serves %.4g requests/s with %d GPUs; %s needs %d, because of its %s.", q.Rate, best.GPUs, other, other.GPUs,
			other.Limit)
	}

	gain := 100 * (best.Rate/other.Rate - 1)
	switch {
	case gain < 0:
		return fmt.Sprintf("%s would serve %.0f %% more, which does not outweigh that it is less simple or less exact.", other, -gain)
	case gain < 1:
		return fmt.Sprintf("%s serves as much.", other)
	}
	return fmt.Sprintf("It serves %.0f %% more requests/s within the targets than %s, which its %s limits%s.", gain, other, other.Limit,
		because(best, other))
}

// rival returns the best proposal of the other kind: with separate roles or without; nil if none meets the targets.
func rival(list []Proposal) *Proposal {
	var same *Proposal
	for i := range list[1:] {
		p := &list[1+i]
		switch {
		case !p.Met:
		case len(p.Pools) != len(list[0].Pools):
			return p
		case same == nil:
			same = p
		}
	}
	return same
}

// because returns the reason that follows from the kinds of two fleets.
func because(best, other *Proposal) string {
	switch {
	case len(best.Pools) == 2 && len(other.Pools) == 1 && other.Limit != "TTFT":
		return ": its prompts delay the steps of answers"
	case len(best.Pools) == 1 && len(other.Pools) == 2:
		return ": its GPUs cannot be divided as the work is"
	}
	return ""
}

// unmet explains what no fleet reaches.
func unmet(q Question, best *Proposal) string {
	if q.Rate > 0 && best.Rate > 0 {
		return fmt.Sprintf("No fleet of %d GPUs serves %.4g requests/s within the targets. This one serves %.1f.", q.GPUs, q.Rate,
			best.Rate)
	}
	return fmt.Sprintf("No fleet of %d GPUs meets the targets for any rate: the nearest has TTFT %s, ITL %s and E2E %s. Relax the "+
		"targets, or use a faster GPU or smaller weights.", q.GPUs, text(best.Latency.TTFT), text(best.Latency.ITL), text(best.Latency.E2E))
}

// Seqs returns how many requests at once an engine of a pool is to run: half more than at the latency targets, so that bursts do not
// wait, and a multiple of 16.
func (q *Question) Seqs(p *Pool) int {
	most := p.Engine.MaxSeqs
	if most == 0 {
		most = capacity.DefaultMaxSeqs
	}
	if p.Role == fleet.Prefill {
		return most
	}
	running := p.Engine.Running(q.Shape, q.Targets.ITL, 0)
	return max(16, min(most, 16*int(math.Ceil(1.5*running/16))))
}
