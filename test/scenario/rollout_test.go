package scenario

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/test/kubeapi"
	"github.com/stator-project/stator/test/kubecluster"
)

// TestRolloutOfADisaggregatedSetUnderLoad: the pods of a DisaggregatedSet are replaced by pods of another revision, one after the other, as its
// controller does. No request fails, and no prompt is computed in one revision for a decode worker of another.
func TestRolloutOfADisaggregatedSetUnderLoad(t *testing.T) {
	t.Parallel()
	testRollout(t, kubeapi.New(t).URL, 1, func() string { return "aaaa1111" }, func() string { return "bbbb2222" })
}

// TestRolloutOnARealAPIServer is the same with a real API server, a DisaggregatedSet there, and revisions that follow from its templates.
func TestRolloutOnARealAPIServer(t *testing.T) {
	c := kubecluster.Start(t)
	c.ApplyKind("sigs.k8s.io/lws@v0.9.0", "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml", "disaggregatedsets")
	c.Must("", "create", "namespace", namespaceOfRollout)
	apply := func(image string) string {
		role := func(name string, replicas int) string {
			return fmt.Sprintf(`{name: %s, spec: {replicas: %d, leaderWorkerTemplate: {size: 1, workerTemplate: {spec: {containers: [{name: engine, image: %q}]}}}}}`,
				name, replicas, image)
		}
		c.Must(fmt.Sprintf(`{apiVersion: disaggregatedset.x-k8s.io/v1, kind: DisaggregatedSet, metadata: {name: set}, spec: {roles: [%s, %s]}}`,
			role("prefill", 2), role("decode", 3)), "apply", "-n", namespaceOfRollout, "-f", "-")
		return revisionOfSet(t, c)
	}
	testRollout(t, c.URL, 2, func() string { return apply("example.test/engine:1") }, func() string { return apply("example.test/engine:2") })
}

const namespaceOfRollout = "llm"

// revisionOfSet returns the revision of the DisaggregatedSet: a hash of the templates of its roles, as its controller has it.
func revisionOfSet(t *testing.T, c *kubecluster.Cluster) string {
	t.Helper()
	var set struct {
		Spec struct {
			Roles []struct {
				Name string
				Spec struct{ LeaderWorkerTemplate json.RawMessage }
			}
		}
	}
	path := "/apis/disaggregatedset.x-k8s.io/v1/namespaces/" + namespaceOfRollout + "/disaggregatedsets/set"
	if err := c.Call(http.MethodGet, path, "", "", &set); err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	for _, r := range set.Spec.Roles {
		fmt.Fprint(h, r.Name, string(r.Spec.LeaderWorkerTemplate))
	}
	return hex.EncodeToString(h.Sum(nil))[:8]
}

// rollout plays the controller of a DisaggregatedSet.
type rollout struct {
	*kubelet
	parts *parts
}

// podOfSet returns the name of a pod of slice 0 of a DisaggregatedSet.
func podOfSet(revision, role string, ordinal int) string {
	return podOfSlice(0, revision, role, ordinal)
}

// podOfSlice returns the name of a pod of a LeaderWorkerSet: NAME-SLICE-REVISION-ROLE-ORDINAL.
func podOfSlice(slice int, revision, role string, ordinal int) string {
	return fmt.Sprintf("set-%d-%s-%s-%d", slice, revision, role, ordinal)
}

// sliceOfPod is the slice in the name of a pod.
func sliceOfPod(name string) string { return strings.Split(name, "-")[1] }

// revisionOfPod is the inverse of podOfSet.
func revisionOfPod(name string) string { return strings.Split(name, "-")[2] }

// add creates pods of both roles in slice 0, with their numbers.
func (r *rollout) add(revision string, prefill, decode []int) { r.addTo(0, revision, prefill, decode) }

// addTo creates pods of both roles in a slice, with their numbers.
func (r *rollout) addTo(slice int, revision string, prefill, decode []int) {
	r.t.Helper()
	for role, ordinals := range map[string][]int{"prefill": prefill, "decode": decode} {
		for _, n := range ordinals {
			r.create(podOfSlice(slice, revision, role, n), map[string]string{
				"disaggregatedset.x-k8s.io/name": "set", "disaggregatedset.x-k8s.io/role": role,
				"disaggregatedset.x-k8s.io/slice": strconv.Itoa(slice), "disaggregatedset.x-k8s.io/revision": revision,
				"leaderworkerset.sigs.k8s.io/worker-index": "0",
			})
		}
	}
}

