package admin

import (
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/peers"
)

// The JSON of the pages. Keys are snake_case and independent of the names of Go fields. Enumerations
// are words, unknown values are null, and hashes are hexadecimal text, because many JSON parsers cannot
// hold 64 bits. Lists are never null. Decisions are shown as the decision log has them.

// planView is /debug/plan.
type planView struct {
	// Term is the leading planner's term; 0 if this process does not lead.
	Term  uint64     `json:"term"`
	Pools []poolView `json:"pools"`
}

// poolView is one pool of a plan.
type poolView struct {
	Model    string `json:"model"`
	Role     string `json:"role"`
	Replicas int    `json:"replicas"`
	Ready    int    `json:"ready"`
	// Rate is the requests per second that are expected now, and Expected the rate that the plan is made for. Both are 0 if no
	// forecast counts.
	Rate     float64       `json:"requests_per_second"`
	Expected float64       `json:"expected_requests_per_second"`
	Reason   string        `json:"reason"`
	Unknown  []string      `json:"unknown"`
	Workers  []plannedView `json:"workers"`
}

// plannedView has the settings of a plan for one worker.
type plannedView struct {
	Worker string `json:"worker"`
	Weight uint32 `json:"weight"`
	Drain  bool   `json:"drain"`
}

func viewPlan(p plan.Plan) planView {
	view := planView{Term: p.Term, Pools: []poolView{}}
	for i := range p.Pools {
		pool := &p.Pools[i]
		v := poolView{
			Model: pool.Model, Role: pool.Role.String(), Replicas: pool.Replicas, Ready: pool.Ready,
			Rate: pool.Rate, Expected: pool.Expected,
			Reason: pool.Reason, Unknown: append([]string{}, pool.Unknown...), Workers: []plannedView{},
		}
		for _, w := range pool.Workers {
			v.Workers = append(v.Workers, plannedView{w.Name, w.Weight, w.Drain})
		}
		view.Pools = append(view.Pools, v)
	}
	return view
}

// queueView is one class of a queue of /debug/queue. Tokens are in their prompts.
type queueView struct {
	Model        string `json:"model"`
	Class        string `json:"class"`
	Requests     int    `json:"requests"`
	Tokens       int    `json:"tokens"`
	CachedTokens int    `json:"cached_tokens"`
}

func viewQueues(list []route.QueueStats) []queueView {
	out := []queueView{}
	for _, q := range list {
		out = append(out, queueView{q.Pool, q.Class, q.Requests, q.Tokens, q.CachedTokens})
	}
	return out
}

// cacheView is one rank of /debug/feed: the router's state of its cache, and counts since the rank's
// epoch began.
type cacheView struct {
	Worker string `json:"worker"`
	Rank   int    `json:"rank"`
	Epoch  uint64 `json:"epoch"`
	State  string `json:"state"`
	// Reason is why the rank is stale; empty otherwise.
	Reason string `json:"reason,omitempty"`
	Blocks int    `json:"blocks"`

	// Null until an event was applied.
	Seq       *uint64    `json:"seq"`
	LastEvent *time.Time `json:"last_event"`

	feed.Counts
}

func viewCaches(states []feed.RankState) []cacheView {
	out := []cacheView{}
	for _, s := range states {
		v := cacheView{
			Worker: s.Worker, Rank: s.Rank, Epoch: s.Epoch, State: s.State.String(), Reason: s.Reason.String(), Blocks: s.Blocks,
			Counts: s.Counts,
		}
		if s.Events > 0 {
			v.Seq, v.LastEvent = &s.Seq, &s.LastEvent
		}
		out = append(out, v)
	}
	return out
}

// peersView is /debug/peers: the other replicas of this router.
type peersView struct {
	Replicas         int    `json:"replicas"`
	BookedRequests   int64  `json:"booked_requests"`
	Messages         uint64 `json:"messages"`
	OldMessages      uint64 `json:"old_messages"`
	LostMessages     uint64 `json:"lost_messages"`
	RefusedMessages  uint64 `json:"refused_messages"`
	Prompts          uint64 `json:"prompts"`
	DigestMismatches uint64 `json:"digest_mismatches"`
	ExpiredReplicas  uint64 `json:"expired_replicas"`
}

func viewPeers(s peers.Stats) peersView {
	return peersView{
		Replicas: s.Live, BookedRequests: s.Booked, Messages: s.Messages, OldMessages: s.Old, LostMessages: s.Lost,
		RefusedMessages: s.Refused, Prompts: s.Prompts, DigestMismatches: s.DigestMismatches, ExpiredReplicas: s.Expired,
	}
}

func viewDecisions(list []*decision.Decision) []decisionlog.Decision {
	out := []decisionlog.Decision{}
	for _, d := range list {
		out = append(out, decisionlog.View(d))
	}
	return out
}
