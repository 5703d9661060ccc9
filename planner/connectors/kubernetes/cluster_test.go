package kubernetes_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	api "github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/planner/connectors/kubernetes"
	"github.com/stator-project/stator/test/kubecluster"
	"github.com/stator-project/stator/test/testkit"
)

// cluster is a real API server. The test plays the kubelet.
type cluster struct {
	*kubecluster.Cluster
	t *testing.T
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	return &cluster{kubecluster.Start(t), t}
}

// podList has the fields of pods that a kubelet looks at.
type podList struct {
	Items []struct {
		Metadata struct{ Name, DeletionTimestamp string }
		Spec     struct{ NodeName string }
		Status   struct{ Phase string }
	}
}

// node is the played node of a namespace.
type node struct {
	// full means that no pod finds a node any more.
	full atomic.Bool
	// ends is how long pods take to end.
	ends time.Duration
	// roles are those of workers by the beginnings of their pods' names; others do all.
	roles map[string]fleet.Role
}

// roleOf returns the role of a pod's worker.
func (n *node) roleOf(pod string) fleet.Role {
	for begin, role := range n.roles {
		if strings.HasPrefix(pod, begin) {
			return role
		}
	}
	return fleet.Aggregated
}

// playKubelet has pods of a namespace run, become ready, and end, until ctx ends. Pods whose names begin with "pending" find no node.
// A pod that ends while routers have booked requests there fails the test.
func (c *cluster) playKubelet(ctx context.Context, namespace string, w *world, n *node) {
	path := "/api/v1/namespaces/" + namespace + "/pods"
	ending := map[string]time.Time{}
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		var pods podList
		if c.Call("GET", path, "", "", &pods) != nil {
			continue // the test may be over
		}
		w.mu.Lock()
		w.most = max(w.most, len(pods.Items))
		w.mu.Unlock()
		for i := range pods.Items {
			p := &pods.Items[i]
			name := p.Metadata.Name
			if _, ends := ending[name]; !ends && p.Metadata.DeletionTimestamp != "" {
				ending[name] = time.Now()
				if n := w.requests(name); n > 0 {
					w.mu.Lock()
					w.failed = append(w.failed, fmt.Sprintf("%s ends with %d requests", name, n))
					w.mu.Unlock()
				}
				w.members.Remove(name)
			}
			switch {
			case p.Metadata.DeletionTimestamp != "" && time.Since(ending[name]) < n.ends:
			case p.Metadata.DeletionTimestamp != "":
				_ = c.Call("DELETE", path+"/"+name, kubecluster.JSON, `{"gracePeriodSeconds": 0}`, nil)
			case strings.HasPrefix(name, "pending"), p.Spec.NodeName == "" && n.full.Load():
				_ = c.Call("PATCH", path+"/"+name+"/status", kubecluster.Merge, `{"status": {"conditions": [{"type": "PodScheduled", "status": "False",
					"reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}]}}`, nil)
			case p.Spec.NodeName == "":
				_ = c.Call("POST", path+"/"+name+"/binding", kubecluster.JSON, `{"apiVersion": "v1", "kind": "Binding",
					"metadata": {"name": "`+name+`"}, "target": {"kind": "Node", "name": "n1"}}`, nil)
			case p.Status.Phase != "Running":
				err := c.Call("PATCH", path+"/"+name+"/status", kubecluster.Merge, `{"status": {"phase": "Running", "podIP": "10.1.0.1",
					"conditions": [{"type": "Ready", "status": "True"}]}}`, nil)
				if err == nil {
					w.serve(name, n.roleOf(name))
				}
			}
		}
	}
}

