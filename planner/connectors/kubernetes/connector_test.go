package kubernetes_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/planner/connectors/kubernetes"
	"github.com/stator-project/stator/test/kubeapi"
	"github.com/stator-project/stator/test/testkit"
)

// says waits until the plan's reason has a text.
func (w *world) says(role fleet.Role, text string) {
	w.t.Helper()
	testkit.Eventually(w.t, fmt.Sprintf("a plan that says %q", text), func() bool { return strings.Contains(w.reason(role), text) })
}

// saysFor waits until the plan's reason has a text, and fails unless the next n plans have it, too.
func (w *world) saysFor(role fleet.Role, text string, n int) {
	w.t.Helper()
	w.says(role, text)
	var from int
	plans := func() []string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.reasons[role]
	}
	from = len(plans())
	testkit.Eventually(w.t, fmt.Sprintf("%d further plans", n), func() bool { return len(plans()) >= from+n })
	for _, reason := range plans()[from : from+n] {
		if !strings.Contains(reason, text) {
			w.t.Errorf("a plan says %q, and not %q", reason, text)
		}
	}
}

// wrote fails unless planners have set these numbers of a target, in this order, and no others.
func (w *world) wrote(name string, numbers ...int) {
	w.t.Helper()
	var got []int
	for _, x := range w.server.Writes() {
		if x.Name == name {
			got = append(got, x.Replicas)
		}
	}
	if !slices.Equal(got, numbers) {
		w.t.Errorf("planners have set %v of %s, want %v", got, name, numbers)
	}
}

// checkWrites fails if a target was changed twice within the least time between two changes, or by another manager than planners.
func (w *world) checkWrites() {
	w.t.Helper()
	last := map[string]kubeapi.Write{}
	for _, x := range w.server.Writes() {
		before, known := last[x.Name]
		if known && x.At.Sub(before.At) < kubernetes.WriteEvery/2 { // the server sees a request later than its sender
			w.t.Errorf("%s was changed after %v", x.Name, x.At.Sub(before.At))
		}
		if !strings.HasPrefix(x.Manager, "stator-planner.") {
			w.t.Errorf("the manager of %s is %s", x.Name, x.Manager)
		}
		last[x.Name] = x
	}
}

// A Deployment and a StatefulSet go from 2 to 6 and back. No pod ends while it has requests, and the number says who has set it.
func TestUpAndDown(t *testing.T) {
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.add(kind, "llama", fleet.Aggregated, 2)
			w.await("llama", 2)
			w.run(7)
			w.want(fleet.Aggregated, 6)
			w.await("llama", 6)
			busy := "llama-5"
			if kind == "Deployment" {
				busy = "llama-x5"
			}
			w.book(busy, 1)
			w.want(fleet.Aggregated, 2)
			if kind == "StatefulSet" {
				w.says(fleet.Aggregated, "waits until the requests of these have ended: llama-5")
				w.book(busy, -1)
			} else {
				testkit.Eventually(t, "some of the others to end", func() bool { return w.server.Replicas("llama") < 6 })
				w.book(busy, -1)
			}
			w.await("llama", 2)
			w.checkWrites()
			if first := w.server.Writes()[0]; first.Manager != "stator-planner.7.1" || first.Replicas != 6 {
				t.Errorf("the first write is %+v", first)
			}
		})
	}
}

// Two pods of a Deployment are drained, and one of them is still busy. The other one ends, although the busy one is newer.
func TestABusyDrainedPodStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("Deployment", "llama", fleet.Aggregated, 3)
	w.await("llama", 3)
	w.book("llama-x1", 1)
	w.run(1)
	w.want(fleet.Aggregated, 1)
	w.await("llama", 2)
	w.says(fleet.Aggregated, "waits until the requests of these have ended: llama-x1")
	w.book("llama-x1", -1)
	w.await("llama", 1)
	w.wrote("llama", 2, 1)
}

