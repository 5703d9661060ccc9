package route

import (
	"fmt"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/cost"
)

// String prints the decision as people read it: what was asked, a table of the candidates
// with overlap, load and the terms of their cost, and one sentence why the winner won.
// Costs are in milliseconds of delay, or in blocks by Dynamo's function; lower is better.
func (d *Decision) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "decision %s · %s · model %s", d.ID, d.Outcome, orDash(d.Model))
	if d.Policy != "" {
		fmt.Fprintf(&b, " · policy %s", d.Policy)
	}
	b.WriteByte('\n')
	b.WriteString(d.waited())
	if d.Outcome == Queued {
		return b.String()
	}
	if d.Outcome == Refused {
		fmt.Fprintf(&b, "refused with %d: %s\n", d.Err.Status, d.Err.Message)
		return b.String()
	}
	if d.PromptTokens > 0 {
		fmt.Fprintf(&b, "prompt %d tokens, %d complete blocks of %d, first %016x, last %016x\n\n",
			d.PromptTokens, d.Blocks, d.BlockSize, d.First, d.Last)
	} else {
		b.WriteString("prompt not read: routed by load\n\n")
	}
	table(&b, d.rows())
	if more := d.Considered - len(d.Candidates); more > 0 {
		fmt.Fprintf(&b, "and %d more at higher cost\n", more)
	}
	fmt.Fprintf(&b, "\n%s\n", d.why())
	return b.String()
}

func (d *Decision) rows() [][]string {
	terms := []string{"cost ms", "= wait", "+ prefill", "+ decode", "+ untracked"}
	if d.Cost == cost.NameDynamo {
		terms = []string{"cost", "= prefill", "+ decode", "+ requests"}
	}
	prefers := len(d.Candidates) > 0 && d.Candidates[0].Score.Preference > 0
	if prefers {
		terms = append(terms, "× taints")
	}
	head := append([]string{"", "worker", "device", "host", "disk", "ext", "prefill tokens", "decode blocks", "requests"}, terms...)
	rows := [][]string{append(head, "uncached")}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		mark := ""
		if c.Picked {
			mark = "→"
		}
		rows = append(rows, []string{mark, c.name(d), num(c.Overlap[fleet.Device]), num(c.Overlap[fleet.Host]),
			num(c.Overlap[fleet.Disk]), num(c.Overlap[fleet.External]),
			num(c.Load.PrefillTokens), num(c.Load.DecodeBlocks), num(c.Load.Requests), dec(c.Score.Total)})
		last, s := &rows[len(rows)-1], &c.Score
		if d.Cost == cost.NameDynamo {
			*last = append(*last, dec(s.Prefill), dec(s.Decode), dec(s.Requests))
		} else {
			*last = append(*last, dec(s.Wait), dec(s.Prefill), dec(s.Decode), dec(s.Untracked))
		}
		if prefers {
			*last = append(*last, fmt.Sprintf("%.2f", s.Preference))
		}
		*last = append(*last, num(s.Uncached))
	}
	return rows
}

func (c *Candidate) name(d *Decision) string {
	for i := range d.Candidates {
		if o := &d.Candidates[i]; o.Worker == c.Worker && o.Rank != c.Rank || c.Rank > 0 {
			return fmt.Sprintf("%s/%d", c.Worker, c.Rank)
		}
	}
	return c.Worker
}

