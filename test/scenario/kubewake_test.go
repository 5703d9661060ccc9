package scenario

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/test/kubeapi"
)

// deployment is a played Deployment: its pods are simulated engines, which start and end as the number asks for.
type deployment struct {
	t    *testing.T
	api  *kubeapi.Server
	net  int // of the addresses of the pods
	port string

	mu     sync.Mutex
	ended  bool
	next   int
	most   int // pods at a moment
	pods   []kubeapi.Pod
	engine map[string]*command
}

// play has as many pods as the number asks for. It is called for each change, one after the other.
func (d *deployment) play(replicas int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.pods) < replicas && !d.ended {
		d.next++
		name := fmt.Sprintf("sim-%d", d.next)
		pod := kubeapi.Pod{
			Namespace: "llm", Name: name, UID: name, IP: fmt.Sprintf("127.78.%d.%d", d.net, d.next), Labels: map[string]string{"app": "sim"},
			Owner: "ReplicaSet", Created: time.Now(),
		}
		d.api.PutPod(pod)
		address := net.JoinHostPort(pod.IP, d.port)
		d.engine[name] = start(d.t, "sim", "--listen-address", address, "--log-level", "warn")
		eventually(d.t, "the engine answers", func() error {
			_, err := get("http://" + address + "/health")
			return err
		})
		pod.Ready = true
		d.api.PutPod(pod)
		d.pods = append(d.pods, pod)
		d.most = max(d.most, len(d.pods))
	}

	for len(d.pods) > replicas {
		pod := d.pods[0]
		d.pods = d.pods[1:]
		pod.Ready, pod.Terminating = false, true
		d.api.PutPod(pod)
		d.engine[pod.Name].stop()
		d.api.DeletePod(pod.Namespace, pod.Name)
	}
}

// TestFromZeroInKubernetes: the planner ends the last pod of a model without requests. Requests that come then wait in the router, the
// planner sets the number of the Deployment to 1, and all are answered by the pod that starts. That happens again.
func TestFromZeroInKubernetes(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	d := &deployment{t: t, api: kubeapi.New(t), net: 1, port: port, engine: map[string]*command{}}
	var controller sync.WaitGroup
	numbers := make(chan int, 64)
	controller.Go(func() {
		for n := range numbers {
			d.play(n)
		}
	})
	t.Cleanup(func() {
		close(numbers)
		controller.Wait()
	})
	d.play(1)
	d.api.PutScaled(kubeapi.Scaled{
		APIVersion: "apps/v1", Kind: "Deployment", Plural: "deployments", Namespace: "llm", Name: "sim", Replicas: 1, Selector: "app=sim",
		Changed: func(n int) { numbers <- n },
	})

	p := startPartsFor(t, partsSettings{
		models: `
planner: {connector: kubernetes, algorithm: sla, interval: 1s, drainTimeout: 20s}
models:
- name: sim
  path: "builtin:sim"
  idleAfter: 3s
  router: {queue: {hold: 1m}}
  launch: [{engine: sim, count: 1, max: 2, startUp: 20s, target: deployment/sim}]
`,
		cluster: []string{"--kubernetes-api", d.api.URL, "--namespace", "llm", "--pod-selector", "app=sim", "--pod-ports", port},
	})
	for range 2 {
		p.awaitEngines(0)
		if n := d.api.Replicas("sim"); n != 0 {
			t.Errorf("there is no pod, and the Deployment asks for %d", n)
		}
		const clients = 20
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				if err := p.completeAnswer("sim", i%2 == 0, i, 8); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}

	for _, w := range d.api.Writes() {
		if !strings.HasPrefix(w.Manager, "stator-planner.") || w.Replicas > 1 {
			t.Errorf("the number was set: %+v", w)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.most != 1 || d.next < 3 {
		t.Errorf("%d pods were started, at most %d beside each other", d.next, d.most)
	}
	p.assertNothingBooked()
}
