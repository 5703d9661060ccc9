package admin

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/route"
)

// rankView is one rank in JSON.
type rankView struct {
	Worker        string  `json:"worker"`
	Rank          int     `json:"rank"`
	Model         string  `json:"model"`
	Role          string  `json:"role"`
	State         string  `json:"state"`
	Address       string  `json:"address"`
	Engine        string  `json:"engine"`
	Epoch         uint64  `json:"epoch"`
	Requests      int64   `json:"booked_requests"`
	PrefillTokens int64   `json:"booked_prefill_tokens"`
	DecodeBlocks  int64   `json:"booked_decode_blocks"`
	Running       int     `json:"reported_running"`
	Waiting       int     `json:"reported_waiting"`
	KVUsage       float64 `json:"reported_kv_usage"`
}

func ranksOf(s *fleet.Snapshot) []rankView {
	out := []rankView{}
	for _, r := range s.Ranks {
		booked, w := r.Load.Booked(), r.Worker
		rep, _ := r.Load.Reported()
		out = append(out, rankView{
			Worker: w.Name, Rank: r.Number, Model: w.Model, Role: w.Role.String(), State: w.State.String(), Address: w.Address,
			Engine: w.Engine, Epoch: w.Epoch,
			Requests: booked.Requests, PrefillTokens: booked.PrefillTokens, DecodeBlocks: booked.DecodeBlocks,
			Running: rep.Running, Waiting: rep.Waiting, KVUsage: rep.KVUsage,
		})
	}
	return out
}

func decisionTable(list []*route.Decision) string {
	return table("TIME\tDECISION\tOUTCOME\tMODEL\tWORKER\tTOKENS\tBLOCKS\tOVERLAP", func(row func(...any)) {
		for _, d := range list {
			row(d.At.Format("15:04:05.000"), d.ID, d.Outcome, d.Model, d.Worker, d.PromptTokens, d.Blocks, d.Overlap)
		}
	})
}

func feedTable(states []feed.RankState) string {
	return table("WORKER\tRANK\tSTATE\tSEQ\tLAST EVENT\tBATCHES\tGAPS\tRESTARTS", func(row func(...any)) {
		for _, s := range states {
			last := "never"
			if !s.LastEvent.IsZero() {
				last = s.LastEvent.Format("15:04:05.000")
			}
			row(s.Worker, s.Rank, s.State, s.Seq, last, s.Batches, s.Gaps, s.Restarts)
		}
	})
}

// table aligns rows under a header.
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
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}
