package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/kubeapi"
	"github.com/stator-project/stator/test/testkit"
)

// TestSelections reads the flags that select pods.
func TestSelections(t *testing.T) {
	for _, c := range []struct {
		pools *pools
		home  string
		want  string // of all selections, or of the error
	}{
		{&pools{names: "qwen"}, "llm", "InferencePool llm/qwen"},
		{&pools{names: "qwen,other/llama"}, "llm", "InferencePool llm/qwen, InferencePool other/llama"},
		{&pools{selector: "app=vllm", ports: "8000,8001"}, "llm", "pods of llm with app=vllm [8000 8001]"},
		{&pools{names: "qwen"}, "", "name the namespace of the pods with --namespace"},
		{&pools{selector: "app=vllm", ports: "http"}, "llm", "--pod-ports is"},
		{&pools{selector: "app=vllm", ports: "0"}, "llm", "--pod-ports is"},
	} {
		all, err := c.pools.selections(c.home)
		var got []string
		for i := range all {
			text := all[i].String()
			if len(all[i].Ports) > 0 {
				text += fmt.Sprint(" ", all[i].Ports)
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); err == nil && text != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %v; want %s", text, err, c.want)
		}
	}
}

// TestModelsOfACluster: models come from the engines of pods, in the order of their names, and stay known while they have no pod.
func TestModelsOfACluster(t *testing.T) {
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).IP.To4()
		fmt.Fprintf(w, `{"data": [{"id": "model-%d", "root": "ORG/model-%[1]d", "parent": null}]}`, at[3])
	})}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })

	api := kubeapi.New(t)
	p := &pools{selector: "app=v", ports: fmt.Sprint(ln.Addr().(*net.TCPAddr).Port), namespace: "llm", api: api.URL}
	log := slog.New(slog.DiscardHandler)
	if err := p.open(nil, log, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	put := func(name string, number int, ready bool) {
		api.PutPod(kubeapi.Pod{
			Namespace: "llm", Name: name, UID: name, IP: fmt.Sprintf("127.57.0.%d", number), Labels: map[string]string{"app": "v"}, Ready: ready,
		})
	}
	put("a", 3, true)
	put("b", 2, true)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.source.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })

	first, err := p.await(ctx, config.Default(), log)
	if err != nil {
		t.Fatal(err)
	}
	show := func(c *config.Config) string {
		text := ""
		for i := range c.Models {
			text += c.Models[i].Name + " " + c.Models[i].Path + " "
		}
		for i := range c.Found {
			text += c.Found[i].Name
		}
		return text
	}
	const both = "model-2 hf:ORG/model-2 model-3 hf:ORG/model-3 "
	if got := show(first); got != both+"ab" {
		t.Errorf("%s", got)
	}

	// A pod becomes ready while the process is built, after the first look and before changes are followed.
	late := kubeapi.Pod{Namespace: "llm", Name: "c", UID: "c", IP: "127.57.1.3", Labels: map[string]string{"app": "v"}, Ready: true}
	api.PutPod(late)
	testkit.Eventually(t, "the late pod to be found", func() bool { return len(p.source.Workers()) == 3 })
	applied := make(chan string, 100)
	go func() {
		_ = p.follow(ctx, log, func(c *config.Config) error {
			applied <- show(c)
			return nil
		})
	}()
	last := ""
	await := func(want string) {
		t.Helper()
		testkit.Eventually(t, want, func() bool {
			for len(applied) > 0 {
				last = <-applied
			}
			return last == want
		})
	}
	await(both + "abc")
	api.DeletePod("llm", "c")
	put("a", 3, false)
	await(both + "b")
	put("b", 2, false)
	await(both)
	put("c", 1, true)
	await("model-1 hf:ORG/model-1 " + both + "c")
}