// end deletes pods of both roles of slice 0.
func (r *rollout) end(revision string, prefill, decode []int) { r.endIn(0, revision, prefill, decode) }

// endIn deletes pods of both roles of a slice.
func (r *rollout) endIn(slice int, revision string, prefill, decode []int) {
	r.t.Helper()
	for role, ordinals := range map[string][]int{"prefill": prefill, "decode": decode} {
		for _, n := range ordinals {
			r.remove(podOfSlice(slice, revision, role, n))
		}
	}
}

// startParts starts Stator for the pods of the set.
func (r *rollout) startParts() {
	r.t.Helper()
	r.parts = startPartsFor(r.t, partsSettings{
		models: `models: [{name: sim, path: "builtin:sim", router: {prefill: remote}}]`,
		cluster: []string{
			"--kubernetes-api", r.api, "--namespace", r.namespace, "--pod-selector", "disaggregatedset.x-k8s.io/name=set", "--pod-ports", r.port,
		},
	})
}

// awaitWorkers waits until the router has exactly so many ready workers of each revision, as prefill+decode.
func (r *rollout) awaitWorkers(want map[string]string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("the workers are %v", want), func() error {
		found := map[string][2]int{}
		for _, w := range r.parts.fleet() {
			if w.State != "ready" {
				continue
			}
			n := found[revisionOfPod(w.Worker)]
			if strings.Contains(w.Worker, "-prefill-") {
				n[0]++
			} else {
				n[1]++
			}
			found[revisionOfPod(w.Worker)] = n
		}
		got := map[string]string{}
		for revision, n := range found {
			got[revision] = fmt.Sprintf("%d+%d", n[0], n[1])
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
}

// testRollout plays a rollout of 2 prefill and 3 decode workers from one revision to another: further pods come first, in steps that a
// controller takes. In some of them one revision has one role alone.
func testRollout(t *testing.T, api string, network int, first, second func() string) {
	t.Helper()
	a := first()
	k := &kubelet{t: t, api: api, namespace: namespaceOfRollout, net: network}
	k.play()
	r := &rollout{kubelet: k}
	r.add(a, []int{0, 1}, []int{0, 1, 2})

	r.startParts()
	r.awaitWorkers(map[string]string{a: "2+3"})

	p := r.parts
	served := &pairs{of: map[string]int{}, groupOf: revisionOfPod}
	l := p.loadOf(8, func(client, i int) error {
		r, err := p.answer("sim", client%2 == 0, 1000*client+i, 24)
		if err != nil {
			return err
		}
		return served.count(p.gateway, r.decision)
	})
	l.more(t, 60)
	b := second()
	for _, step := range []struct {
		prefill, decode       []int // of the new revision, which are added
		endPrefill, endDecode []int // of the old revision, which end then
		a, b                  string
	}{
		{nil, []int{0}, nil, nil, "2+3", "0+1"},           // the new revision has decode workers alone
		{[]int{0}, nil, []int{1}, []int{2}, "1+2", "1+1"}, // both have both
		{nil, []int{1}, nil, []int{1}, "1+1", "1+2"},      //
		{[]int{1}, nil, []int{0}, nil, "0+1", "2+2"},      // the old revision has decode workers alone
		{nil, []int{2}, nil, []int{0}, "", "2+3"},         //
	} {
		r.add(b, step.prefill, step.decode)
		eventually(t, "the further pods are workers", func() error {
			workers := p.fleet()
			for role, ordinals := range map[string][]int{"prefill": step.prefill, "decode": step.decode} {
				for _, n := range ordinals {
					if !slices.ContainsFunc(workers, func(w rank) bool { return w.Worker == podOfSet(b, role, n) }) {
						return errNotYet
					}
				}
			}
			return nil
		})
		l.more(t, 24)
		r.end(a, step.endPrefill, step.endDecode)
		want := map[string]string{b: step.b}
		if step.a != "" {
			want[a] = step.a
		}
		r.awaitWorkers(want)
		l.more(t, 40)
	}
	eventually(t, "the old pods are gone", func() error {
		pods, err := k.pods()
		if err == nil && len(pods) != 5 {
			err = fmt.Errorf("there are %d pods", len(pods))
		}
		return err
	})
	l.more(t, 40)
	l.stop()

	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d of %d requests failed, the last with: %v", n, n+l.ok.Load(), l.lastError.Load())
	}
	pods, err := k.pods()
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if revisionOfPod(pods[i].Metadata.Name) != b {
			t.Errorf("%s is left", pods[i].Metadata.Name)
		}
	}
	p.assertNothingBooked()
	if n := served.of["two"]; n != 0 {
		t.Errorf("%d pairs have two revisions, the last %s", n, served.mixed)
	}
	if served.of[a] == 0 || served.of[b] == 0 {
		t.Errorf("the pairs are %v", served.of)
	}
	t.Logf("%d answers: pairs of the old revision %d, of the new one %d, of two %d; with one leg %d",
		l.ok.Load(), served.of[a], served.of[b], served.of["two"], served.whole)
}