// why says in one sentence what decided.
func (d *Decision) why() string {
	won, next := d.split()
	if won == nil {
		return ""
	}
	name := won.name(d)
	switch d.Policy {
	case "round-robin":
		return name + " won: it was its turn."
	case "random":
		return name + " won: it was drawn at random."
	case "direct":
		return name + " won: the request names it."
	case "session":
		if d.Session != "" {
			return name + " won: its session belongs there, by the hash of both names."
		}
		return name + " won: the request names no session, and none had fewer requests."
	case "power-of-two":
		return fmt.Sprintf("%s won: two were drawn, and it had %d requests, not more than the other.", name, won.Load.Requests+won.Untracked)
	case "least-loaded":
		return fmt.Sprintf("%s won: it had %d requests, none had fewer.", name, won.Load.Requests+won.Untracked)
	}
	holds := fmt.Sprintf("it holds %d of %d blocks and must compute %d of %d tokens", d.Overlap, d.Blocks, won.Score.Uncached, d.PromptTokens)
	switch {
	case next == nil:
		return fmt.Sprintf("%s won: it was the only candidate; %s.", name, holds)
	case won.Score.Total > next.Score.Total:
		return fmt.Sprintf("%s won: drawn by temperature at cost %s, though %s cost %s; %s.",
			name, dec(won.Score.Total), next.name(d), dec(next.Score.Total), holds)
	case won.Score.Total == next.Score.Total:
		return fmt.Sprintf("%s won: drawn among equals at cost %s; %s.", name, dec(won.Score.Total), holds)
	}
	return fmt.Sprintf("%s won: cost %s against %s on %s, mostly by %s; %s.",
		name, dec(won.Score.Total), dec(next.Score.Total), next.name(d), mainReason(won, next), holds)
}

// split returns the picked candidate and the best of the others.
func (d *Decision) split() (won, next *Candidate) {
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Picked {
			won = c
		} else if next == nil {
			next = c
		}
	}
	return won, next
}

// mainReason names the term in which the winner gained most over the next. Prefill by Dynamo's
// function has two parts: what overlap saves of this prompt, and what is booked ahead of it. By
// ours it has two as well: what this prompt takes to compute, and how many it would hold up.
func mainReason(won, next *Candidate) string {
	overlap := won.Score.Credit - next.Score.Credit
	ahead := next.Score.Ahead - won.Score.Ahead
	scale := 0.0
	if overlap+ahead > 0 {
		scale = (next.Score.Prefill - won.Score.Prefill) / (overlap + ahead)
	}
	less, neighbours := "overlap", 0.0
	if own := won.Score.Own; own > 0 && next.Score.Own > 0 {
		switch {
		case won.Score.Uncached < next.Score.Uncached:
		case won.Overlap[fleet.Device] > next.Overlap[fleet.Device]:
			less = "overlap in a faster tier"
		default:
			less = "a faster rank"
		}
		overlap, scale = next.Score.Own-own, won.Score.Prefill/own
		neighbours = next.Score.Own * (next.Score.Prefill/next.Score.Own - scale)
	}
	reason, most := "less work", 0.0
	for _, term := range []struct {
		name string
		gain float64
	}{
		{less, overlap * scale},
		{"fewer requests to hold up", neighbours},
		{"less to wait for", next.Score.Wait - won.Score.Wait},
		{"less prefill ahead", ahead * scale},
		{"fewer blocks in use", next.Score.Decode - won.Score.Decode},
		{"fewer requests", next.Score.Requests - won.Score.Requests},
		{"fewer untracked requests", next.Score.Untracked - won.Score.Untracked},
		{"preferred taints", won.Score.Total / max(won.Score.Preference, 0.1) * (next.Score.Preference - won.Score.Preference)},
	} {
		if term.gain > most {
			reason, most = term.name, term.gain
		}
	}
	return reason
}

// waited says in one line how long the request has waited, and why; nothing for one that did not.
func (d *Decision) waited() string {
	w := d.Wait
	if w == nil {
		return ""
	}
	took := "waits"
	if d.Outcome != Queued {
		took = fmt.Sprintf("waited %.3f s", w.Took.Seconds())
	}
	why := fmt.Sprintf("all %d ranks that may take it were busy", w.Busy)
	switch {
	case w.Free:
		why = "others came first"
	case w.Busy == 1:
		why = "the only rank that may take it was busy"
	}
	where := ""
	if w.Class != "" {
		where = ", class " + w.Class
	}
	if w.Tenant != "" {
		where += ", tenant " + w.Tenant
	}
	return fmt.Sprintf("%s (%d waited already%s): %s\n", took, w.Ahead, where, why)
}

func num[T int | int64](n T) string { return fmt.Sprint(n) }
func dec(v float64) string          { return fmt.Sprintf("%.1f", v) }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// table aligns rows: the first two columns to the left, figures to the right.
func table(b *strings.Builder, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-len([]rune(cell)))
			if i < 2 {
				line.WriteString(cell + pad)
			} else {
				line.WriteString(pad + cell)
			}
			line.WriteString("  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
