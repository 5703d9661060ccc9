package engine

import (
	"slices"
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
		"": {"meta-llama-3-1-0"}, "n1": {"n1-meta-llama-3-1-1", "n1-meta-llama-3-1-2"}, "n2": nil,
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
