package kubernetes_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/test/kubeapi"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// cluster is an API server, engines at loopback addresses, and a source that follows them.
type cluster struct {
	*kubeapi.Server
	t       *testing.T
	source  *kubernetes.Source
	log     testkit.Log
	engines sync.Map // by IP: the number of questions
}

var pool = map[string]string{"app": "vllm"}

// follow starts a source. The engines of 127.0.0.x serve the model "qwen" at port.
func follow(t *testing.T, selections ...kubernetes.Selection) (c *cluster, port int) {
	c = &cluster{Server: kubeapi.New(t), t: t}
	port = c.serveEngines(t)
	client, err := kubernetes.NewClient(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	for i := range selections {
		if selections[i].Pool == "" {
			selections[i].Ports = []int{port}
		}
	}
	c.source = kubernetes.New(kubernetes.Config{
		Client: client, Selections: selections, Log: c.log.Logger(), Metrics: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.source.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return c, port
}

// serveEngines serves the pages of vLLM on every loopback address. Engines whose last number is 99 do not know their model yet.
func (c *cluster) serveEngines(t *testing.T) (port int) {
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).IP.String()
		if r.URL.Path == "/v1/models" {
			n, _ := c.engines.LoadOrStore(at, 0)
			c.engines.Store(at, n.(int)+1)
		}
		switch {
		case strings.HasSuffix(at, ".99"):
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data": [{"id": "qwen", "root": "Qwen/Qwen3-0.6B", "parent": null}]}`)
		case r.URL.Path == "/metrics":
			fmt.Fprint(w, "vllm:num_requests_running{engine=\"0\"} 0\nvllm:cache_config_info{block_size=\"32\"} 1\n")
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(ln)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return ln.Addr().(*net.TCPAddr).Port
}

// pod returns a ready pod of the pool, whose engine is at 127.0.0.n.
func pod(name string, n int) kubeapi.Pod {
	return kubeapi.Pod{Namespace: "llm", Name: name, UID: "u-" + name, IP: "127.0.0." + strconv.Itoa(n), Labels: pool, Ready: true}
}

// workers prints the workers without their ports, such as "a@127.0.0.2 b@127.0.0.3/prefill/r1".
func (c *cluster) workers() string {
	var all []string
	for _, w := range c.source.Workers() {
		host, _, _ := net.SplitHostPort(w.Address)
		text := w.Name + "@" + host
		if w.Role.String() != "aggregated" || w.Revision != "" {
			text += "/" + w.Role.String() + "/" + w.Revision
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func (c *cluster) await(want string) {
	c.t.Helper()
	testkit.Eventually(c.t, "workers "+want+", not "+c.workers(), func() bool { return c.source.Synced() && c.workers() == want })
}

// TestPodsBecomeWorkers walks pods through their lives.
func TestPodsBecomeWorkers(t *testing.T) {
	c, port := follow(t, kubernetes.Selection{Namespace: "llm", Pool: "qwen"})
	if c.source.Synced() || c.source.Err() == nil {
		t.Error("a source without a list is synced")
	}
	testkit.Eventually(t, "the missing pool is named", func() bool {
		err := c.source.Err()
		return err != nil && strings.Contains(err.Error(), "InferencePool llm/qwen: there is no such object")
	})

	c.PutPod(pod("a", 2))
	other := pod("other", 9)
	other.Labels = map[string]string{"app": "web"}
	c.PutPod(other)
	c.PutPool("llm", "qwen", pool, port)
	c.await("a@127.0.0.2")
	w := c.source.Workers()[0]
	if w.Engine.Name != "qwen" || w.Engine.Kind != "vllm" || w.Engine.BlockSize != 32 || w.Engine.Root != "Qwen/Qwen3-0.6B" || w.Epoch == 0 {
		t.Errorf("%+v", w)
	}
	if err := c.source.Err(); err != nil {
		t.Error(err)
	}

	b := pod("b", 3)
	b.Ready = false
	c.PutPod(b)
	c.PutPod(pod("c", 4))
	c.await("a@127.0.0.2 c@127.0.0.4")
	b.Ready = true
	c.PutPod(b)
	c.await("a@127.0.0.2 b@127.0.0.3 c@127.0.0.4")

	// A pod that is not ready for a moment is not asked again.
	b.Ready = false
	c.PutPod(b)
	c.await("a@127.0.0.2 c@127.0.0.4")
	b.Ready = true
	c.PutPod(b)
	c.await("a@127.0.0.2 b@127.0.0.3 c@127.0.0.4")
	if asked, _ := c.engines.Load("127.0.0.3"); asked != 1 {
		t.Errorf("asked %v times", asked)
	}

	b.Terminating = true // and still ready
	c.PutPod(b)
	c.await("a@127.0.0.2 c@127.0.0.4")
	c.DeletePod("llm", "c")
	c.await("a@127.0.0.2")

	// A container that restarts, or a pod that comes again under its name, has an empty cache.
	epoch := w.Epoch
	for _, again := range []kubeapi.Pod{
		{Namespace: "llm", Name: "a", UID: "u-a", IP: "127.0.0.2", Labels: pool, Ready: true, Restarts: 1},
		{Namespace: "llm", Name: "a", UID: "u-a2", IP: "127.0.0.2", Labels: pool, Ready: true},
	} {
		c.PutPod(again)
		testkit.Eventually(t, "a new epoch", func() bool {
			now := c.source.Workers()
			return len(now) == 1 && now[0].Epoch != epoch
		})
		epoch = c.source.Workers()[0].Epoch
	}
}

// TestLabelsOfRoles: pods name their role and revision in the ways of llm-d, DisaggregatedSet and Dynamo. A slice is part of the revision.
func TestLabelsOfRoles(t *testing.T) {
	c, _ := follow(t, kubernetes.Selection{Namespace: "llm", Labels: "app=vllm"})
	for i, labels := range []map[string]string{
		{"llm-d.ai/role": "prefill"},
		{"llm-d.ai/role": "both"},
		{"disaggregatedset.x-k8s.io/role": "decode", "disaggregatedset.x-k8s.io/revision": "r7"},
		{"nvidia.com/dynamo-component-type": "worker", "nvidia.com/dynamo-sub-component-type": "prefill", "nvidia.com/dynamo-worker-hash": "h1"},
		{"leaderworkerset.sigs.k8s.io/worker-index": "1"}, // has no server
		{"leaderworkerset.sigs.k8s.io/worker-index": "0"},
		{"disaggregatedset.x-k8s.io/role": "prefill", "disaggregatedset.x-k8s.io/revision": "r7", "disaggregatedset.x-k8s.io/slice": "12"},
		{"disaggregatedset.x-k8s.io/slice": "1"}, // of no revision
	} {
		p := pod(string(rune('a'+i)), 10+i)
		labels["app"] = "vllm"
		p.Labels = labels
		c.PutPod(p)
	}
	c.await("a@127.0.0.10/prefill/ b@127.0.0.11 c@127.0.0.12/decode/r7 d@127.0.0.13/prefill/h1 f@127.0.0.15 g@127.0.0.16/prefill/r7/12 h@127.0.0.17")
}

// TestNamesOfPods: names of workers are short, and unique over namespaces and ports.
func TestNamesOfPods(t *testing.T) {
	c, port := follow(t, kubernetes.Selection{Namespace: "llm", Labels: "app=vllm"}, kubernetes.Selection{Namespace: "other", Pool: "two"})
	c.PutPool("other", "two", pool, port, port+1)
	long := pod(strings.Repeat("long-name-", 9)+"x", 2)
	c.PutPod(long)
	c.PutPod(pod("a.b", 3))
	c.PutPod(pod("same", 4))
	same := pod("same", 5)
	same.Namespace = "other"
	c.PutPod(same)
	testkit.Eventually(t, "four of five engines answer", func() bool { return len(c.source.Workers()) == 4 })

	seen := map[string]bool{}
	for _, w := range c.source.Workers() {
		if seen[w.Name] || len(w.Name) > 63 || strings.ContainsAny(w.Name, ".") {
			t.Errorf("worker %q", w.Name)
		}
		seen[w.Name] = true
	}
	if !seen["same"] || len(seen) != 4 {
		t.Errorf("%v", seen)
	}
}

// TestAPIServerFails: workers stay while the API server is away, refuses, forgets versions or cuts answers off, and are right afterwards.
func TestAPIServerFails(t *testing.T) {
	c, port := follow(t, kubernetes.Selection{Namespace: "llm", Pool: "qwen"})
	c.PutPool("llm", "qwen", pool, port)
	for i := range 3 {
		c.PutPod(pod(string(rune('a'+i)), 2+i))
	}
	c.await("a@127.0.0.2 b@127.0.0.3 c@127.0.0.4")

	lists := c.Lists("pods")
	c.Cut(false) // a watch that ends is no fault
	c.PutPod(pod("d", 5))
	c.await("a@127.0.0.2 b@127.0.0.3 c@127.0.0.4 d@127.0.0.5")
	if now := c.Lists("pods"); now != lists {
		t.Errorf("%d lists after a watch has ended", now-lists)
	}

	c.Cut(true)
	c.DeletePod("llm", "d")
	c.await("a@127.0.0.2 b@127.0.0.3 c@127.0.0.4")

	c.Break(http.StatusServiceUnavailable)
	testkit.Eventually(t, "the trouble is named", func() bool {
		err := c.source.Err()
		return err != nil && strings.Contains(err.Error(), "503")
	})
	c.DeletePod("llm", "b")
	c.PutPod(pod("e", 6))
	if got := c.workers(); got != "a@127.0.0.2 b@127.0.0.3 c@127.0.0.4" {
		t.Errorf("workers without an API server: %s", got)
	}
	c.Forget() // it comes back without its history
	c.Break(0)
	c.await("a@127.0.0.2 c@127.0.0.4 e@127.0.0.6")
	testkit.Eventually(t, "the trouble is over", func() bool { return c.source.Err() == nil })

	if !c.log.Contains("cannot be read") || !c.log.Contains("is read again") {
		t.Errorf("log:\n%s", c.log.String())
	}
}

// TestPoolSelectsOtherPods: a change of the pool replaces its workers.
func TestPoolSelectsOtherPods(t *testing.T) {
	c, port := follow(t, kubernetes.Selection{Namespace: "llm", Pool: "qwen"})
	c.PutPool("llm", "qwen", pool, port)
	c.PutPod(pod("a", 2))
	next := pod("b", 3)
	next.Labels = map[string]string{"app": "next"}
	c.PutPod(next)
	c.PutPod(pod("asleep", 99))
	testkit.Eventually(t, "an engine does not answer", func() bool { return c.log.Contains("does not answer") })
	c.await("a@127.0.0.2")

	c.PutPool("llm", "qwen", next.Labels, port)
	c.await("b@127.0.0.3")
	c.PutPool("llm", "qwen", pool, port)
	c.await("a@127.0.0.2")

	c.DeletePool("llm", "qwen")
	testkit.Eventually(t, "the deletion is logged", func() bool { return c.log.Contains("was deleted") })
	c.await("a@127.0.0.2")
}

// TestManyPods: a list of several pages is read whole, and each engine is asked once. On a busy machine an answer may come too late. Then
// the log has a warning, and the engine is asked again.
func TestManyPods(t *testing.T) {
	c, _ := follow(t, kubernetes.Selection{Namespace: "llm", Labels: "app=vllm"})
	const n = 1200
	for i := range n {
		p := pod(fmt.Sprintf("p%04d", i), 0)
		p.IP = fmt.Sprintf("127.3.%d.%d", i/90, 1+i%90)
		c.PutPod(p)
	}
	testkit.Eventually(t, "all pods are workers", func() bool { return len(c.source.Workers()) == n })
	var late strings.Builder
	for line := range strings.Lines(c.log.String()) {
		if strings.Contains(line, "does not answer") {
			late.WriteString(line)
		}
	}
	c.engines.Range(func(ip, asked any) bool {
		if asked.(int) != 1 && !strings.Contains(late.String(), "address="+ip.(string)+":") {
			t.Errorf("%s was asked %d times", ip, asked)
		}
		return true
	})
}

// TestFollowService: the addresses of a Service's pods, ready or not, are followed.
func TestFollowService(t *testing.T) {
	api := kubeapi.New(t)
	client, err := kubernetes.NewClient(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	last := "none"
	go kubernetes.FollowService(t.Context(), client, "llm", "picker", slog.New(slog.DiscardHandler), func(ips []string) {
		mu.Lock()
		defer mu.Unlock()
		last = strings.Join(ips, " ")
	})
	await := func(want string) {
		t.Helper()
		testkit.Eventually(t, "addresses "+want, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return last == want
		})
	}
	await("")
	api.PutEndpoints("llm", "picker", "picker-a", "10.0.0.2", "10.0.0.1")
	api.PutEndpoints("llm", "other", "other-a", "10.9.9.9")
	api.PutEndpoints("llm", "picker", "picker-b", "10.0.0.3")
	await("10.0.0.1 10.0.0.2 10.0.0.3")
	api.PutEndpoints("llm", "picker", "picker-a", "10.0.0.1")
	await("10.0.0.1 10.0.0.3")
}

// TestClientOutsideOfACluster: the error names the flag.
func TestClientOutsideOfACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for api, want := range map[string]string{"": "--kubernetes-api", "127.0.0.1:8001": "kubectl proxy", "ftp://x": "no URL"} {
		if _, err := kubernetes.NewClient(api); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", api, err)
		}
	}
}
