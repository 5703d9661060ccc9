package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
)

// TestConfiguredNamesWorkers lists the engines of each node.
func TestConfiguredNamesWorkers(t *testing.T) {
	cfg, err := config.Parse([]byte(`apiVersion: stator.dev/v1alpha1
kind: Stator
models:
- name: Meta/Llama-3.1
  path: m
  launch:
  - {engine: sim, count: 1, args: {blocks: 64}}
  - {engine: sim, count: 2, node: n1, taints: [spot]}
`))
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string][]string{
		"": {"meta-llama-3-1-0"}, "n1": {"n1.meta-llama-3-1-1", "n1.meta-llama-3-1-2"}, "n2": nil,
	} {
		launches, err := Configured(cfg, node)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range launches {
			names = append(names, l.Name)
			if l.Kind != "sim" || l.Model != "Meta/Llama-3.1" || l.Self == "" || l.Python == "" || node == "" && l.Args["blocks"] != "64" {
				t.Errorf("%+v", l)
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("node %q: %v, want %v", node, names, want)
		}
	}
}

// TestConfiguredSlots: a launch has as many engines as its max, those above its count are spare, and another count renames none.
func TestConfiguredSlots(t *testing.T) {
	for count, want := range map[string]string{"1": "m-0 m-1* m-2* n.m-3 n.m-4", "3": "m-0 m-1 m-2 n.m-3 n.m-4"} {
		cfg, err := config.Parse([]byte(`apiVersion: stator.dev/v1alpha1
kind: Stator
planner: {connector: local}
models:
- name: m
  path: m
  launch: [{engine: sim, count: ` + count + `, min: 0, max: 3}, {engine: sim, count: 2, node: n}]
`))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, node := range []string{"", "n"} {
			launches, err := Configured(cfg, node)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range launches {
				name := l.Name
				if l.Spare {
					name += "*"
				}
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("count %s: %v, want %s", count, got, want)
		}
	}
}

// TestConfiguredHub: engines get the name of a model on a hub, because they download its weights. The simulated engine needs the path.
func TestConfiguredHub(t *testing.T) {
	for _, test := range []struct{ path, kind, want string }{
		{"hf:a/b", "vllm", "a/b"}, {"hf:a/b", "sim", "hf:a/b"}, {"hf:a/b@v1", "sim", "hf:a/b@v1"}, {"/models/b", "vllm", "/models/b"},
		{"hf:a/b@v1", "vllm", ""}, {"hf:b", "vllm", ""},
	} {
		l := config.Launch{Engine: test.kind, Role: "aggregated", Count: 1}
		got, err := Configured(&config.Config{Models: []config.Model{{Name: "m", Path: test.path, Launch: []config.Launch{l}}}}, "")
		if (err == nil) != (test.want != "") || err == nil && got[0].ModelPath != test.want {
			t.Errorf("%+v: %+v, %v", test, got, err)
		}
	}
}

// TestConfiguredErrors names the model of a role or taint that is not valid, and cuts long names.
func TestConfiguredErrors(t *testing.T) {
	for _, l := range []config.Launch{{Role: "cook", Count: 1}, {Role: "aggregated", Taints: []string{"Not Valid"}, Count: 1}} {
		if _, err := Configured(&config.Config{Models: []config.Model{{Name: "m", Launch: []config.Launch{l}}}}, ""); err == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
	long := "a-model-with-a-name-that-is-much-longer-than-forty-characters"
	if got := workerName("", long, 3); got != long[:maxModelInName]+"-3" {
		t.Error(got)
	}
}
