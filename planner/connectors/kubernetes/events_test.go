package kubernetes_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	api "github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/kubeapi"
	"github.com/stator-project/stator/test/testkit"
)

// recorded waits until an event about an object was written whose message has a text.
func (w *world) recorded(reason, name, text string) {
	w.t.Helper()
	testkit.Eventually(w.t, "an event "+reason+" of "+name, func() bool {
		return slices.ContainsFunc(w.server.Events(), func(e kubeapi.Event) bool {
			return e.Reason == reason && e.Name == name && e.UID == name && strings.Contains(e.Message, text)
		})
	})
}

// TestEvents: the changes of a planner and their reasons are in the events of the objects that it scales, and of the pods that it drains.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("Deployment", "llama", fleet.Aggregated, 2)
	w.await("llama", 2)
	w.run(1)
	w.want(fleet.Aggregated, 3)
	w.recorded("Scaled", "llama", "from 2 to 3 replicas: 3 by the test")
	w.await("llama", 3)
	w.want(fleet.Aggregated, 2)
	w.await("llama", 2)
	drained := slices.ContainsFunc(w.server.Events(), func(e kubeapi.Event) bool {
		return e.Reason == "Draining" && e.Kind == "Pod" && e.Type == "Normal" && strings.Contains(e.Message, "2 by the test")
	})
	if !drained {
		t.Errorf("no event about a pod that drains: %+v", w.server.Events())
	}

	w.server.PutAutoscaler("llm", "hpa", "llama")
	w.want(fleet.Aggregated, 5)
	w.recorded("NotScaled", "llama", "HorizontalPodAutoscaler hpa")
}

// TestEventsOfAPool: an event about a target is also one about the InferencePool that has its workers.
func TestEventsOfAPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("Deployment", "llama", fleet.Aggregated, 2)
	w.await("llama", 2)
	pool := func(name string, workers ...string) api.PoolMembers {
		return api.PoolMembers{Object: api.Object{Kind: "InferencePool", Namespace: "llm", Name: name}, UID: name, Workers: workers}
	}
	w.pools = func() []api.PoolMembers { return []api.PoolMembers{pool("other", "x"), pool("pool", "llama-x1")} }
	w.run(1)
	w.want(fleet.Aggregated, 3)
	w.recorded("Scaled", "pool", "Deployment llama: from 2 to 3 replicas: 3 by the test")
	if slices.ContainsFunc(w.server.Events(), func(e kubeapi.Event) bool { return e.Name == "other" }) {
		t.Errorf("an event is about another pool: %+v", w.server.Events())
	}
}

// TestEventsCannotBeWritten: a planner without the right to write events scales all the same.
func TestEventsCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("Deployment", "llama", fleet.Aggregated, 2)
	w.await("llama", 2)
	w.server.RefuseEvents(http.StatusForbidden)
	w.run(1)
	w.want(fleet.Aggregated, 3)
	w.await("llama", 3)
	w.want(fleet.Aggregated, 4)
	w.await("llama", 4)
	if n := len(w.server.Events()); n != 0 {
		t.Errorf("%d events without the right to write them", n)
	}
}

// TestAdvice: an advisory planner sets no number. The objects' events have the numbers that it recommends, each once.
func TestAdvice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.advisory = true
	w.add("Deployment", "llama", fleet.Aggregated, 2)
	w.await("llama", 2)
	w.run(1)
	w.want(fleet.Aggregated, 4)
	w.recorded("ScaleRecommended", "llama", "4 replicas in place of 2: 4 by the test")
	w.want(fleet.Aggregated, 5)
	w.recorded("ScaleRecommended", "llama", "5 replicas in place of 2: 5 by the test")
	if n := len(w.server.Writes()); n != 0 || len(w.server.Events()) != 2 {
		t.Errorf("%d writes, events %+v", n, w.server.Events())
	}
}
