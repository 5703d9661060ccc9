package plansettings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
)

const plannedHead = `apiVersion: stator.dev/v1alpha1
kind: Stator
models:
`

// settingsOf returns the settings of a configuration for plans. MODEL in it is a folder with the config.json of Llama-3.1-8B, and PROFILE
// the committed profile.
func settingsOf(t *testing.T, text string) (*plan.Settings, error) {
	t.Helper()
	model := t.TempDir()
	size, err := os.ReadFile("../../internal/perfmodel/testdata/models/llama-3.1-8b.json")
	if err != nil {
		t.Fatal(err)
	}
	profile, err := filepath.Abs("../../test/lab/profile")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "stator.yaml")
	text = strings.NewReplacer("MODEL", model, "PROFILE", profile).Replace(plannedHead + text)
	if err := os.WriteFile(filepath.Join(model, "config.json"), size, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := configfile.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return Settings(cfg)
}

// Launches of one role are one pool, and listed workers are a fixed part of it.
func TestPlanSettings(t *testing.T) {
	s, err := settingsOf(t, `
- name: a
  path: builtin:sim
  blockSize: 16
  targets: {ttft: 300ms, itl: 20ms, quantile: 0.95}
  launch:
  - {engine: sim, count: 2, min: 1, max: 4, startUp: 5s, args: {blocks: 100, engineSpeedup: 2, maxNumSeqs: 64, maxNumBatchedTokens: 2048}}
  - {engine: sim, count: 1, args: {tokenScale: 3}}
  workers:
  - {name: w, address: "127.0.0.1:9000"}
- name: b
  path: builtin:sim
  blockSize: 16
  workers:
  - {name: p, address: "127.0.0.1:9001", role: prefill}
  - {name: d, address: "127.0.0.1:9002", role: decode}
planner: {algorithm: sla, connector: local, interval: 2s, mode: load, headroom: 0.9, downAfter: 30s, minGPUs: 1, maxGPUs: 9, maxWatts: 5000,
  e2e: 9s}
`)
	if err != nil {
		t.Fatal(err)
	}
	if s.Budget != (plan.Budget{MinGPUs: 1, MaxGPUs: 9, MaxWatts: 5000}) {
		t.Errorf("budget %+v", s.Budget)
	}
	m := s.Models[0]
	if m.Algorithm != plan.AlgorithmSLA || m.Every != 2*time.Second || m.Tuning.Mode != plan.ModeLoad || m.Tuning.Headroom != 0.9 ||
		m.Tuning.DownAfter != 30*time.Second || m.Tuning.Forecast != "auto" {
		t.Errorf("model %+v", m)
	}
	if m.Targets.TTFT != 300*time.Millisecond || m.Targets.ITL != 20*time.Millisecond || m.Targets.E2E != 9*time.Second ||
		m.Targets.Quantile != 0.95 {
		t.Errorf("targets %+v", m.Targets)
	}

	listed := s.Models[1].Pools
	if len(m.Pools) != 1 || len(listed) != 2 || listed[0].Role != fleet.Prefill || listed[1].Role != fleet.Decode {
		t.Fatalf("pools %+v, %+v", m.Pools, listed)
	}
	a, d := m.Pools[0], listed[1]
	if a.Replicas != 4 || a.Min != 3 || a.Max != 6 || a.GPUs != 1 || a.StartUp != time.Minute || a.Doubt != SimulatedDoubt {
		t.Errorf("aggregated %+v", a)
	}
	if a.Engine.KVTokens != 1600 || a.Engine.MaxSeqs != 64 || a.Engine.MaxBatchedTokens != 2048 ||
		a.Engine.Timing != (perfmodel.Scaled{Timing: perfmodel.Polynomial{Speedup: 2}}) {
		t.Errorf("engine %+v", a.Engine)
	}
	if d.Replicas != 1 || d.Min != 1 || d.Max != 1 || d.Doubt != unknownDoubt || d.Engine.Timing == nil {
		t.Errorf("decode %+v", d)
	}
}

