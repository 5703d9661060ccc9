package admin

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
)

func decisionTable(list []*decision.Decision) string {
	return table("TIME\tDECISION\tOUTCOME\tMODEL\tWORKER\tTOKENS\tBLOCKS\tOVERLAP", func(row func(...any)) {
		for _, d := range list {
			row(d.At.Format("15:04:05.000"), d.ID, d.Outcome, d.Model, d.Worker, d.PromptTokens, d.Blocks, d.Overlap)
		}
	})
}

func feedTable(states []feed.RankState) string {
	return table("WORKER\tRANK\tSTATE\tREASON\tSEQ\tLAST EVENT\tBATCHES\tGAPS\tRESTARTS", func(row func(...any)) {
		for _, s := range states {
			seq, last := "-", "never"
			reason := cmp.Or(s.Reason.String(), "-")
			if s.Events > 0 {
				seq, last = strconv.FormatUint(s.Seq, 10), s.LastEvent.Format("15:04:05.000")
			}
			row(s.Worker, s.Rank, s.State, reason, seq, last, s.Batches, s.Gaps, s.Restarts)
		}
	})
}

func queueTable(list []route.QueueStats) string {
	return table("MODEL\tCLASS\tREQUESTS\tTOKENS\tCACHED", func(row func(...any)) {
		for _, q := range list {
			row(q.Pool, q.Class, q.Requests, q.Tokens, q.CachedTokens)
		}
	})
}

func historyTable(points []history.Point) string {
	const header = "TIME\tPICKED/S\tREFUSED/S\tFAILED/S\tPROMPT TOKENS/S\tCACHED/S\tFIRST TOKEN P50\tP95\tBOOKED\tQUEUED"
	return table(header, func(row func(...any)) {
		for i := range points {
			p := &points[i]
			row(p.At.Format("15:04:05"), hundredths(p.Picked), hundredths(p.Refused), hundredths(p.Failed), hundredths(p.Prompt),
				hundredths(p.Cached), hundredths(float64(p.First50)), hundredths(float64(p.First95)), p.Booked, p.Queued)
		}
	})
}

// hundredths returns a number with two decimals, or a dash for NaN.
func hundredths(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// table returns rows in aligned columns under a header. Cells of the header are separated by tabs.
func table(header string, rows func(row func(cells ...any))) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header)
	rows(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	})
	_ = w.Flush() // writes to a strings.Builder do not fail
	return b.String()
}