// rights are those of the planner, as the chart gives them.
const rights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: planner}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, patch]}
- {apiGroups: [""], resources: [events], verbs: [list, create]}
- {apiGroups: [autoscaling], resources: [horizontalpodautoscalers], verbs: [list]}
- {apiGroups: [apps], resources: [deployments, statefulsets], verbs: [get]}
- {apiGroups: [apps], resources: [deployments/scale, statefulsets/scale], verbs: [get, patch]}
- {apiGroups: [leaderworkerset.x-k8s.io], resources: [leaderworkersets], verbs: [get]}
- {apiGroups: [leaderworkerset.x-k8s.io], resources: [leaderworkersets/scale], verbs: [get, patch]}
- {apiGroups: [keda.sh], resources: [scaledobjects], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: planner}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: planner}
subjects: [{kind: User, name: planner}]
`

// workload returns a Deployment or a StatefulSet.
func workload(kind, name, labels string, replicas int) string {
	return fmt.Sprintf(`{apiVersion: apps/v1, kind: %s, metadata: {name: %s}, spec: {replicas: %d, selector: {matchLabels: {%s}},
		template: {metadata: {labels: {%s}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: example.test/c:1}]}}}}`,
		kind, name, replicas, labels, labels)
}

// world returns a world of one object in a namespace of its own, whose planner has an account with its rights alone.
func (c *cluster) world(t *testing.T, namespace, apiVersion, kind, name string) *world {
	t.Helper()
	return c.worldOn(t, &node{}, namespace, apiVersion, kind, name)
}

// worldOn is world with a node.
func (c *cluster) worldOn(t *testing.T, n *node, namespace, apiVersion, kind, name string) *world {
	t.Helper()
	c.Must("", "create", "namespace", namespace)
	c.Must(rights, "apply", "-n", namespace, "-f", "-")
	w := &world{
		t: t, url: c.Proxy("planner"), members: fleet.New(fleet.Hooks{}), drain: time.Minute,
		wants: map[fleet.Role]int{fleet.Aggregated: 2}, sets: map[string]*set{},
		targets: []kubernetes.Target{{
			Object: api.Object{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}, Model: "m", GPUs: 1,
		}},
	}
	ctx, stop := context.WithCancel(context.Background())
	var kubelet sync.WaitGroup
	kubelet.Go(func() { c.playKubelet(ctx, namespace, w, n) })
	t.Cleanup(func() {
		stop()
		kubelet.Wait()
	})
	return w
}

// replicas waits until an object asks for a number, and as many workers serve.
func (c *cluster) replicas(w *world, n int) {
	w.t.Helper()
	c.replicasOf(w, &w.targets[0], n)
}

// replicasOf is replicas for one of several targets.
func (c *cluster) replicasOf(w *world, x *kubernetes.Target, n int) {
	w.t.Helper()
	o := &x.Object
	testkit.Eventually(w.t, fmt.Sprintf("%d replicas of %s", n, o), func() bool {
		workers := 0
		for _, m := range w.members.Snapshot().Workers {
			if m.Role == x.Role {
				workers++
			}
		}
		out, err := c.Kubectl("", "get", o.Kind, o.Name, "-n", o.Namespace, "-o", "jsonpath={.spec.replicas}")
		return err == nil && out == fmt.Sprint(n) && workers == n
	})
}

// TestOnARealAPIServer has real controllers create and delete the pods.
func TestOnARealAPIServer(t *testing.T) {
	c := startCluster(t)

	upAndDown := func(w *world) {
		c.replicas(w, 2)
		w.run(7)
		w.want(fleet.Aggregated, 6)
		c.replicas(w, 6)
		o := &w.targets[0].Object
		manager := c.Must("", "get", o.Kind, o.Name, "-n", o.Namespace, "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields[*].manager}")
		if !strings.Contains(manager, "stator-planner.7.") {
			w.t.Errorf("the managers of the fields are %s", manager)
		}
		// The worker with a request is the first to end if order, and not load, decides.
		workers := w.members.Snapshot().Workers
		busy := workers[len(workers)-1].Name
		w.book(busy, 1)
		w.want(fleet.Aggregated, 2)
		if o.Kind == "Deployment" {
			c.replicas(w, 2)
			if w.members.Snapshot().Worker(busy) == nil {
				w.t.Errorf("the worker with a request has ended, and idle ones have not")
			}
		} else {
			w.says(fleet.Aggregated, "waits until the requests of these have ended: "+busy)
		}
		w.book(busy, -1)
		c.replicas(w, 2)
	}

	t.Run("Deployment", func(t *testing.T) {
		w := c.world(t, "one", "apps/v1", "Deployment", "llama")
		c.Must(workload("Deployment", "llama", "app: llama", 2), "apply", "-n", "one", "-f", "-")
		upAndDown(w)
	})

	t.Run("StatefulSet", func(t *testing.T) {
		w := c.world(t, "two", "apps/v1", "StatefulSet", "llama")
		c.Must(workload("StatefulSet", "llama", "app: llama", 2), "apply", "-n", "two", "-f", "-")
		upAndDown(w)
	})

	t.Run("LeaderWorkerSet", func(t *testing.T) {
		c.ApplyKind("sigs.k8s.io/lws@v0.9.0", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml", "leaderworkersets")
		w := c.world(t, "three", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llama")
		c.Must(`{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: llama}, spec: {replicas: 2,
			leaderWorkerTemplate: {size: 1, workerTemplate: {spec: {containers: [{name: c, image: example.test/c:1}]}}}}}`,
			"apply", "-n", "three", "-f", "-")
		// Its controller has a StatefulSet make the leaders.
		c.Must(workload("StatefulSet", "llama", `leaderworkerset.sigs.k8s.io/name: llama, leaderworkerset.sigs.k8s.io/worker-index: "0"`, 2),
			"apply", "-n", "three", "-f", "-")
		c.Must("", "patch", "leaderworkerset", "llama", "-n", "three", "--subresource=status", "--type=merge", "-p",
			`{"status": {"hpaPodSelector": "leaderworkerset.sigs.k8s.io/name=llama,leaderworkerset.sigs.k8s.io/worker-index=0"}}`)
		ctx, stop := context.WithCancel(context.Background())
		var controller sync.WaitGroup
		defer controller.Wait()
		defer stop()
		controller.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
				n, err := c.Kubectl("", "get", "leaderworkerset", "llama", "-n", "three", "-o", "jsonpath={.spec.replicas}")
				if err == nil {
					_, _ = c.Kubectl("", "scale", "statefulset", "llama", "-n", "three", "--replicas", n)
				}
			}
		})
		upAndDown(w)
	})

	t.Run("PersonAutoscalerConflictsAndRights", func(t *testing.T) {
		w := c.world(t, "four", "apps/v1", "Deployment", "llama")
		c.Must(workload("Deployment", "llama", "app: llama", 2), "apply", "-n", "four", "-f", "-")
		c.replicas(w, 2)
		w.run(1)
		c.Must("", "scale", "deployment", "llama", "-n", "four", "--replicas", "3")
		w.says(fleet.Aggregated, "3, because kubectl has set it in Deployment four/llama: the plan would be 2")
		w.want(fleet.Aggregated, 4)
		c.replicas(w, 4)

		c.Must("", "autoscale", "deployment", "llama", "-n", "four", "--min", "1", "--max", "9", "--cpu=50%")
		w.says(fleet.Aggregated, "4, because HorizontalPodAutoscaler llama scales Deployment four/llama")
		c.Must("", "delete", "hpa", "llama", "-n", "four")

		for i := range 50 {
			c.Must("", "annotate", "deployment", "llama", "-n", "four", "--overwrite", fmt.Sprintf("storm=%d", i))
			if i == 10 {
				w.want(fleet.Aggregated, 5)
			}
		}
		c.replicas(w, 5)

		c.Must("", "delete", "rolebinding", "planner", "-n", "four")
		w.want(fleet.Aggregated, 6)
		w.says(fleet.Aggregated, "the API server answers 403")
		c.Must(rights, "apply", "-n", "four", "-f", "-")
		c.replicas(w, 6)
	})

	t.Run("PendingForEver", func(t *testing.T) {
		w := c.world(t, "five", "apps/v1", "Deployment", "pending")
		c.Must(workload("Deployment", "pending", "app: llama", 2), "apply", "-n", "five", "-f", "-")
		w.run(1)
		w.says(fleet.Aggregated, "1 Insufficient nvidia.com/gpu.")
		w.says(fleet.Aggregated, "does not count as coming")
		w.want(fleet.Aggregated, 1)
		testkit.Eventually(t, "the number to fall although no pod is ready", func() bool {
			return c.Must("", "get", "deployment", "pending", "-n", "five", "-o", "jsonpath={.spec.replicas}") == "1"
		})
	})
}

// TestComplaintsOnARealAPIServer has the complaints of users of another planner, by their numbers at ai-dynamo/dynamo, end well. A real API
// server and real controllers create and delete the pods.
func TestComplaintsOnARealAPIServer(t *testing.T) {
	c := startCluster(t)
	deploy := func(namespace, name string, replicas int) {
		c.Must(workload("Deployment", name, "app: "+name, replicas), "apply", "-n", namespace, "-f", "-")
	}

	t.Run("13565 the path from the plan to the pods does not work end to end", func(t *testing.T) {
		w := c.world(t, "c13565", "apps/v1", "Deployment", "llama")
		deploy("c13565", "llama", 2)
		c.replicas(w, 2)
		w.run(1)
		for _, n := range []int{4, 1, 3} {
			w.want(fleet.Aggregated, n)
			c.replicas(w, n)
		}
		out := c.Must("", "get", "events", "-n", "c13565", "--field-selector", "reason=Scaled", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "from 2 to 4 replicas: 4 by the test") {
			t.Errorf("the events are %s", out)
		}
	})

	t.Run("13559 a pod that ends aborts its requests", func(t *testing.T) {
		w := c.world(t, "c13559", "apps/v1", "Deployment", "llama")
		deploy("c13559", "llama", 2)
		c.replicas(w, 2)
		workers := w.members.Snapshot().Workers
		for _, m := range workers {
			w.book(m.Name, 1)
		}
		w.run(1)
		w.want(fleet.Aggregated, 1)
		// The pods of the complaint ended 5 s after that.
		w.saysFor(fleet.Aggregated, "waits until the requests of these have ended", 100)
		if n := c.Must("", "get", "deployment", "llama", "-n", "c13559", "-o", "jsonpath={.spec.replicas}"); n != "2" {
			t.Errorf("there are %s replicas while both have requests", n)
		}
		for _, m := range workers {
			w.book(m.Name, -1)
		}
		c.replicas(w, 1)
	})

	t.Run("14251 a pod without a GPU freezes the planner", func(t *testing.T) {
		n := &node{}
		w := c.worldOn(t, n, "c14251", "apps/v1", "Deployment", "llama")
		deploy("c14251", "llama", 2)
		c.replicas(w, 2)
		n.full.Store(true)
		w.run(1)
		w.want(fleet.Aggregated, 4)
		w.saysFor(fleet.Aggregated, "1 Insufficient nvidia.com/gpu.", ticks)
		w.want(fleet.Aggregated, 1)
		c.replicas(w, 1)
	})

	t.Run("12428 a move exceeds the budget and waits for ever", func(t *testing.T) {
		n := &node{ends: 3 * time.Second, roles: map[string]fleet.Role{"prefill": fleet.Prefill, "decode": fleet.Decode}}
		w := c.worldOn(t, n, "c12428", "apps/v1", "Deployment", "prefill")
		w.rules.MaxGPUs = 4
		w.wants = map[fleet.Role]int{fleet.Prefill: 2, fleet.Decode: 2}
		w.targets[0].Role = fleet.Prefill
		w.targets = append(w.targets, w.targets[0])
		w.targets[1].Name, w.targets[1].Role = "decode", fleet.Decode
		deploy("c12428", "prefill", 2)
		deploy("c12428", "decode", 2)
		for i := range w.targets {
			c.replicasOf(w, &w.targets[i], 2)
		}
		w.run(1)
		w.want(fleet.Prefill, 1)
		w.want(fleet.Decode, 3)
		w.says(fleet.Decode, "waits for GPUs: the budget is 4, and pods have or get 4, some of them until these are gone: prefill-")
		c.replicasOf(w, &w.targets[0], 1)
		c.replicasOf(w, &w.targets[1], 3)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.most != 4 {
			t.Errorf("there were %d pods at a moment, with 4 GPUs", w.most)
		}
	})

	t.Run("4420 a person who scales breaks the planner", func(t *testing.T) {
		w := c.world(t, "c4420", "apps/v1", "Deployment", "llama")
		deploy("c4420", "llama", 2)
		c.replicas(w, 2)
		w.run(1)
		w.want(fleet.Aggregated, 3)
		c.replicas(w, 3)
		c.Must("", "scale", "deployment", "llama", "-n", "c4420", "--replicas", "5")
		w.saysFor(fleet.Aggregated, "5, because kubectl has set it in Deployment c4420/llama: the plan would be 3", 100)
		c.replicas(w, 5)
		w.want(fleet.Aggregated, 6)
		c.replicas(w, 6)
		w.want(fleet.Aggregated, 2)
		c.replicas(w, 2)
	})
}

// away is the time for which the API server answers nothing.
var away = flag.Duration("kubernetes.away", time.Second, "stop the real API server for at least this time")

// TestFailuresOnARealAPIServer: each plan gives the reason while a quota is used up, and while the API server is away. All is right after.
func TestFailuresOnARealAPIServer(t *testing.T) {
	c := startCluster(t)

	t.Run("QuotaExhausted", func(t *testing.T) {
		w := c.world(t, "quota", "apps/v1", "Deployment", "llama")
		c.Must("", "create", "quota", "gpus", "--hard", "pods=2", "-n", "quota")
		c.Must(workload("Deployment", "llama", "app: llama", 2), "apply", "-n", "quota", "-f", "-")
		c.replicas(w, 2)
		w.run(1)
		w.want(fleet.Aggregated, 4)
		w.saysFor(fleet.Aggregated, "exceeded quota: gpus", ticks)
		c.Must("", "delete", "quota", "gpus", "-n", "quota")
		c.replicas(w, 4)
	})

	t.Run("Away", func(t *testing.T) {
		w := c.world(t, "away", "apps/v1", "Deployment", "llama")
		c.Must(workload("Deployment", "llama", "app: llama", 2), "apply", "-n", "away", "-f", "-")
		c.replicas(w, 2)
		w.run(1)
		w.want(fleet.Aggregated, 3)
		c.replicas(w, 3)
		c.Server.Signal(syscall.SIGSTOP) //nolint:errcheck // it runs
		w.want(fleet.Aggregated, 4)
		w.says(fleet.Aggregated, "Deployment away/llama")
		for begin := time.Now(); time.Since(begin) < *away; {
			w.saysFor(fleet.Aggregated, "Deployment away/llama", longAway)
		}
		c.Server.Signal(syscall.SIGCONT) //nolint:errcheck // it runs
		back := time.Now()
		c.replicas(w, 4)
		t.Logf("4 replicas are ready %v after the API server was back", time.Since(back).Round(100*time.Millisecond))
	})
}
