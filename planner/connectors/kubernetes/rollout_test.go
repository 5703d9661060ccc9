package kubernetes_test

import (
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// A rollout replaces the pods of a Deployment: its number may rise, and does not fall, until all pods are of one revision. No worker is
// drained meanwhile, although there is one more than the number.
func TestNumbersDoNotFallInARollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSet(&set{role: fleet.Aggregated, revision: "a"}, "Deployment", "llama", 3)
	w.await("llama", 3)
	w.surge("llama", "b")
	w.run(1)
	w.want(fleet.Aggregated, 1)
	w.saysFor(fleet.Aggregated, "3, because a rollout replaces the pods of Deployment llm/llama: the plan would be 1 by the test", ticks)
	w.drainsNone("in a rollout")
	w.wrote("llama")

	w.want(fleet.Aggregated, 4)
	w.says(fleet.Aggregated, "no worker is drained, because a rollout replaces the pods of Deployment llm/llama")
	testkit.Eventually(t, "the number to rise", func() bool { return w.server.Replicas("llama") == 4 })
	w.want(fleet.Aggregated, 1)
	w.says(fleet.Aggregated, "4, because a rollout replaces the pods of Deployment llm/llama: the plan would be 1 by the test")
	w.wrote("llama", 4)
	w.finish("llama")
	w.await("llama", 1)
}

// All roles of a DisaggregatedSet roll together, and one may be a step ahead: the numbers of none of them fall.
func TestRolesOfASetRollTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, role := range map[string]fleet.Role{"prefill": fleet.Prefill, "decode": fleet.Decode} {
		labels := map[string]string{"disaggregatedset.x-k8s.io/name": "set"}
		w.addSet(&set{role: role, revision: "a", further: labels}, "Deployment", name, 2)
		w.await(name, 2)
	}
	w.surge("decode", "b")
	w.run(1)
	w.want(fleet.Prefill, 1)
	w.says(fleet.Prefill, "2, because a rollout replaces the pods of Deployment llm/prefill: the plan would be 1 by the test")
	w.finish("decode")
	w.says(fleet.Prefill, "2, because a rollout replaces the pods of Deployment llm/prefill")
	w.surge("prefill", "b")
	w.finish("prefill")
	w.await("prefill", 1)
	w.wrote("prefill", 1)
	w.wrote("decode")
}
