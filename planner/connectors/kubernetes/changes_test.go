package kubernetes_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	api "github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/planner/connectors/kubernetes"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// stateOf returns a target of a role whose number is as great as its pods are many. A pod is a name with marks behind a slash:
//
//	f  free: it may end          d  its deletion cost is the least        n  not ready
//	t  it is being deleted       r  routers have booked requests          w  a further pod of group 0, whose name ends in 0-N
//	b  its deletion cost is that of a drained pod with requests
//
// Pods of decode and prefill workers are a StatefulSet's if ordered.
func stateOf(role fleet.Role, replicas int, ordered bool, pods ...string) kubernetes.State {
	s := kubernetes.State{
		Target: kubernetes.Target{
			Object: api.Object{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "llm", Name: role.String()},
			Model:  "m", Role: role, GPUs: 1,
		},
		Read: true, Replicas: replicas,
	}
	for i, text := range pods {
		name, marks, _ := strings.Cut(text, "/")
		p := kubernetes.Pod{ScaledPod: api.ScaledPod{Name: name, Worker: name, Created: noon.Add(-time.Hour), Ready: true, Ordinal: -1}}
		if ordered {
			p.Ordinal = i
		}
		for _, m := range marks {
			switch m {
			case 'f':
				p.Free = true
			case 'd':
				p.Cost = api.LeastCost
			case 'b':
				p.Cost = api.DrainedCost
			case 'n':
				p.Ready = false
			case 't':
				p.Terminating = true
			case 'r':
				p.Requests = 1
			case 'w':
				p.Follows = true
				p.Group = "0"
			}
		}
		s.Pods = append(s.Pods, p)
	}
	return s
}

func poolOf(role fleet.Role, replicas int, drained ...string) plan.Pool {
	p := plan.Pool{Model: "m", Role: role, Replicas: replicas, Reason: "because"}
	for _, name := range drained {
		p.Workers = append(p.Workers, plan.Planned{Name: name, Weight: 1, Drain: true})
	}
	return p
}

// text prints a set in one line for a comparison.
func text(set kubernetes.ChangeSet) string {
	var all []string
	for _, c := range set.Changes {
		all = append(all, fmt.Sprintf("%s %d>%d %v", c.Name, c.From, c.To, c.Victims))
	}
	for _, m := range set.Marks {
		all = append(all, fmt.Sprintf("mark %s %q", m.Pod, m.Cost))
	}
	for _, w := range set.Refused {
		all = append(all, "refused: "+w.Why)
	}
	for _, w := range set.Waits {
		all = append(all, "wait: "+w.Why)
	}
	return strings.Join(all, "; ")
}

