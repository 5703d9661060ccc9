package admin

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route"
)

// Views are what JSON shows where a value's own form would mislead: words for enumerations,
// null for what is not known, digits for hashes that a reader's numbers cannot hold. Lists are
// never null.

// rankView is one rank.
type rankView struct {
	Worker        string   `json:"worker"`
	Rank          int      `json:"rank"`
	Model         string   `json:"model"`
	Role          string   `json:"role"`
	State         string   `json:"state"`
	Address       string   `json:"address"`
	Engine        string   `json:"engine"`
	Epoch         uint64   `json:"epoch"`
	Taints        []string `json:"taints,omitempty"`
	Requests      int64    `json:"booked_requests"`
	PrefillTokens int64    `json:"booked_prefill_tokens"`
	DecodeBlocks  int64    `json:"booked_decode_blocks"`
	// Null until the engine has said.
	Running *int     `json:"reported_running"`
	Waiting *int     `json:"reported_waiting"`
	KVUsage *float64 `json:"reported_kv_usage"`
}

func viewFleet(s *fleet.Snapshot) []rankView {
	out := []rankView{}
	for _, r := range s.Ranks {
		booked, w := r.Load.Booked(), r.Worker
		v := rankView{
			Worker: w.Name, Rank: r.Number, Model: w.Model, Role: w.Role.String(), State: w.State.String(), Address: w.Address,
			Engine: w.Engine, Epoch: w.Epoch, Taints: w.Taints.Names(),
			Requests: booked.Requests, PrefillTokens: booked.PrefillTokens, DecodeBlocks: booked.DecodeBlocks,
		}
		if rep, ok := r.Load.Reported(); ok {
			v.Running, v.Waiting, v.KVUsage = &rep.Running, &rep.Waiting, &rep.KVUsage
		}
		out = append(out, v)
	}
	return out
}

// poolView is one pool of a plan.
type poolView struct {
	plan.Pool
	Role string
}

func viewPlan(p plan.Plan) any {
	view := struct{ Pools []poolView }{[]poolView{}}
	for _, pool := range p.Pools {
		view.Pools = append(view.Pools, poolView{pool, pool.Role.String()})
	}
	return view
}

// feedView is what is known of one rank's cache.
type feedView struct {
	feed.RankState
	State string
	// Null until an event has come.
	Seq       *uint64
	LastEvent *time.Time
}

func viewFeed(states []feed.RankState) []feedView {
	out := []feedView{}
	for _, s := range states {
		v := feedView{RankState: s, State: s.State.String()}
		if s.Events > 0 {
			v.Seq, v.LastEvent = &s.Seq, &s.LastEvent
		}
		out = append(out, v)
	}
	return out
}

// view of a decision.
type decisionView struct {
	*route.Decision
	Outcome, RetryAfter string
	First, Last         string
}

func viewDecision(d *route.Decision) decisionView {
	v := decisionView{Decision: d, Outcome: d.Outcome.String()}
	if d.RetryAfter > 0 {
		v.RetryAfter = d.RetryAfter.String()
	}
	if d.Blocks > 0 {
		v.First, v.Last = fmt.Sprintf("%016x", d.First), fmt.Sprintf("%016x", d.Last)
	}
	return v
}

func viewDecisions(list []*route.Decision) []decisionView {
	out := []decisionView{}
	for _, d := range list {
		out = append(out, viewDecision(d))
	}
	return out
}
