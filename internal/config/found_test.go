package config

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

// TestFoundWorkers: workers that were discovered have the defaults of listed ones, and their models need no entry in a file.
func TestFoundWorkers(t *testing.T) {
	base, err := ParsePartial([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: listed, path: "builtin:sim"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	at := func(name, address, model string) Found {
		return Found{Name: name, Address: address, Epoch: 7, Engine: "vllm", Ranks: 1, BlockSize: 32, Model: model}
	}
	a, b := at("a", "10.0.0.1:8000", "qwen"), at("b", "10.0.0.2:8000", "listed")
	a.Root, a.Aliases = "Qwen/Qwen3-0.6B", []string{"small", "listed"}
	b.Role, b.Revision = fleet.Prefill, "r1"
	b.MaxRequests = 64
	c := at("c", "10.0.0.3:8000", "local")
	c.Root, c.Engine = "/models/local", "trtllm"

	gone := at("", "", "gone")
	got, err := base.With([]Found{a, b, c, gone, at("d", "nowhere", "qwen"), at("e", "10.0.0.5:1", "qwen")})
	if err == nil || !strings.Contains(err.Error(), `worker d of model qwen cannot be used: worker d: address "nowhere"`) {
		t.Errorf("error %v", err)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}

	for i, want := range []struct {
		name, path, aliases string
	}{{"listed", "builtin:sim", ""}, {"qwen", "hf:Qwen/Qwen3-0.6B", "small"}, {"local", "", ""}, {"gone", "", ""}} {
		m := got.Models[i]
		if m.Name != want.name || m.Path != want.path || strings.Join(m.Aliases, " ") != want.aliases || m.BlockSize != AutoBlockSize {
			t.Errorf("model %d: %s, path %q, aliases %q, %d tokens per block; want %+v", i, m.Name, m.Path, m.Aliases, m.BlockSize, want)
		}
	}

	workers, err := got.FleetWorkers()
	if err != nil || len(workers) != 4 {
		t.Fatalf("%d workers, %v", len(workers), err)
	}
	for i, want := range []fleet.Worker{
		{Name: "a", Model: "qwen", KVEvents: "auto"},
		{Name: "b", Model: "listed", KVEvents: "auto", Role: fleet.Prefill, Revision: "r1", Transfer: fleet.TransferNixl, MaxRequests: 64},
		{Name: "c", Model: "local"}, // its prompts are not read
		{Name: "e", Model: "qwen", KVEvents: "auto"},
	} {
		w := workers[i]
		w = fleet.Worker{Name: w.Name, Model: w.Model, KVEvents: w.KVEvents, Role: w.Role, Revision: w.Revision, Transfer: w.Transfer,
			MaxRequests: w.MaxRequests}
		if w != want || !workers[i].Reported || workers[i].HealthPath != "/health" || workers[i].TokensPerBlock() != 32 {
			t.Errorf("worker %d: %+v, want %+v", i, workers[i], want)
		}
	}

	again, _ := base.With([]Found{a})
	a.Epoch = 8
	restarted, _ := base.With([]Found{a})
	a.Taints, a.PlaceFrom = "zone=a,", fleet.ByPodLabels
	elsewhere, _ := base.With([]Found{a})
	if w := elsewhere.Found[0]; w.Taints != a.Taints || w.PlaceFrom != a.PlaceFrom || w.Epoch != restarted.Found[0].Epoch {
		t.Errorf("another place made %+v of %+v", w, restarted.Found[0])
	}
	if again.Found[0] != got.Found[0] || restarted.Found[0].Epoch == again.Found[0].Epoch {
		t.Error("the epoch of a worker is not that of its start")
	}
	if len(base.Found) != 0 || len(base.Models) != 1 || base.Models[0].BlockSize != AutoBlockSize {
		t.Errorf("the configuration of the file has changed: %+v", base.Models)
	}
}

// TestOnlyDiscoveryFinds: a file cannot have the fields of discovery.
func TestOnlyDiscoveryFinds(t *testing.T) {
	_, err := ParsePartial([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, "-": []}`))
	if err == nil || !strings.Contains(err.Error(), "is not a known key") {
		t.Error(err)
	}
	if _, err := Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator}`)); err == nil || !strings.Contains(err.Error(), "at least one model") {
		t.Error(err)
	}
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}