func TestChanges(t *testing.T) {
	const both, prefill, decode = fleet.Aggregated, fleet.Prefill, fleet.Decode
	states := func(all ...kubernetes.State) []kubernetes.State { return all }
	with := func(s kubernetes.State, change func(*kubernetes.State)) kubernetes.State {
		change(&s)
		return s
	}
	held := func(n int, always, known bool) func(*kubernetes.State) {
		return func(s *kubernetes.State) {
			s.Held = &plan.Held{Model: "m", Role: s.Role, Replicas: n, Why: "kubectl has set it", Always: always}
			s.Known = known
		}
	}

	rolling := func(s *kubernetes.State) {
		s.Held = &plan.Held{Model: "m", Role: s.Role, Replicas: s.Replicas, Why: "a rollout goes on", MayRise: true}
	}

	for _, c := range []struct {
		name   string
		pools  []plan.Pool
		states []kubernetes.State
		rules  kubernetes.Rules
		want   string
	}{
		{"nothing to do", []plan.Pool{poolOf(both, 2)}, states(stateOf(both, 2, false, "a", "b")), kubernetes.Rules{}, ""},
		{"up", []plan.Pool{poolOf(both, 6)}, states(stateOf(both, 2, false, "a", "b")), kubernetes.Rules{}, "aggregated 2>6 []"},
		{"no pool", nil, states(stateOf(both, 2, false, "a", "b")), kubernetes.Rules{}, ""},
		{"a victim has requests", []plan.Pool{poolOf(both, 1, "b")}, states(stateOf(both, 2, false, "a", "b/br")), kubernetes.Rules{},
			"wait: Deployment llm/aggregated waits until the requests of these have ended: b"},
		{"a victim has no deletion cost yet", []plan.Pool{poolOf(both, 1, "b")}, states(stateOf(both, 2, false, "a", "b/f")), kubernetes.Rules{},
			`mark b "-2147483648"; wait: Deployment llm/aggregated waits until the requests of these have ended: b`},
		{"a victim is free", []plan.Pool{poolOf(both, 1, "b")}, states(stateOf(both, 2, false, "a", "b/fd")), kubernetes.Rules{},
			"aggregated 2>1 [b]"},
		{"a victim with requests has the least deletion cost", []plan.Pool{poolOf(both, 1, "b")}, states(stateOf(both, 2, false, "a", "b/dr")),
			kubernetes.Rules{}, `mark b "-2147483647"; wait: Deployment llm/aggregated waits until the requests of these have ended: b`},
		{"one of two victims is free", []plan.Pool{poolOf(both, 1, "a", "c")}, states(stateOf(both, 3, false, "a/br", "b", "c/fd")),
			kubernetes.Rules{}, "aggregated 3>2 [c]; wait: Deployment llm/aggregated waits until the requests of these have ended: a"},
		{"a victim comes back", []plan.Pool{poolOf(both, 2)}, states(stateOf(both, 2, false, "a", "b/d")), kubernetes.Rules{}, `mark b ""`},
		{"its ReplicaSet would delete another one", []plan.Pool{poolOf(both, 1, "b")}, states(stateOf(both, 2, false, "a/nr", "b/fd")),
			kubernetes.Rules{}, "wait: a is not ready and has requests, and its ReplicaSet would delete it first"},
		{"pods that were never created end first", []plan.Pool{poolOf(both, 1, "b")}, states(stateOf(both, 4, false, "a", "b/br")),
			kubernetes.Rules{}, "aggregated 4>2 []; wait: Deployment llm/aggregated waits until the requests of these have ended: b"},
		{"pods of the last change are not deleted yet", []plan.Pool{poolOf(both, 1, "b", "c")},
			states(stateOf(both, 2, false, "a", "b/fd", "c/br")), kubernetes.Rules{},
			"wait: Deployment llm/aggregated waits until the requests of these have ended: c"},
		{"the highest ordinals end", []plan.Pool{poolOf(both, 1, "s-1", "s-2")}, states(stateOf(both, 3, true, "s-0", "s-1/f", "s-2/f")),
			kubernetes.Rules{}, "aggregated 3>1 [s-2 s-1]"},
		{"the highest ordinal has requests", []plan.Pool{poolOf(both, 1, "s-1", "s-2")}, states(stateOf(both, 3, true, "s-0", "s-1/f", "s-2/r")),
			kubernetes.Rules{}, "wait: Deployment llm/aggregated waits until the requests of these have ended: s-2"},
		{"the plan drains a lower ordinal", []plan.Pool{poolOf(both, 2, "s-0")}, states(stateOf(both, 3, true, "s-0/f", "s-1", "s-2")),
			kubernetes.Rules{}, "wait: Deployment llm/aggregated waits until workers are drained"},
		{"up-only", []plan.Pool{poolOf(both, 1, "b")}, states(stateOf(both, 2, false, "a", "b/fd")), kubernetes.Rules{UpOnly: true}, ""},
		{"at most one change in 5 s", []plan.Pool{poolOf(both, 6)},
			states(with(stateOf(both, 2, false, "a", "b"), func(s *kubernetes.State) { s.Written = noon.Add(-4 * time.Second) })), kubernetes.Rules{},
			"wait: Deployment llm/aggregated was changed less than 5s ago"},
		{"a number that the plan does not know yet", []plan.Pool{poolOf(both, 6)},
			states(with(stateOf(both, 3, false, "a", "b", "c"), held(3, false, false))), kubernetes.Rules{},
			"refused: Deployment llm/aggregated is not scaled, because kubectl has set it"},
		{"the plan keeps to a number", []plan.Pool{poolOf(both, 3)},
			states(with(stateOf(both, 3, false, "a", "b", "c"), held(3, false, true))), kubernetes.Rules{},
			"refused: Deployment llm/aggregated is not scaled, because kubectl has set it"},
		{"the plan goes on from a number", []plan.Pool{poolOf(both, 6)},
			states(with(stateOf(both, 3, false, "a", "b", "c"), held(3, false, true))), kubernetes.Rules{}, "aggregated 3>6 []"},
		{"an autoscaler", []plan.Pool{poolOf(both, 6)}, states(with(stateOf(both, 3, false, "a", "b", "c"), held(3, true, true))),
			kubernetes.Rules{}, "refused: Deployment llm/aggregated is not scaled, because kubectl has set it"},
		{"up in a rollout", []plan.Pool{poolOf(both, 3)}, states(with(stateOf(both, 2, false, "a", "b", "c"), rolling)), kubernetes.Rules{},
			"aggregated 2>3 []"},
		{"a plan that is older than a rollout", []plan.Pool{poolOf(both, 1, "b")},
			states(with(stateOf(both, 2, false, "a", "b/fd", "c"), rolling)), kubernetes.Rules{},
			"wait: Deployment llm/aggregated is not lowered, because a rollout goes on"},
		{"a rollout has more pods for long", []plan.Pool{poolOf(both, 2)}, states(with(stateOf(both, 2, false, "a", "b", "c"), rolling)),
			kubernetes.Rules{}, ""},
		{"the API server is away", []plan.Pool{poolOf(both, 6)},
			states(with(stateOf(both, 2, false, "a", "b"), func(s *kubernetes.State) { s.Err = "no answer" })), kubernetes.Rules{},
			"wait: Deployment llm/aggregated cannot be scaled now: no answer"},
		{"the wrong object was scaled", []plan.Pool{poolOf(both, 1, "b", "c")}, states(stateOf(both, 1, false, "a", "b/b", "c/b")),
			kubernetes.Rules{}, "wait: Deployment llm/aggregated asks for 1 replicas and has 3 pods: scale this object, and not one that its " +
				"operator makes from it"},

		{"a move within the budget: first down", []plan.Pool{poolOf(prefill, 1, "p1"), poolOf(decode, 3)},
			states(stateOf(prefill, 2, false, "p0", "p1/fd"), stateOf(decode, 2, false, "d0", "d1")), kubernetes.Rules{MaxGPUs: 4},
			"prefill 2>1 [p1]; wait: Deployment llm/decode waits for GPUs: the budget is 4, and pods have or get 4"},
		{"a move within the budget: the pod is still there", []plan.Pool{poolOf(prefill, 1), poolOf(decode, 3)},
			states(stateOf(prefill, 1, false, "p0", "p1/t"), stateOf(decode, 2, false, "d0", "d1")), kubernetes.Rules{MaxGPUs: 4},
			"wait: Deployment llm/decode waits for GPUs: the budget is 4, and pods have or get 4, some of them until these are gone: p1"},
		{"a move within the budget: the pod is gone", []plan.Pool{poolOf(prefill, 1), poolOf(decode, 3)},
			states(stateOf(prefill, 1, false, "p0"), stateOf(decode, 2, false, "d0", "d1")), kubernetes.Rules{MaxGPUs: 4}, "decode 2>3 []"},
		{"both want the last GPU", []plan.Pool{poolOf(prefill, 2), poolOf(decode, 2)},
			states(stateOf(prefill, 1, false, "p0"), stateOf(decode, 1, false, "d0")), kubernetes.Rules{MaxGPUs: 3},
			"prefill 1>2 []; wait: Deployment llm/decode waits for GPUs: the budget is 3, and pods have or get 3"},
		{"further pods of an engine stay for longer", []plan.Pool{poolOf(prefill, 1), poolOf(decode, 1)},
			states(stateOf(prefill, 0, false, "p0-1/wt"), stateOf(decode, 1, false, "d0")), kubernetes.Rules{MaxGPUs: 2},
			"wait: Deployment llm/prefill waits for GPUs: the budget is 2, and pods have or get 2, some of them until these are gone: p0-1"},
	} {
		p := &plan.Plan{Term: 1, Pools: c.pools}
		if got := text(kubernetes.Changes(p, c.states, c.rules, noon)); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
}
