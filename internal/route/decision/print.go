package decision

import (
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/cost"
)

// String prints the decision for people: the request, a table of the candidates with overlap, load and the terms
// of their cost, and one sentence why the winner won. Costs are in milliseconds of delay, or in blocks by
// Dynamo's function; lower is better. Lines have at most 100 characters, unless a worker has a long name.
func (d *Decision) String() string {
	var b page
	head := fmt.Sprintf("decision %s · %s · model %s", d.ID, d.Outcome, orDash(d.Model))
	if d.Policy != "" {
		head += " · policy " + d.Policy
	}
	if d.Role != fleet.Aggregated {
		head += fmt.Sprintf(" · %s workers", d.Role)
	}
	fmt.Fprintln(&b, head)
	fmt.Fprint(&b, d.describeWait())

	switch {
	case d.Outcome == Queued:
		return b.String()
	case d.Outcome == Refused:
		fmt.Fprintf(&b, "refused with %d: %s\n", d.Err.Status, d.Err.Message)
		return b.String()
	case d.PromptTokens > 0:
		fmt.Fprintf(&b, "prompt %d tokens, %d complete blocks of %d, first %016x, last %016x\n\n",
			d.PromptTokens, d.Blocks, d.BlockSize, d.First, d.Last)
	default:
		by := "load"
		if d.Policy == "session" && d.Session != "" {
			by = "session"
		}
		fmt.Fprintf(&b, "prompt not read: routed by %s\n\n", by)
	}

	b.writeTables(d.rows())
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Evicting > 0 {
			fmt.Fprintf(&b, "%s holds %d blocks more, which the prompts that wait there will evict\n", c.name(d), c.Evicting)
		}
	}
	if !slices.ContainsFunc(d.Candidates, func(c Candidate) bool { return c.Reported }) {
		fmt.Fprint(&b, "no engine reports its load: bookings stand for it\n")
	}
	if more := d.Considered - len(d.Candidates); more > 0 {
		fmt.Fprintf(&b, "and %d more at higher cost\n", more)
	}
	fmt.Fprintf(&b, "\n%s\n", d.why())
	if d.AnyRank {
		fmt.Fprintf(&b, "the engine of %s chooses the rank of such a request by itself: its %d ranks are judged as one, by the mean of "+
			"their blocks; %d cached tokens are promised, which each of them has\n", d.Worker, d.Ranks, d.Cached)
	}
	if won, _ := d.split(); won != nil && won.Score.Loaded > 0 {
		fmt.Fprintf(&b, "%s loads %d tokens of the prompt from %s\n", won.name(d), won.Score.Loaded, won.loadedFrom())
	}
	if d.Pin > 0 {
		fmt.Fprintf(&b, "the prompt's blocks stay in the KV store for %v\n", d.Pin)
	}
	if d.Pull.Tokens > 0 {
		where := ""
		if d.PullShared > fleet.Apart {
			where = ", " + d.PullShared.Phrase()
		}
		fmt.Fprintf(&b, "%s fetches %d tokens of the prompt from the cache of %s%s\n", d.Worker, d.Pull.Tokens, d.Pull.Worker, where)
	}
	if o := d.Onward; o != nil {
		fmt.Fprintf(&b, "%d tokens go on to %s, %s, in %s ms by the estimate\n", o.Tokens, o.Worker, o.Shared.Phrase(),
			tenths(float64(o.Took)/float64(time.Millisecond)))
	}
	if legs := d.Legs.describe(d); legs != "" {
		fmt.Fprintln(&b, legs)
	}
	return b.String()
}

// loadedFrom describes the memory from which a candidate loads.
func (c *Candidate) loadedFrom() string {
	if cost.HeldBlocks(&c.Outside) > 0 {
		return "a cache outside engines"
	}
	return "host memory of its node or of others"
}

// column is a column of the table of candidates.
type column struct {
	name string
	of   func(*Candidate) float64
	text func(float64) string
	kept bool // also if it is 0 for all candidates
}

