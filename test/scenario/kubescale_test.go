package scenario

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/test/kubecluster"
)

// streamLength is how long the streams of TestScaleOnARealAPIServer last, at the least.
var streamLength = flag.Duration("scale.stream", 30*time.Second, "length of the streams that live through a change of numbers")

// scaled is an object that the planner scales, whose pods serve a model of the same name.
type scaled struct{ name, kind, target string }

var scaledObjects = []scaled{
	{"sim", "deployment", "deployment/sim"},
	{"sts", "statefulset", "statefulset/sts"},
	{"lws", "leaderworkerset", "leaderworkerset/lws"},
}

// The engines are so slow that six of them serve what the trace asks for at its height: a token takes 115 ms.
const (
	speedup   = "0.05"
	tokenTime = 115 * time.Millisecond
)

// step is a step of the trace: requests for each model, and the words of their prompts.
type step struct{ aSecond, words int }

var (
	low  = step{1, 20}
	high = step{9, 1000}
)

// TestScaleOnARealAPIServer: the numbers of a Deployment, a StatefulSet and a LeaderWorkerSet go from 2 to 6 and back, as requests come by a
// trace. Streams that are longer than that lose no token, and no request fails. An object is changed once in 5 s at most.
func TestScaleOnARealAPIServer(t *testing.T) {
	c := kubecluster.Start(t)
	c.ApplyKind("sigs.k8s.io/lws@v0.9.0", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml", "leaderworkersets")
	c.Must("", "create", "namespace", "llm")
	k := &kubelet{t: t, api: c.URL, namespace: "llm", net: 3, flags: func(labels map[string]string) []string {
		return []string{"--model", labels["app"], "--engine-speedup", speedup}
	}}
	k.play()
	createScaled(t, c)

	config := "planner: {connector: kubernetes, algorithm: sla, interval: 1s, downAfter: 10s, ttft: 5s, itl: 2s, drainTimeout: 1h}\nmodels:\n"
	for _, o := range scaledObjects {
		config += fmt.Sprintf(`- {name: %s, path: "builtin:sim", launch: [{engine: sim, count: 2, min: 2, max: 6, startUp: 5s,
    args: {engineSpeedup: "%s"}, target: %s}]}
`, o.name, speedup, o.target)
	}
	p := startPartsFor(t, partsSettings{models: config, cluster: []string{
		"--kubernetes-api", c.URL, "--namespace", "llm", "--pod-selector", "scaled=yes", "--pod-ports", k.port,
	}})
	s := &scaling{t: t, cluster: c, parts: p}
	s.now.Store(&low)
	s.send()

	s.stream(2)
	s.awaitReplicas(2)
	s.now.Store(&high)
	s.awaitReplicas(6)
	s.stream(6)
	eventually(t, "all streams have begun", func() error {
		if n := s.begun.Load(); n < s.streams.Load() {
			return fmt.Errorf("%d of %d", n, s.streams.Load())
		}
		return nil
	})
	s.now.Store(&low)
	s.awaitReplicas(2)
	s.stop()
	s.report()
	p.assertNothingBooked()
}

// createScaled creates the objects, and plays the controller of LeaderWorkerSets, which has a StatefulSet make its leaders.
func createScaled(t *testing.T, c *kubecluster.Cluster) {
	t.Helper()
	apply := func(object string, args ...any) {
		c.Must(fmt.Sprintf(object, args...), "apply", "-n", "llm", "-f", "-")
	}
	const workload = `{apiVersion: apps/v1, kind: %s, metadata: {name: %s}, spec: {replicas: 2, selector: {matchLabels: {%s}}, template: {
		metadata: {labels: {%[3]s, app: %[2]s, scaled: "yes"}},
		spec: {terminationGracePeriodSeconds: 3600, containers: [{name: c, image: example.test/c:1}]}}}}`
	apply(workload, "Deployment", "sim", "app: sim")
	apply(workload, "StatefulSet", "sts", "app: sts")
	apply(workload, "StatefulSet", "lws", `leaderworkerset.sigs.k8s.io/name: lws, leaderworkerset.sigs.k8s.io/worker-index: "0"`)
	apply(`{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: lws}, spec: {replicas: 2,
		leaderWorkerTemplate: {size: 1, workerTemplate: {spec: {containers: [{name: c, image: example.test/c:1}]}}}}}`)
	c.Must("", "patch", "leaderworkerset", "lws", "-n", "llm", "--subresource=status", "--type=merge", "-p",
		`{"status": {"hpaPodSelector": "leaderworkerset.sigs.k8s.io/name=lws,leaderworkerset.sigs.k8s.io/worker-index=0"}}`)

	ctx, stop := context.WithCancel(context.Background())
	var controller sync.WaitGroup
	controller.Go(func() {
		last := 2
		for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
			n, err := replicasOf(c, &scaledObjects[2])
			if err != nil || n == last {
				continue
			}
			body := fmt.Sprintf(`{"spec": {"replicas": %d}}`, n)
			if c.Call(http.MethodPatch, "/apis/apps/v1/namespaces/llm/statefulsets/lws/scale", kubecluster.Merge, body, nil) == nil {
				last = n
			}
		}
	})
	t.Cleanup(func() {
		stop()
		controller.Wait()
	})
}

// replicasOf returns the number that an object asks for.
func replicasOf(c *kubecluster.Cluster, o *scaled) (int, error) {
	group := "apps/v1"
	if o.kind == "leaderworkerset" {
		group = "leaderworkerset.x-k8s.io/v1"
	}
	var scale struct{ Spec struct{ Replicas int } }
	err := c.Call(http.MethodGet, "/apis/"+group+"/namespaces/llm/"+o.kind+"s/"+o.name+"/scale", "", "", &scale)
	return scale.Spec.Replicas, err
}