// TestSlicesOfADisaggregatedSetUnderLoad: each of two slices has both roles, and rolls out by itself. A slice loses its only prefill worker,
// and then its old revision. No request fails, and none is computed in one slice for a decode worker of another.
func TestSlicesOfADisaggregatedSetUnderLoad(t *testing.T) {
	t.Parallel()
	const a, b = "aaaa1111", "bbbb2222"
	k := &kubelet{t: t, api: kubeapi.New(t).URL, namespace: namespaceOfRollout, net: 3}
	k.play()
	r := &rollout{kubelet: k}
	for slice := range 2 {
		r.addTo(slice, a, []int{0}, []int{0, 1})
	}
	r.startParts()
	r.awaitWorkers(map[string]string{a: "2+4"})

	p := r.parts
	served := &pairs{of: map[string]int{}, groupOf: func(pod string) string { return revisionOfPod(pod) + "/" + sliceOfPod(pod) }}
	l := p.loadOf(6, func(client, i int) error {
		r, err := p.answer("sim", client%2 == 0, 1000*client+i, 24)
		if err != nil {
			return err
		}
		return served.count(p.gateway, r.decision)
	})
	l.more(t, 60)
	r.endIn(1, a, []int{0}, nil) // slice 1 has decode workers alone
	r.awaitWorkers(map[string]string{a: "1+4"})
	l.more(t, 40)
	r.addTo(1, b, []int{0}, []int{0, 1}) // slice 1 goes on to another revision
	r.awaitWorkers(map[string]string{a: "1+4", b: "1+2"})
	l.more(t, 40)
	r.endIn(1, a, nil, []int{0, 1})
	r.awaitWorkers(map[string]string{a: "1+2", b: "1+2"})
	l.more(t, 60)
	l.stop()

	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d of %d requests failed, the last with: %v", n, n+l.ok.Load(), l.lastError.Load())
	}
	p.assertNothingBooked()
	if n := served.of["two"]; n != 0 {
		t.Errorf("%d pairs have two slices or revisions, the last %s", n, served.mixed)
	}
	if served.of[a+"/0"] == 0 || served.of[a+"/1"] == 0 || served.of[b+"/1"] == 0 {
		t.Errorf("the pairs are %v", served.of)
	}
	t.Logf("%d answers, pairs %v; with one leg %d", l.ok.Load(), served.of, served.whole)
}

// pairs counts the pairs of prefill and decode workers that have served requests.
type pairs struct {
	groupOf func(pod string) string // whose pods may be a pair: the revision, or the revision and the slice

	mu    sync.Mutex
	of    map[string]int // by the group of both; "two" if they differ
	whole int            // requests with one leg
	mixed string         // the last pair of two groups
}

// count counts the pair of a request, by the decisions about its legs.
func (c *pairs) count(g *gateway, id string) error {
	var decode, prefill struct {
		Worker string
		Split  bool
	}
	if err := readDecision(g, id, &decode); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !decode.Split {
		c.whole++
		return nil
	}
	if err := readDecision(g, id+"-prefill0", &prefill); err != nil {
		return err
	}
	if prefill.Worker == "" { // it left between both decisions, and the decode worker computes the prompt
		c.whole++
		return nil
	}
	group := c.groupOf(decode.Worker)
	if c.groupOf(prefill.Worker) != group {
		group, c.mixed = "two", prefill.Worker+" and "+decode.Worker
	}
	c.of[group]++
	return nil
}

// readDecision reads a decision of the router.
func readDecision(g *gateway, id string, into any) error {
	page, err := g.read("/debug/decisions/" + id + "?format=json")
	if err == nil {
		err = json.Unmarshal([]byte(page), into)
	}
	if err != nil {
		return fmt.Errorf("read decision %s: %w", id, err)
	}
	return nil
}
