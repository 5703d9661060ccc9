package advise

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
)

// graph is a fleet of Dynamo with two roles.
func graph(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/graph.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestConvert: a fleet of Dynamo becomes a configuration that is valid, with the model, numbers, roles and options of its engines, and with
// a comment for each field that is not taken over.
func TestConvert(t *testing.T) {
	p := &Options{From: "f", GPUKind: "H200"}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	c, err := p.Convert(graph(t))
	if err != nil || c.Manifests != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(c.Config)
	if err != nil {
		t.Fatalf("%v\n%s", err, c.Config)
	}
	m := &cfg.Models[0]
	prefill := &m.Launch[0]
	if m.Name != "Qwen/Qwen3-32B" || m.Path != "hf:Qwen/Qwen3-32B" || m.Router.Policy != "kv" || len(m.Launch) != 2 ||
		prefill.Role != "prefill" || prefill.Count != 3 || prefill.GPU != "H200" || prefill.Args["max-model-len"] != 32768 {
		t.Errorf("%+v", m)
	}
	for _, want := range []string{`"chat"`, "# - spec.services.Prefill.extraPodSpec.tolerations: ", "args --migration-limit: "} {
		if !bytes.Contains(c.Config, []byte(want)) {
			t.Errorf("%s is missing in\n%s", want, c.Config)
		}
	}
}

// TestConvertToManifests: the objects have the numbers, images and options of the fleet, and the configuration has them as its targets.
func TestConvertToManifests(t *testing.T) {
	for _, output := range Outputs() {
		p := &Options{From: "f", Output: output}
		c, err := p.Convert(graph(t))
		if err != nil {
			t.Errorf("%s: %v", output, err)
			continue
		}
		cfg, err := config.Parse(c.Config)
		if err != nil {
			t.Fatalf("%s: %v\n%s", output, err, c.Config)
		}
		for _, l := range cfg.Models[0].Launch {
			if l.Target == "" || l.Min != 1 || l.Max != 2*l.Count {
				t.Errorf("%s: %+v", output, l)
			}
		}
		for _, want := range []string{"image: registry.example/runtime:1.6.1\n", "- Qwen/Qwen3-32B\n", "# - spec.services.Frontend: "} {
			if !bytes.Contains(c.Manifests, []byte(want)) {
				t.Errorf("%s: %q is missing in\n%s", output, want, c.Manifests)
			}
		}
	}

	p := &Options{From: "f", Output: outputDeployment}
	if _, err := p.Convert(bytes.ReplaceAll(graph(t), []byte("image: registry.example/runtime:1.6.1"), nil)); err == nil ||
		!strings.Contains(err.Error(), "--image") {
		t.Error(err)
	}
	c, err := (&Options{Output: outputDeployment, Image: "i"}).Convert(graph(t))
	if err != nil || bytes.Contains(c.Manifests, []byte("registry.example")) || !bytes.Contains(c.Manifests, []byte("image: i\n")) {
		t.Fatalf("%v\n%s", err, c.Manifests)
	}
}

// TestPathOf: names of a hub are told from paths.
func TestPathOf(t *testing.T) {
	for model, want := range map[string]string{
		"Qwen/Qwen3-0.6B": "hf:Qwen/Qwen3-0.6B", "/models/qwen": "/models/qwen", "./qwen": "./qwen", "qwen": "qwen", "a/b/c": "a/b/c",
	} {
		if got := pathOf(model); got != want {
			t.Errorf("%s: %s, want %s", model, got, want)
		}
	}
}

// TestConvertIsRefused: flags of a question do not go with a fleet.
func TestConvertIsRefused(t *testing.T) {
	bad := map[string]Options{
		"--model-dir": {Model: "m"}, "--json": {AsJSON: true}, "--output": {Output: "pod"}, "--image": {Image: "i"},
	}
	for _, want := range slices.Sorted(maps.Keys(bad)) {
		p := bad[want]
		p.From = "f"
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
