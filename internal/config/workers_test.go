package config_test

import (
	"fmt"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
)

// TestFleetWorkers: listed workers are ready, and have the block size of their model.
func TestFleetWorkers(t *testing.T) {
	cfg, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{
		name: m, path: "builtin:sim", blockSize: 32, workers: [{name: a, address: "10.0.0.1:80", engine: vllm, kvEvents: auto, taints: [fast]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}

	workers, err := cfg.FleetWorkers()
	if err != nil || len(workers) != 1 {
		t.Fatalf("%v, %v", workers, err)
	}
	w := workers[0]
	if w.Name != "a" || w.Model != "m" || w.State != fleet.Ready || w.BlockSize != 32 || w.Ranks != 1 || w.KVEvents != "auto" || w.HealthPath != "/health" {
		t.Errorf("%+v", w)
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
