package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/test/kubeapi"
)

// A planner prints one plan of a cluster with its changes, and changes nothing. Or it carries the plan out, and ends when that is done, or
// with the reason why it cannot be. The complaint is ai-dynamo/dynamo's 13565: the path from the plan to the pods.
func TestPlannerOnce(t *testing.T) {
	ln, err := net.Listen("tcp", "127.58.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	engine := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data": [{"id": "llama", "parent": null}]}`)
	})}
	go func() { _ = engine.Serve(ln) }()
	t.Cleanup(func() { _ = engine.Close() })

	api := kubeapi.New(t)
	deploy := func(replicas int) {
		for n := range replicas {
			name := fmt.Sprint("llama-x", n)
			api.PutPod(kubeapi.Pod{
				Namespace: "llm", Name: name, UID: name, IP: "127.58.0.1", Labels: map[string]string{"app": "llama"}, Ready: true,
				Owner: "ReplicaSet", Created: time.Now(),
			})
		}
	}
	deploy(2)
	api.PutScaled(kubeapi.Scaled{
		APIVersion: "apps/v1", Kind: "Deployment", Plural: "deployments", Namespace: "llm", Name: "llama", Replicas: 2, Selector: "app=llama",
		Changed: deploy,
	})
	server, err := bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: -1, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "stator.yaml")
	text := fmt.Sprintf(`apiVersion: stator.dev/v1alpha1
kind: Stator
bus: {url: %q}
planner: {algorithm: sla, connector: kubernetes, interval: 1s}
models:
- name: llama
  launch: [{engine: vllm, count: 3, min: 3, max: 4, target: deployment/llama}]
`, server.URL())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(mode string) (string, error) {
		var out, log bytes.Buffer
		err := runPlanner(t.Context(), environment{out: &out, err: &log, hard: t.Context()}, []string{
			"--config", file, "--admin-address", "127.0.0.1:0", "--kubernetes-api", api.URL, "--namespace", "llm",
			"--pod-selector", "app=llama", "--pod-ports", fmt.Sprint(ln.Addr().(*net.TCPAddr).Port), mode,
		})
		if t.Failed() || err != nil {
			t.Logf("%s: %v\n%s", mode, err, log.String())
		}
		return out.String(), err
	}

	out, err := run("--dry-run")
	if change := regexp.MustCompile(`(?m)^llama +aggregated +Deployment llm/llama +2 +3 +-`); err != nil || !change.MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
	if n := len(api.Writes()); n != 0 {
		t.Errorf("--dry-run has written %d numbers", n)
	}
	out, err = run("--once")
	if n := api.Replicas("llama"); err != nil || n != 3 {
		t.Errorf("%d replicas, %v\n%s", n, err, out)
	}

	api.SetScale("llama", "kubectl", 2)
	api.PutAutoscaler("llm", "hpa", "llama")
	out, err = run("--once")
	if err == nil || !strings.Contains(err.Error(), "HorizontalPodAutoscaler hpa scales Deployment llm/llama") {
		t.Errorf("%v\n%s", err, out)
	}
}