// scaling is the load of the trace, and its results.
type scaling struct {
	t       *testing.T
	cluster *kubecluster.Cluster
	parts   *parts

	now     atomic.Pointer[step]
	stopped atomic.Bool
	sending sync.WaitGroup

	served, failed, streams, begun, holes atomic.Int64
	lastError                             atomic.Value
}

// send sends short requests to all models, at the rate of the trace, until stop.
func (s *scaling) send() {
	for _, o := range scaledObjects {
		s.sending.Go(func() {
			for i := 0; !s.stopped.Load(); i++ {
				now := s.now.Load()
				s.sending.Go(func() {
					_, err := s.read(o.name, fmt.Sprintf("%d is a prompt of%s", i, strings.Repeat(" words", now.words)), 4, func() {})
					s.count(err)
				})
				time.Sleep(time.Second / time.Duration(now.aSecond))
			}
		})
	}
	s.t.Cleanup(s.stop)
}

// stop waits until all requests have ended.
func (s *scaling) stop() {
	s.stopped.Store(true)
	s.sending.Wait()
}

// count counts a request.
func (s *scaling) count(err error) {
	if err != nil {
		s.failed.Add(1)
		s.lastError.Store(err.Error())
		return
	}
	s.served.Add(1)
}

// stream starts so many long streams of each model.
func (s *scaling) stream(n int) {
	tokens := int(*streamLength / tokenTime)
	for _, o := range scaledObjects {
		for i := range n {
			s.streams.Add(1)
			s.sending.Go(func() {
				got, err := s.read(o.name, fmt.Sprintf("stream %d of %s", i, o.name), tokens, func() { s.begun.Add(1) })
				s.holes.Add(int64(tokens - got))
				s.count(err)
			})
		}
	}
}

// read reads a stream, and returns the number of its tokens. It calls begun at the first one.
func (s *scaling) read(model, prompt string, tokens int, begun func()) (got int, err error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": tokens, "stream": true, "ignore_eos": true})
	if err != nil {
		return 0, err
	}
	resp, err := (&http.Client{}).Post(s.parts.url+"/v1/completions", kubecluster.JSON, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("stream of %s: %w", model, err)
	}
	defer func() { _ = resp.Body.Close() }()
	done := false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case data == "[DONE]":
			done = true
		case isData:
			if got == 0 {
				begun()
			}
			got++
		}
	}
	if err = lines.Err(); err == nil && (!done || resp.StatusCode != http.StatusOK) {
		err = errors.New("it has no regular end")
	}
	if err != nil {
		return got, fmt.Errorf("stream of %s: %s, %d of %d tokens: %w", model, resp.Status, got, tokens, err)
	}
	return got, nil
}

// awaitReplicas waits until all objects ask for a number, and as many pods serve.
func (s *scaling) awaitReplicas(n int) {
	s.t.Helper()
	began := time.Now()
	for end := began.Add(*streamLength*3 + 3*time.Minute); ; time.Sleep(500 * time.Millisecond) {
		workers := map[string]int{}
		for _, w := range s.parts.fleet() {
			if w.State == "ready" {
				workers[strings.SplitN(w.Worker, "-", 2)[0]]++
			}
		}
		var missing []string
		for i := range scaledObjects {
			o := &scaledObjects[i]
			if asks, err := replicasOf(s.cluster, o); err != nil || asks != n || workers[o.name] != n {
				missing = append(missing, fmt.Sprintf("%s asks for %d and has %d, %v", o.target, asks, workers[o.name], err))
			}
		}
		if len(missing) == 0 {
			s.t.Logf("all have %d replicas after %v", n, time.Since(began).Round(time.Second))
			return
		}
		if time.Now().After(end) {
			page, _ := get("http://" + s.parts.plannerAdmin + "/debug/plan")
			s.t.Fatalf("not %d replicas: %v\n%s", n, missing, page)
		}
	}
}

// scaledLine is a line of the planner's log about a number that it has set.
var scaledLine = regexp.MustCompile(`time=(\S+) .*msg=scaled target="(\S+) \S+" from=(\d+) to=(\d+)`)

// report prints the results, and fails the test if they are not as they must be.
func (s *scaling) report() {
	last, least, writes := map[string]time.Time{}, map[string]time.Duration{}, map[string][]string{}
	for _, line := range scaledLine.FindAllStringSubmatch(s.parts.planner.out.String(), -1) {
		at, err := time.Parse(time.RFC3339, line[1])
		if err != nil {
			s.t.Fatal(err)
		}
		kind := line[2]
		if before, known := last[kind]; known && (least[kind] == 0 || at.Sub(before) < least[kind]) {
			least[kind] = at.Sub(before)
		}
		last[kind] = at
		writes[kind] = append(writes[kind], line[3]+">"+line[4])
	}
	for kind, all := range writes {
		s.t.Logf("%s: %d PATCHes, %s, the closest two %v apart", kind, len(all), strings.Join(all, " "), least[kind].Round(100*time.Millisecond))
		if least[kind] != 0 && least[kind] < 4900*time.Millisecond {
			s.t.Errorf("%s was changed twice within 5 s", kind)
		}
	}
	s.t.Logf("%d requests and %d streams of %v: %d failed, %d holes", s.served.Load(), s.streams.Load(), *streamLength, s.failed.Load(),
		s.holes.Load())
	if s.failed.Load() > 0 || s.holes.Load() != 0 || len(writes) != len(scaledObjects) {
		s.t.Errorf("the last failure is %v", s.lastError.Load())
	}
}