// rows are the table of the candidates, its head first, and the number of its columns that come before the costs. Columns that are 0 for
// all candidates are left out.
func (d *Decision) rows() (rows [][]string, loads int) {
	head := []string{"", "worker"}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		mark := ""
		if c.Picked {
			mark = "→"
		}
		rows = append(rows, []string{mark, c.name(d)})
	}

	add := func(c *column, sign string) bool {
		isShown := c.kept || slices.ContainsFunc(d.Candidates, func(o Candidate) bool { return c.of(&o) != 0 })
		if isShown {
			head = append(head, sign+c.name)
			for i := range rows {
				rows[i] = append(rows[i], c.text(c.of(&d.Candidates[i])))
			}
		}
		return isShown
	}
	for i := range loadColumns {
		add(&loadColumns[i], "")
	}
	loads = len(head)

	terms := d.terms()
	add(&terms[0], "")
	sign := "= "
	for i := range terms[1:] {
		if add(&terms[1+i], sign) {
			sign = "+ "
		}
	}
	add(&column{"× taints", func(c *Candidate) float64 { return c.Score.Preference }, hundredths, false}, "")
	return slices.Concat([][]string{head}, rows), loads
}

// loadColumns are the cached blocks of the prompt, and the load.
var loadColumns = []column{
	{"device", func(c *Candidate) float64 { return float64(c.Overlap[fleet.Device]) }, whole, true},
	{"host", func(c *Candidate) float64 { return float64(c.Overlap[fleet.Host]) }, whole, false},
	{"disk", func(c *Candidate) float64 { return float64(c.Overlap[fleet.Disk]) }, whole, false},
	{"ext", func(c *Candidate) float64 { return float64(c.Overlap[fleet.External]) }, whole, false},
	{"node", func(c *Candidate) float64 { return float64(c.OnNode) }, whole, false},
	{"peers", func(c *Candidate) float64 { return float64(c.OnPeers) }, whole, false},
	{"outside", func(c *Candidate) float64 { return float64(cost.HeldBlocks(&c.Outside)) }, whole, false},
	{"prefill tokens", func(c *Candidate) float64 { return float64(c.Load.PrefillTokens) }, whole, true},
	{"decode blocks", func(c *Candidate) float64 { return float64(c.Load.DecodeBlocks) }, whole, true},
	{"requests", func(c *Candidate) float64 { return float64(c.Load.Requests) }, whole, true},
	{"uncached", func(c *Candidate) float64 { return float64(c.Score.Uncached) }, whole, true},
}

// terms returns the terms of the decision's cost function, the sum first.
func (d *Decision) terms() []column {
	if d.Cost == cost.NameDynamo {
		return []column{
			{"cost", func(c *Candidate) float64 { return c.Score.Total }, tenths, true},
			{"prefill", func(c *Candidate) float64 { return c.Score.Prefill }, tenths, false},
			{"decode", func(c *Candidate) float64 { return c.Score.Decode }, tenths, false},
			{"requests", func(c *Candidate) float64 { return c.Score.Requests }, tenths, false},
		}
	}

	return []column{
		{"cost ms", func(c *Candidate) float64 { return c.Score.Total }, tenths, true},
		{"wait", func(c *Candidate) float64 { return c.Score.Wait }, tenths, false},
		{"prefill", func(c *Candidate) float64 { return c.Score.Prefill }, tenths, false},
		{"others", func(c *Candidate) float64 { return c.Score.Others }, tenths, false},
		{"evict", func(c *Candidate) float64 { return c.Score.Evict }, tenths, false},
		{"decode", func(c *Candidate) float64 { return c.Score.Decode }, tenths, false},
		{"room", func(c *Candidate) float64 { return c.Score.Room }, tenths, false},
		{"slot", func(c *Candidate) float64 { return c.Score.Slot }, tenths, false},
		{"transfer", func(c *Candidate) float64 { return c.Score.Transfer }, tenths, false},
		{"partner", func(c *Candidate) float64 { return c.Score.Partner }, tenths, false},
	}
}

// name is the worker's name, with its rank if that is not clear without it.
func (c *Candidate) name(d *Decision) string {
	for i := range d.Candidates {
		if o := &d.Candidates[i]; o.Worker == c.Worker && o.Rank != c.Rank || c.Rank > 0 {
			return fmt.Sprintf("%s/%d", c.Worker, c.Rank)
		}
	}
	return c.Worker
}

