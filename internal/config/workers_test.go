package config_test

import (
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
	if w.Name != "a" || w.Model != "m" || w.State != fleet.Ready || w.BlockSize != 32 || w.Ranks != 1 || w.KVEvents != "auto" {
		t.Errorf("%+v", w)
	}
}
