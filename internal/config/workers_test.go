package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// TestFleetWorkers: listed workers are ready, and have the block size of their model.
func TestFleetWorkers(t *testing.T) {
	cfg, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{
		name: m, path: "builtin:sim", blockSize: 32, workers: [{name: a, address: "10.0.0.1:80", engine: vllm, kvEvents: auto, maxRequests: 8, taints: [fast]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}

	workers, err := cfg.FleetWorkers()
	if err != nil || len(workers) != 1 {
		t.Fatalf("%v, %v", workers, err)
	}
	w := workers[0]
	if w.Name != "a" || w.Model != "m" || w.State != fleet.Ready || w.BlockSize != 32 || w.Ranks != 1 || w.KVEvents != "auto" || w.MaxRequests != 8 || w.HealthPath != "/health" {
		t.Errorf("%+v", w)
	}
}

// TestKinds: a worker can be of every kind of engine, and a launch of every kind that agents start, with a role if the kind transfers
// KV caches.
func TestKinds(t *testing.T) {
	const head, worker = "{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: m, path: 'builtin:sim', ", "address: '10.0.0.1:80'"
	refused := func(yaml string) bool {
		_, err := config.Parse([]byte(head + yaml + "}]}"))
		return err != nil
	}
	for _, k := range engines.All() {
		if refused(fmt.Sprintf("workers: [{name: a, engine: %s, %s}]", k.Name, worker)) {
			t.Errorf("a worker of engine %s is refused", k.Name)
		}
		half := "{name: %s, role: %s, engine: %s, address: '10.0.0.%d:80'}"
		halves := fmt.Sprintf(half+", "+half, "a", "prefill", k.Name, 1, "b", "decode", k.Name, 2)
		if refused("workers: ["+halves+"]") == k.Transfers() {
			t.Errorf("engine %s with a role is refused: %t", k.Name, k.Transfers())
		}
		if refused(fmt.Sprintf("launch: [{engine: %s, command: [serve]}]", k.Name)) == k.IsLaunched() {
			t.Errorf("a launch of engine %s is refused: %t", k.Name, k.IsLaunched())
		}
		python := fmt.Sprintf("launch: [{engine: %s, command: [serve], python: python3}]", k.Name)
		if k.IsLaunched() && refused(python) == k.RunsInPython() {
			t.Errorf("an interpreter for engine %s is refused: %t", k.Name, k.RunsInPython())
		}
	}
}

// TestHealthPath: a listed worker is asked at its path, or not at all.
func TestHealthPath(t *testing.T) {
	for path, want := range map[string]string{"/ping": "/ping", "none": "", "ping": "error", "/a b": "error", "/a#b": "error", "": "error"} {
		cfg, err := config.Parse(fmt.Appendf(nil, `{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{
			name: m, path: "builtin:sim", workers: [{name: a, address: "10.0.0.1:80", healthPath: %q}]}]}`, path))
		if (err != nil) != (want == "error") {
			t.Errorf("%q: %v", path, err)
		}
		if err != nil {
			continue
		}
		if workers, err := cfg.FleetWorkers(); err != nil || workers[0].HealthPath != want {
			t.Errorf("%q: %v, %v", path, workers, err)
		}
	}
}

// TestHealthPathOfDynamo: a frontend is asked whether it serves the model, unless the file has another path.
func TestHealthPathOfDynamo(t *testing.T) {
	for more, want := range map[string]string{"": "/v1/models/org%2Fm/ready", ", healthPath: /live": "/live"} {
		cfg, err := config.Parse(fmt.Appendf(nil, `{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{
			name: org/m, path: "builtin:sim", workers: [{name: a, engine: dynamo, address: "10.0.0.1:80"%s}]}]}`, more))
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.Models[0].Workers[0].HealthPath; got != want {
			t.Errorf("%q: %s, want %s", more, got, want)
		}
	}
}

// TestAddressOfAWorker: an address has an IP or a DNS name. A name is no address of the worker yet.
func TestAddressOfAWorker(t *testing.T) {
	for text, isName := range map[string]bool{
		"10.0.0.1:80": false, "[::1]:80": false, "localhost:80": true, "engine-0.engines.default.svc.cluster.local.:80": true,
	} {
		cfg, err := withAddresses(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want := fleet.Worker{Address: text}
		if isName {
			want = fleet.Worker{Named: text}
		}
		if workers, err := cfg.FleetWorkers(); err != nil || workers[0].Address != want.Address || workers[0].Named != want.Named {
			t.Errorf("%s: %+v, %v", text, workers, err)
		}
	}

	for _, text := range []string{
		"", "10.0.0.1", "10.0.0.300:80", "10.0.0:80", "localhost", "localhost:", "localhost:0", "localhost:65536", "localhost:http",
		"a..b:80", "-a:80", "a b:80", "http://a:80", "::1:80", ":80", strings.Repeat("a", 254) + ":80",
	} {
		if _, err := withAddresses(text); err == nil || !strings.Contains(err.Error(), "use an IP and a port") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := withAddresses("Engine:80", "engine:80"); err == nil || !strings.Contains(err.Error(), "is taken by") {
		t.Errorf("one name twice: %v", err)
	}
}

// withAddresses parses a configuration with a worker at each of these addresses.
func withAddresses(addresses ...string) (*config.Config, error) {
	text := `{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: m, path: "builtin:sim", workers: [`
	for i, a := range addresses {
		text += fmt.Sprintf("{name: w%d, address: %q},", i, a)
	}
	return config.Parse([]byte(text + "]}]}"))
}
