package kubernetes_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	api "github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/planner/connectors/kubernetes"
	"github.com/stator-project/stator/test/testkit"
)

// cluster is a real API server with the controllers of Deployments, ReplicaSets and StatefulSets. The test plays the kubelet.
type cluster struct {
	t                    *testing.T
	folder, programs     string
	kubeconfig, adminURL string
	server               *os.Process // the API server
}

// startCluster starts the programs that `make test-kubernetes` has built, and ends them with the test.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	programs := os.Getenv("KUBEBUILDER_ASSETS")
	if programs == "" {
		t.Skip("KUBEBUILDER_ASSETS names no folder with etcd, kube-apiserver, kube-controller-manager and kubectl: run make test-kubernetes")
	}
	c := &cluster{t: t, folder: t.TempDir(), programs: programs}
	c.kubeconfig = filepath.Join(c.folder, "kubeconfig")
	clients := freePort(t)
	peers := freePort(t)
	port := freePort(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(c.folder, "accounts.key")
	write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	write(t, filepath.Join(c.folder, "tokens.csv"), "admin,admin,admin,system:masters\n")
	write(t, c.kubeconfig, fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %s}}],
users: [{name: admin, user: {token: admin}}], contexts: [{name: c, context: {cluster: c, user: admin}}]}`,
		port, filepath.Join(c.folder, "apiserver.crt")))

	c.start("etcd", "--data-dir="+filepath.Join(c.folder, "etcd"), "--unsafe-no-fsync", at("--listen-client-urls", clients),
		at("--advertise-client-urls", clients), at("--listen-peer-urls", peers), at("--initial-advertise-peer-urls", peers),
		strings.Replace(at("--initial-cluster", peers), "=", "=default=", 1))
	c.start("kube-apiserver", at("--etcd-servers", clients), "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir="+c.folder, "--token-auth-file="+filepath.Join(c.folder, "tokens.csv"), "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+keyFile,
		"--service-account-signing-key-file="+keyFile)
	testkit.Eventually(t, "the API server to be ready", func() bool {
		_, err := c.kubectl("", "get", "--raw", "/readyz")
		return err == nil
	})
	c.start("kube-controller-manager", "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--use-service-account-credentials=false",
		"--controllers=deployment-controller,replicaset-controller,statefulset-controller,resourcequota-controller")
	c.adminURL = c.proxy("")
	c.must(`{apiVersion: v1, kind: Node, metadata: {name: n1}}`, "apply", "-f", "-")
	return c
}

// start starts a program that ends with the test.
func (c *cluster) start(program string, args ...string) io.Reader {
	c.t.Helper()
	log, err := os.Create(filepath.Join(c.folder, program+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(c.programs, program), args...)
	cmd.Dir, cmd.Stderr = c.folder, log
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+c.folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	if program == "kube-apiserver" {
		c.server = cmd.Process
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	return out
}

// proxy returns the URL of an API server that asks for no token, as an account; empty for an administrator.
func (c *cluster) proxy(account string) string {
	c.t.Helper()
	args := []string{"proxy", "--port", "0"}
	if account != "" {
		args = append(args, "--as", account)
	}
	line, err := bufio.NewReader(c.start("kubectl", args...)).ReadString('\n')
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if at == "" {
		c.t.Fatalf("kubectl proxy: %q, %v", line, err)
	}
	return "http://" + at
}

func (c *cluster) kubectl(in string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.programs, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+c.folder)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs kubectl, and ends the test if it fails.
func (c *cluster) must(in string, args ...string) string {
	c.t.Helper()
	out, err := c.kubectl(in, args...)
	if err != nil {
		c.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

// call sends a request of the administrator, and decodes the answer.
func (c *cluster) call(method, path, kind, body string, into any) error {
	req, err := http.NewRequest(method, c.adminURL+path, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, data)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(data, into)
	}
	return err
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
	const merge = "application/merge-patch+json"
	path := "/api/v1/namespaces/" + namespace + "/pods"
	ending := map[string]time.Time{}
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		var pods podList
		if c.call("GET", path, "", "", &pods) != nil {
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
				_ = c.call("DELETE", path+"/"+name, "application/json", `{"gracePeriodSeconds": 0}`, nil)
			case strings.HasPrefix(name, "pending"), p.Spec.NodeName == "" && n.full.Load():
				_ = c.call("PATCH", path+"/"+name+"/status", merge, `{"status": {"conditions": [{"type": "PodScheduled", "status": "False",
					"reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}]}}`, nil)
			case p.Spec.NodeName == "":
				_ = c.call("POST", path+"/"+name+"/binding", "application/json", `{"apiVersion": "v1", "kind": "Binding",
					"metadata": {"name": "`+name+`"}, "target": {"kind": "Node", "name": "n1"}}`, nil)
			case p.Status.Phase != "Running":
				err := c.call("PATCH", path+"/"+name+"/status", merge, `{"status": {"phase": "Running", "podIP": "10.1.0.1",
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
	c.must("", "create", "namespace", namespace)
	c.must(rights, "apply", "-n", namespace, "-f", "-")
	w := &world{
		t: t, url: c.proxy("planner"), members: fleet.New(fleet.Hooks{}), drain: time.Minute,
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
		out, err := c.kubectl("", "get", o.Kind, o.Name, "-n", o.Namespace, "-o", "jsonpath={.spec.replicas}")
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
		manager := c.must("", "get", o.Kind, o.Name, "-n", o.Namespace, "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields[*].manager}")
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
		c.must(workload("Deployment", "llama", "app: llama", 2), "apply", "-n", "one", "-f", "-")
		upAndDown(w)
	})

	t.Run("StatefulSet", func(t *testing.T) {
		w := c.world(t, "two", "apps/v1", "StatefulSet", "llama")
		c.must(workload("StatefulSet", "llama", "app: llama", 2), "apply", "-n", "two", "-f", "-")
		upAndDown(w)
	})

	t.Run("LeaderWorkerSet", func(t *testing.T) {
		folder := moduleFolder(t, "sigs.k8s.io/lws@v0.9.0")
		c.must("", "apply", "--server-side", "-f", folder+"/config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml")
		testkit.Eventually(t, "the kind to be served", func() bool {
			_, err := c.kubectl("", "get", "leaderworkersets")
			return err == nil
		})
		w := c.world(t, "three", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llama")
		c.must(`{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: llama}, spec: {replicas: 2,
			leaderWorkerTemplate: {size: 1, workerTemplate: {spec: {containers: [{name: c, image: example.test/c:1}]}}}}}`,
			"apply", "-n", "three", "-f", "-")
		// Its controller has a StatefulSet make the leaders.
		c.must(workload("StatefulSet", "llama", `leaderworkerset.sigs.k8s.io/name: llama, leaderworkerset.sigs.k8s.io/worker-index: "0"`, 2),
			"apply", "-n", "three", "-f", "-")
		c.must("", "patch", "leaderworkerset", "llama", "-n", "three", "--subresource=status", "--type=merge", "-p",
			`{"status": {"hpaPodSelector": "leaderworkerset.sigs.k8s.io/name=llama,leaderworkerset.sigs.k8s.io/worker-index=0"}}`)
		ctx, stop := context.WithCancel(context.Background())
		var controller sync.WaitGroup
		defer controller.Wait()
		defer stop()
		controller.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
				n, err := c.kubectl("", "get", "leaderworkerset", "llama", "-n", "three", "-o", "jsonpath={.spec.replicas}")
				if err == nil {
					_, _ = c.kubectl("", "scale", "statefulset", "llama", "-n", "three", "--replicas", n)
				}
			}
		})
		upAndDown(w)
	})

	t.Run("PersonAutoscalerConflictsAndRights", func(t *testing.T) {
		w := c.world(t, "four", "apps/v1", "Deployment", "llama")
		c.must(workload("Deployment", "llama", "app: llama", 2), "apply", "-n", "four", "-f", "-")
		c.replicas(w, 2)
		w.run(1)
		c.must("", "scale", "deployment", "llama", "-n", "four", "--replicas", "3")
		w.says(fleet.Aggregated, "3, because kubectl has set it in Deployment four/llama: the plan would be 2")
		w.want(fleet.Aggregated, 4)
		c.replicas(w, 4)

		c.must("", "autoscale", "deployment", "llama", "-n", "four", "--min", "1", "--max", "9", "--cpu=50%")
		w.says(fleet.Aggregated, "4, because HorizontalPodAutoscaler llama scales Deployment four/llama")
		c.must("", "delete", "hpa", "llama", "-n", "four")

		for i := range 50 {
			c.must("", "annotate", "deployment", "llama", "-n", "four", "--overwrite", fmt.Sprintf("storm=%d", i))
			if i == 10 {
				w.want(fleet.Aggregated, 5)
			}
		}
		c.replicas(w, 5)

		c.must("", "delete", "rolebinding", "planner", "-n", "four")
		w.want(fleet.Aggregated, 6)
		w.says(fleet.Aggregated, "the API server answers 403")
		c.must(rights, "apply", "-n", "four", "-f", "-")
		c.replicas(w, 6)
	})

	t.Run("PendingForEver", func(t *testing.T) {
		w := c.world(t, "five", "apps/v1", "Deployment", "pending")
		c.must(workload("Deployment", "pending", "app: llama", 2), "apply", "-n", "five", "-f", "-")
		w.run(1)
		w.says(fleet.Aggregated, "1 Insufficient nvidia.com/gpu.")
		w.says(fleet.Aggregated, "does not count as coming")
		w.want(fleet.Aggregated, 1)
		testkit.Eventually(t, "the number to fall although no pod is ready", func() bool {
			return c.must("", "get", "deployment", "pending", "-n", "five", "-o", "jsonpath={.spec.replicas}") == "1"
		})
	})
}

// TestComplaintsOnARealAPIServer has the complaints of users of another planner, by their numbers at ai-dynamo/dynamo, end well. A real API
// server and real controllers create and delete the pods.
func TestComplaintsOnARealAPIServer(t *testing.T) {
	c := startCluster(t)
	deploy := func(namespace, name string, replicas int) {
		c.must(workload("Deployment", name, "app: "+name, replicas), "apply", "-n", namespace, "-f", "-")
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
		out := c.must("", "get", "events", "-n", "c13565", "--field-selector", "reason=Scaled", "-o", "jsonpath={.items[*].message}")
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
		if n := c.must("", "get", "deployment", "llama", "-n", "c13559", "-o", "jsonpath={.spec.replicas}"); n != "2" {
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
		c.must("", "scale", "deployment", "llama", "-n", "c4420", "--replicas", "5")
		w.saysFor(fleet.Aggregated, "5, because kubectl has set it in Deployment c4420/llama: the plan would be 3", 100)
		c.replicas(w, 5)
		w.want(fleet.Aggregated, 6)
		c.replicas(w, 6)
		w.want(fleet.Aggregated, 2)
		c.replicas(w, 2)
	})
}

// TestFailuresOnARealAPIServer: each plan gives the reason while a quota is used up, and while the API server is away. All is right after.
func TestFailuresOnARealAPIServer(t *testing.T) {
	c := startCluster(t)

	t.Run("QuotaExhausted", func(t *testing.T) {
		w := c.world(t, "quota", "apps/v1", "Deployment", "llama")
		c.must("", "create", "quota", "gpus", "--hard", "pods=2", "-n", "quota")
		c.must(workload("Deployment", "llama", "app: llama", 2), "apply", "-n", "quota", "-f", "-")
		c.replicas(w, 2)
		w.run(1)
		w.want(fleet.Aggregated, 4)
		w.saysFor(fleet.Aggregated, "exceeded quota: gpus", ticks)
		c.must("", "delete", "quota", "gpus", "-n", "quota")
		c.replicas(w, 4)
	})

	t.Run("Away", func(t *testing.T) {
		w := c.world(t, "away", "apps/v1", "Deployment", "llama")
		c.must(workload("Deployment", "llama", "app: llama", 2), "apply", "-n", "away", "-f", "-")
		c.replicas(w, 2)
		w.run(1)
		w.want(fleet.Aggregated, 3)
		c.replicas(w, 3)
		c.server.Signal(syscall.SIGSTOP) //nolint:errcheck // it runs
		w.want(fleet.Aggregated, 4)
		w.says(fleet.Aggregated, "Deployment away/llama")
		w.saysFor(fleet.Aggregated, "Deployment away/llama", longAway)
		c.server.Signal(syscall.SIGCONT) //nolint:errcheck // it runs
		back := time.Now()
		c.replicas(w, 4)
		t.Logf("4 replicas are ready %v after the API server was back", time.Since(back).Round(100*time.Millisecond))
	})
}

func at(flag string, port int) string { return fmt.Sprintf("%s=http://127.0.0.1:%d", flag, port) }

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