// The complaints of users of another planner, by their numbers at ai-dynamo/dynamo.
func TestComplaints(t *testing.T) {
	t.Run("13559 a pod that ends aborts its requests", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.add("Deployment", "llama", fleet.Aggregated, 2)
		w.await("llama", 2)
		w.book("llama-x0", 1)
		w.book("llama-x1", 1)
		w.run(1)
		w.want(fleet.Aggregated, 1)
		w.says(fleet.Aggregated, "waits until the requests of these have ended")
		time.Sleep(6 * time.Second) // longer than the grace of the complaint
		if n := w.server.Replicas("llama"); n != 2 {
			t.Errorf("there are %d replicas while both have requests", n)
		}
		w.book("llama-x0", -1)
		w.book("llama-x1", -1)
		w.await("llama", 1)
	})

	t.Run("14251 a pod without a GPU freezes the planner", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.add("Deployment", "llama", fleet.Aggregated, 2)
		w.await("llama", 2)
		s.unscheduled = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
		w.run(1)
		w.want(fleet.Aggregated, 4)
		w.says(fleet.Aggregated, "Insufficient nvidia.com/gpu")
		w.want(fleet.Aggregated, 1)
		w.await("llama", 1)
		w.checkWrites()
	})

	t.Run("12428 a move exceeds the budget and waits for ever", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.rules.MaxGPUs = 4
		s := w.add("Deployment", "prefill", fleet.Prefill, 2)
		s.ends = 5 * time.Second
		w.add("Deployment", "decode", fleet.Decode, 2)
		w.await("prefill", 2)
		w.await("decode", 2)
		w.run(1)
		w.want(fleet.Prefill, 1)
		w.want(fleet.Decode, 3)
		w.says(fleet.Decode, "waits for GPUs: the budget is 4, and pods have or get 4, some of them until these are gone: prefill-x")
		w.await("decode", 3)
		w.await("prefill", 1)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.most != 4 {
			t.Errorf("there were %d pods at a moment, with 4 GPUs", w.most)
		}
	})

	t.Run("4420 a person who scales breaks the planner", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.add("Deployment", "llama", fleet.Aggregated, 2)
		w.await("llama", 2)
		w.run(1)
		w.want(fleet.Aggregated, 3)
		w.await("llama", 3)
		w.server.SetScale("llama", "kubectl", 5)
		w.says(fleet.Aggregated, "5, because kubectl has set it in Deployment llm/llama: the plan would be 3")
		w.want(fleet.Aggregated, 1)
		time.Sleep(2 * kubernetes.WriteEvery)
		w.await("llama", 5) // as the person wants it
		w.want(fleet.Aggregated, 6)
		w.await("llama", 6)
		w.want(fleet.Aggregated, 2)
		w.await("llama", 2)
	})
}

// An autoscaler that is there scales alone, and is named. When it is gone, the plan counts.
func TestAutoscalerIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("Deployment", "llama", fleet.Aggregated, 2)
	w.await("llama", 2)
	w.server.PutAutoscaler("llm", "hpa", "llama")
	w.run(1)
	w.want(fleet.Aggregated, 4)
	w.says(fleet.Aggregated, "2, because HorizontalPodAutoscaler hpa scales Deployment llm/llama: delete it")
	if n := len(w.server.Writes()); n != 0 {
		t.Errorf("%d writes beside an autoscaler", n)
	}
	w.server.DeleteAutoscaler("llm", "hpa")
	w.await("llama", 4)
}

// ticks are the plans, of 100 ms each, that must have the reason of a failure. longAway are so many that the failure of the API server is one
// that lasts: then the target keeps its number.
const (
	ticks    = 30
	longAway = 150
)