// Real engines are estimated from a profile, or from the data sheet of their GPU and the size of the model.
func TestPlanSettingsOfRealEngines(t *testing.T) {
	s, err := settingsOf(t, `
- name: measured
  profile: PROFILE
  path: builtin:sim
  launch:
  - {engine: vllm, gpu: H200, count: 1, args: {tensor-parallel-size: 2, max-num-seqs: 64}}
- name: estimated
  path: builtin:sim
  launch:
  - {engine: vllm, count: 1}
`)
	if err != nil {
		t.Fatal(err)
	}
	measured, unknown := s.Models[0].Pools[0], s.Models[1].Pools[0]
	if measured.GPUs != 2 || measured.Watts != 1400 || measured.Doubt != perfmodel.ProfileDoubt || measured.Engine.KVTokens < 100_000 ||
		measured.Engine.MaxSeqs != 64 {
		t.Errorf("with a profile %+v", measured)
	}
	if unknown.Watts != 0 || unknown.Doubt != unknownDoubt || unknown.Engine.Timing != (perfmodel.Polynomial{}) {
		t.Errorf("without any %+v", unknown)
	}

	s, err = settingsOf(t, `
- name: m
  path: MODEL
  launch:
  - {engine: vllm, gpu: h200, count: 2, role: prefill, args: {quantization: fp8, kv-transfer-config: {kv_connector: NixlConnector, kv_role: kv_both}}}
  - {engine: vllm, gpu: H200, count: 2, role: decode, args: {tensor_parallel_size: 2, kv-cache-dtype: fp8,
    kv-transfer-config: {kv_connector: NixlConnector, kv_role: kv_both}}}
`)
	if err != nil {
		t.Fatal(err)
	}
	p, d := s.Models[0].Pools[0], s.Models[0].Pools[1]
	if p.Role != fleet.Prefill || p.GPUs != 1 || p.Watts != 700 || p.Doubt != perfmodel.RooflineDoubt || p.Engine.KVTokens < 800_000 ||
		p.Engine.KVTokens > 1_000_000 {
		t.Errorf("prefill %+v", p)
	}
	if d.GPUs != 2 || d.Watts != 1400 || d.Engine.KVTokens < 3_000_000 || d.Engine.KVTokens > 4_000_000 {
		t.Errorf("decode %+v", d)
	}
}

func TestPlanSettingsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"- {name: m, path: builtin:sim, launch: [{engine: vllm, gpu: H200}]}":                       "set the model's profile, or remove gpu",
		"- {name: m, path: builtin:sim, launch: [{engine: vllm, args: {max-num-seqs: many}}]}":      `args.max-num-seqs is "many"`,
		"- {name: m, path: builtin:sim, launch: [{engine: sim, args: {engineSpeedup: fast}}]}":      "args.engineSpeedup",
		"- {name: m, path: builtin:sim, launch: [{engine: vllm, args: {tensor-parallel-size: 0}}]}": "args.tensor-parallel-size",
		"- {name: m, path: builtin:sim, profile: /nowhere, launch: [{engine: sim}]}":                "load profile",
	} {
		if _, err := settingsOf(t, text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "models[0]") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestIdlePlanSettings: engines of a model with idleAfter may all end, unless the file keeps some.
func TestIdlePlanSettings(t *testing.T) {
	s, err := settingsOf(t, `
- {name: m, path: "builtin:sim", idleAfter: 10m, launch: [{engine: sim, count: 2}]}
planner: {connector: local}
`)
	if err != nil {
		t.Fatal(err)
	}
	m := s.Models[0]
	if p := m.Pools[0]; m.IdleAfter != 10*time.Minute || p.Min != 0 || p.Replicas != 2 || p.Max != 2 {
		t.Errorf("%v, %+v", m.IdleAfter, p)
	}
}
