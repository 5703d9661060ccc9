package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/test/kubecluster"
)

// kubelet is the played kubelet of all pods of a namespace: each has a simulated engine. The API server is a real one, or one for tests.
type kubelet struct {
	t              *testing.T
	api, namespace string
	net            int    // of the addresses of the pods, 127.79.net.N
	port           string // of all engines
	// flags returns further flags of the engine of a pod with these labels; nil for none.
	flags func(labels map[string]string) []string

	mu      sync.Mutex
	next    int
	engines map[string]*podEngine // by the pod's name
	tasks   sync.WaitGroup
}

// podEngine is the engine of a pod.
type podEngine struct {
	ip     string
	engine *command
	ends   bool
}

// kubePod has the fields of a pod that a kubelet looks at.
type kubePod struct {
	Metadata struct {
		Name, DeletionTimestamp string
		Labels                  map[string]string
	}
	Spec   struct{ NodeName string }
	Status struct{ Phase string }
}

// preStop is the time in which routers and Envoys learn that a pod ends, before its engine gets SIGTERM: docs/planning.md asks for it.
const preStop = 5 * time.Second

// play begins to play, until the test ends.
func (k *kubelet) play() {
	k.t.Helper()
	_, port, err := net.SplitHostPort(freeAddress(k.t))
	if err != nil {
		k.t.Fatal(err)
	}
	k.port = port
	k.engines = map[string]*podEngine{}
	ctx, stop := context.WithCancel(context.Background())
	k.tasks.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			k.look(ctx)
		}
	})
	k.t.Cleanup(func() {
		stop()
		k.tasks.Wait()
	})
}

func (k *kubelet) path() string { return "/api/v1/namespaces/" + k.namespace + "/pods" }

// pods returns the pods that are there.
func (k *kubelet) pods() (all []kubePod, err error) {
	var list struct{ Items []kubePod }
	err = kubecluster.Call(k.api, http.MethodGet, k.path()+"?limit=500", "", "", &list)
	return list.Items, err
}

// look starts the engines of new pods, and ends those of pods that are deleted.
func (k *kubelet) look(ctx context.Context) {
	pods, err := k.pods()
	if err != nil {
		return // it is asked again
	}
	for i := range pods {
		p := &pods[i]
		name := p.Metadata.Name
		k.mu.Lock()
		e := k.engines[name]
		if e == nil && p.Metadata.DeletionTimestamp == "" {
			k.next++
			e = &podEngine{ip: fmt.Sprintf("127.79.%d.%d", k.net, k.next)}
			k.engines[name] = e
			k.tasks.Go(func() { k.start(p, e) })
		}
		ends := p.Metadata.DeletionTimestamp != "" && (e == nil || e.engine != nil && !e.ends)
		if ends && e != nil {
			e.ends = true
		}
		k.mu.Unlock()
		if ends {
			k.tasks.Go(func() { k.end(ctx, name, e) })
		}
	}
}

// start starts the engine of a pod, and reports it as ready.
func (k *kubelet) start(p *kubePod, e *podEngine) {
	name := p.Metadata.Name
	if p.Spec.NodeName == "" {
		_ = kubecluster.Call(k.api, http.MethodPost, k.path()+"/"+name+"/binding", kubecluster.JSON, `{"apiVersion": "v1", "kind": "Binding",
			"metadata": {"name": "`+name+`"}, "target": {"kind": "Node", "name": "n1"}}`, nil)
	}
	address := net.JoinHostPort(e.ip, k.port)
	args := []string{"sim", "--listen-address", address, "--kv-transfer", net.JoinHostPort(e.ip, "0"), "--drain-time", "15m",
		"--log-level", "warn"}
	if k.flags != nil {
		args = append(args, k.flags(p.Metadata.Labels)...)
	}
	engine := start(k.t, args...)
	eventually(k.t, "the engine of "+name+" answers", func() error {
		_, err := get("http://" + address + "/health")
		return err
	})
	k.setStatus(name, e.ip, "True")
	k.mu.Lock()
	e.engine = engine
	k.mu.Unlock()
}

// setStatus reports a pod as ready, or not.
func (k *kubelet) setStatus(name, ip, ready string) {
	err := kubecluster.Call(k.api, http.MethodPatch, k.path()+"/"+name+"/status", kubecluster.Merge, fmt.Sprintf(
		`{"status": {"phase": "Running", "podIP": %q, "podIPs": [{"ip": %q}], "conditions": [{"type": "Ready", "status": %q}]}}`, ip, ip, ready), nil)
	if err != nil {
		k.t.Error(err)
	}
}

// end ends the engine of a pod, and then the pod.
func (k *kubelet) end(ctx context.Context, name string, e *podEngine) {
	if e != nil {
		select {
		case <-time.After(preStop):
		case <-ctx.Done():
		}
		e.engine.stop()
	}
	_ = kubecluster.Call(k.api, http.MethodDelete, k.path()+"/"+name, kubecluster.JSON, `{"gracePeriodSeconds": 0}`, nil)
}

// create has a controller create a pod on the node.
func (k *kubelet) create(name string, labels map[string]string) {
	k.t.Helper()
	pod, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "labels": labels},
		"spec": map[string]any{"nodeName": "n1", "containers": []any{map[string]any{"name": "c", "image": "example.test/c:1"}}},
	})
	if err == nil {
		err = kubecluster.Call(k.api, http.MethodPost, k.path(), kubecluster.JSON, string(pod), nil)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// remove has a controller delete a pod, which ends in its own time.
func (k *kubelet) remove(name string) {
	k.t.Helper()
	err := kubecluster.Call(k.api, http.MethodDelete, k.path()+"/"+name, kubecluster.JSON, `{"gracePeriodSeconds": 60}`, nil)
	if err != nil {
		k.t.Fatal(err)
	}
}