// Failures of the API server: the plan says them, no worker is drained for what cannot be done, and all is right again after.
func TestFailures(t *testing.T) {
	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.add("Deployment", "llama", fleet.Aggregated, 3)
		w.await("llama", 3)
		w.server.RefuseWrites(http.StatusForbidden)
		w.run(1)
		w.want(fleet.Aggregated, 1)
		w.saysFor(fleet.Aggregated, "3, because set the scale of Deployment llm/llama to 3: the API server answers 403", ticks)
		w.drainsNone("for a change that is refused")
		w.server.RefuseWrites(0)
		w.await("llama", 1)
		w.checkWrites()
	})

	t.Run("Conflicts", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.add("Deployment", "llama", fleet.Aggregated, 2)
		w.await("llama", 2)
		w.run(1)
		stop := time.Now().Add(3 * time.Second)
		w.after(0, func() {
			for time.Now().Before(stop) {
				w.server.Touch()
				time.Sleep(time.Millisecond)
			}
		})
		w.want(fleet.Aggregated, 4)
		w.await("llama", 4)
		w.checkWrites()
		w.wrote("llama", 4)
	})

	t.Run("Away", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.add("Deployment", "llama", fleet.Aggregated, 2)
		w.await("llama", 2)
		w.run(1)
		w.want(fleet.Aggregated, 3)
		w.await("llama", 3)
		w.server.Break(kubeapi.NoAnswer)
		w.want(fleet.Aggregated, 4)
		w.says(fleet.Aggregated, "Deployment llm/llama cannot be scaled now: ")
		w.saysFor(fleet.Aggregated, "Deployment llm/llama", longAway)
		w.server.Break(0)
		back := time.Now()
		w.await("llama", 4)
		t.Logf("4 replicas are ready %v after the API server was back", time.Since(back).Round(100*time.Millisecond))
		w.wrote("llama", 3, 4)
	})

	t.Run("QuotaExhausted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.add("Deployment", "llama", fleet.Aggregated, 2)
		w.await("llama", 2)
		s.refused = `pods "llama-abc" is forbidden: exceeded quota: gpus`
		w.run(1)
		w.want(fleet.Aggregated, 4)
		w.saysFor(fleet.Aggregated, "exceeded quota: gpus", ticks)
		w.want(fleet.Aggregated, 2)
		w.await("llama", 2)
		w.wrote("llama", 4, 2)
	})
}

// A planner of an earlier term writes nothing, and neither does one that makes no plans any more.
func TestLaterTermCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("Deployment", "llama", fleet.Aggregated, 2)
	w.await("llama", 2)
	w.server.SetScale("llama", "stator-planner.9.4", 3)
	stop := w.run(8)
	w.want(fleet.Aggregated, 5)
	w.says(fleet.Aggregated, "3, because a planner of the later term 9 has set it")
	stop()
	if n := len(w.server.Writes()); n != 0 {
		t.Errorf("%d writes by a planner of an earlier term", n)
	}
	w.run(10)
	w.await("llama", 5)
}

// TestTwoPlanners: two planners that both make plans, because the earlier one does not know yet that it leads no more, do not undo each
// other's numbers. The one of the later term counts.
func TestTwoPlanners(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("Deployment", "llama", fleet.Aggregated, 2)
	w.await("llama", 2)
	w.runWanting(8, map[fleet.Role]int{fleet.Aggregated: 3})
	w.runWanting(9, map[fleet.Role]int{fleet.Aggregated: 5})
	w.says(fleet.Aggregated, "because a planner of the later term 9 has set it")
	w.await("llama", 5)
	later := false
	for _, x := range w.server.Writes() {
		isLater := strings.HasPrefix(x.Manager, "stator-planner.9.")
		if later && !isLater {
			t.Errorf("%s has set %d after a planner of term 9 had set the number", x.Manager, x.Replicas)
		}
		later = later || isLater
	}
	if len(w.server.Writes()) > 2 {
		t.Errorf("the number was set %d times: %+v", len(w.server.Writes()), w.server.Writes())
	}
}

// With upOnly nothing is lowered, and nothing is drained.
func TestUpOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rules.UpOnly = true
	w.add("Deployment", "llama", fleet.Aggregated, 2)
	w.await("llama", 2)
	w.run(1)
	w.want(fleet.Aggregated, 4)
	w.await("llama", 4)
	w.want(fleet.Aggregated, 1)
	w.says(fleet.Aggregated, "4 stay, because planner.upOnly is set")
	time.Sleep(kubernetes.WriteEvery)
	w.await("llama", 4)
}
