package extproc

import (
	"testing"
	"time"
	"unique"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
)

// The demand counts picked requests, and refused ones that more workers would have served; answers by the model of the worker.
func TestDemand(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	if _, err := f.Put(fleet.Worker{Name: "w", Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	c := newDemand()
	c.decided(&decision.Decision{Pool: "m", Outcome: decision.Picked, PromptUse: decision.PromptUse{PromptTokens: 100, Cached: 64}})
	c.decided(&decision.Decision{Pool: "m", Outcome: decision.Refused, Reason: decision.ReasonBusy, PromptUse: decision.PromptUse{PromptTokens: 2000}})
	c.decided(&decision.Decision{Pool: "m", Outcome: decision.Refused, Reason: decision.ReasonBadRequest, PromptUse: decision.PromptUse{PromptTokens: 9}})
	c.decided(&decision.Decision{Outcome: decision.Refused, Reason: decision.ReasonNoReadyWorker})
	c.ended(&messages.Entry{Upstream: true, Status: 200, Served: "10.0.0.1:80", ResponseBytes: 300, FirstByte: time.Second}, nil, f.Snapshot())
	c.ended(&messages.Entry{Upstream: true, Status: 500, Served: "10.0.0.1:80", ResponseBytes: 9}, nil, f.Snapshot())
	c.ended(&messages.Entry{Upstream: true, Status: 200, Served: "10.0.0.9:80", ResponseBytes: 9}, nil, f.Snapshot())

	// Streams by way of the relay: one is later than the target. Envoy has counted the tokens of three, of which one is slower.
	c.setTargets([]config.Model{{Name: "m", Targets: config.Targets{
		TTFT: config.Duration(time.Second), ITL: config.Duration(20 * time.Millisecond),
	}}})
	rank, _ := f.Snapshot().Rank("w", 0)
	k := &pick.Booking{Rank: rank, Caller: unique.Make(pick.Caller{Stream: true})}
	for _, first := range []time.Duration{time.Second, 1001 * time.Millisecond} {
		c.ended(&messages.Entry{Upstream: true, Status: 200, Served: "relay", FirstToken: first}, k, f.Snapshot())
	}
	for tokens, last := range map[uint64]time.Duration{1: time.Minute, 11: 1200 * time.Millisecond, 12: 1221 * time.Millisecond} {
		c.ended(&messages.Entry{
			Upstream: true, Status: 200, Served: "relay", FirstToken: time.Second, LastByte: last, Counted: true, AnswerTokens: tokens,
		}, k, f.Snapshot())
	}

	d := c.message("r", []route.QueueStats{{Pool: "m", Requests: 2, Tokens: 500}, {Pool: "m", Class: "b", Requests: 1, Tokens: 50}},
		map[learned.WorkerClass]perfmodel.Speed{
			{Model: "m", Engine: "vllm"}: {Prefill: perfmodel.Line{Base: time.Millisecond, Token: 2e4, Observed: 30}},
			{Model: "m", Engine: "sim"}:  {Prefill: perfmodel.Line{Base: time.Second, Token: 9e4, Observed: 3}},
		})
	if len(d.Models) != 1 || d.Replica != "r" {
		t.Fatalf("%+v", d)
	}
	m := d.Models[0]
	if m.Requests != 2 || m.PromptTokens != 2100 || m.PromptSquares != 4_010_000 || m.CachedTokens != 64 {
		t.Errorf("arrivals: %+v", m)
	}
	if m.Streams != 5 || m.Late != 1 || m.Timed != 3 || m.Slow != 1 {
		t.Errorf("streams: %+v", m)
	}
	if m.Ended != 6 || m.ResponseBytes != 300 || m.ResponseSquares != 90_000 {
		t.Errorf("ends: %+v", m)
	}
	if m.Waiting != 3 || m.WaitingTokens != 550 {
		t.Errorf("the queue: %+v", m)
	}
	if m.PrefillNanoseconds != 1e6 || m.PrefillTokenNanoseconds != 2e4 || m.PrefillsObserved != 30 {
		t.Errorf("the speed: %+v", m)
	}
	if again := c.message("r", nil, nil); again.Models[0].Waiting != 0 || again.Models[0].Requests != 2 {
		t.Errorf("the next message: %+v", again.Models[0])
	}
}

// TestStarts: a router takes from the plan whether a worker starts because requests wait, and when: all pools of the model must start.
func TestStarts(t *testing.T) {
	for _, c := range []struct {
		pools []plan.Pool
		want  route.Start
	}{
		{[]plan.Pool{{Model: "sim", StartUp: time.Minute}}, route.Start{After: time.Minute}},
		{[]plan.Pool{{Model: "sim"}}, route.Start{Not: "the planner starts none"}},
		{[]plan.Pool{{Model: "sim", Role: fleet.Prefill, StartUp: time.Minute}, {Model: "sim", Role: fleet.Decode, StartUp: time.Hour}},
			route.Start{After: time.Hour, Decode: true}},
		{[]plan.Pool{{Model: "sim", Role: fleet.Prefill, StartUp: time.Minute}, {Model: "sim", Role: fleet.Decode}},
			route.Start{Not: "the planner starts none"}},
		{[]plan.Pool{{Model: "other", StartUp: time.Minute}}, route.Start{Not: "no planner has made a plan for it"}},
	} {
		if got := startsBy(plan.Plan{Pools: c.pools}, "sim"); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.pools, got, c.want)
		}
	}
}