// why returns one sentence about the reason of the decision.
func (d *Decision) why() string {
	won, next := d.split()
	if won == nil {
		return ""
	}
	name := won.name(d)
	if reason := d.policyReason(won); reason != "" {
		return name + " won: " + reason
	}

	holds := fmt.Sprintf("it holds %d of %d blocks and must compute %d of %d tokens", d.Overlap, d.Blocks, won.Score.Uncached,
		d.PromptTokens)
	total := tenths(won.Score.Total)
	switch {
	case next == nil:
		return fmt.Sprintf("%s won: it was the only candidate; %s.", name, holds)
	case won.Score.Total > next.Score.Total:
		return fmt.Sprintf("%s won: drawn by temperature at cost %s, though %s cost %s; %s.",
			name, total, next.name(d), tenths(next.Score.Total), holds)
	case won.Score.Total == next.Score.Total:
		return fmt.Sprintf("%s won: drawn among equals at cost %s; %s.", name, total, holds)
	}
	return fmt.Sprintf("%s won: cost %s against %s on %s, mostly by %s; %s.",
		name, total, tenths(next.Score.Total), next.name(d), mainReason(won, next), holds)
}

// policyReason returns the reason for which a policy other than kv chose; empty for kv, which chooses by cost.
func (d *Decision) policyReason(won *Candidate) string {
	requests := won.Load.Requests + won.Untracked
	switch d.Policy {
	case "round-robin":
		return "it was its turn."
	case "random":
		return "it was drawn at random."
	case "direct":
		return "the request names it."
	case "session":
		if d.Session != "" && d.PromptTokens == 0 {
			return "its session belongs there, by the hash of both names, among the workers that are not crowded."
		}
		if d.Session != "" {
			return "its session belongs there, by the hash of both names."
		}
		return "the request names no session, and none had fewer requests."
	case "power-of-two":
		return fmt.Sprintf("two were drawn, and it had %d requests, not more than the other.", requests)
	case "least-loaded":
		return fmt.Sprintf("it had %d requests, none had fewer.", requests)
	}
	return ""
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

// mainReason names the term in which the winner gained most over the next candidate. By Dynamo's function prefill counts as two terms: the
// part of this prompt that overlap saves, and the prefills that are booked before it.
func mainReason(won, next *Candidate) string {
	w, n := &won.Score, &next.Score
	own := n.Prefill - w.Prefill + n.Evict - w.Evict
	overlap, ahead := w.Credit-n.Credit, n.Ahead-w.Ahead
	if sum := overlap + ahead; sum > 0 { // only Dynamo's function has these
		overlap *= own / sum
		ahead *= own / sum
	} else {
		overlap, ahead = own, 0
	}

	reason, most := "less work", 0.0
	for _, term := range []struct {
		name string
		gain float64
	}{
		{fasterReason(won, next), overlap},
		{"less delay of the requests there", n.Others - w.Others},
		{"less to wait for", n.Wait - w.Wait},
		{"blocks that others use there", n.Room - w.Room},
		{"a free slot sooner", n.Slot - w.Slot},
		{"less prefill ahead", ahead},
		{"shorter steps", n.Decode - w.Decode},
		{"fewer requests", n.Requests - w.Requests},
		{"a faster transfer", n.Transfer - w.Transfer},
		{"a cheaper prefill worker in reach", n.Partner - w.Partner},
		{"preferred taints", w.Total / max(w.Preference, 0.1) * (n.Preference - w.Preference)},
	} {
		if term.gain > most {
			reason, most = term.name, term.gain
		}
	}
	return reason
}

// fasterReason returns the reason why the winner computes the prompt sooner than the next candidate, if it does.
func fasterReason(won, next *Candidate) string {
	switch {
	case won.Score.Own == 0 || next.Score.Own == 0 || won.Score.Uncached < next.Score.Uncached: // only Delay has Own
		return "overlap"
	case won.Overlap[fleet.Device] > next.Overlap[fleet.Device]:
		return "overlap in a faster tier"
	case won.Score.Loaded > 0 || next.Score.Loaded > 0:
		return "blocks that load faster"
	}
	return "a faster rank"
}

// describeWait is one line about how long the request waited, and why; empty for one that did not.
func (d *Decision) describeWait() string {
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
	case w.Starting:
		why = "no worker was ready, and one started"
	case w.Held:
		why = "the caches had no room for another program"
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

func whole(v float64) string      { return fmt.Sprintf("%.0f", v) }
func tenths(v float64) string     { return fmt.Sprintf("%.1f", v) }
func hundredths(v float64) string { return fmt.Sprintf("%.2f", v) }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
