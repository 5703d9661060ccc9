package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/advise"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/plan/propose"
	"github.com/stator-project/stator/test/conversations"
	"github.com/stator-project/stator/test/race"
)

// llamaFolder returns a model folder with the size of Llama-3.1-8B, and a small tokenizer.
func llamaFolder(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "llama")
	if err := os.CopyFS(folder, models.Sim()); err != nil {
		t.Fatal(err)
	}
	size, err := os.ReadFile("../../internal/perfmodel/testdata/models/llama-3.1-8b.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "config.json"), size, 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

// A proposal's configuration is valid for every kind of engine, and the planner reads the same engines from it.
func TestPlanWritesAConfiguration(t *testing.T) {
	model := llamaFolder(t)
	for _, engine := range propose.Engines() {
		file := filepath.Join(t.TempDir(), "stator.yaml")
		out, err := runCommand(t, "", "plan", "--model-dir", model, "--gpus", "8", "--gpu-kind", "h200", "--itl", "25ms", "--rate", "8",
			"--engine", engine, "--simulate=false", "--out", file)
		if err != nil || !strings.Contains(out, "Proposed: ") || !strings.Contains(out, "Wrote "+file) {
			t.Errorf("%s: %v\n%s", engine, err, out)
			continue
		}
		if out, err := runCommand(t, "", "validate", "--config", file); err != nil {
			t.Errorf("%s: %v, %s", engine, err, out)
		}
	}
}

// TestPlanPrintsManifests: the command prints nothing but YAML, and the configuration that it writes scales the same objects.
func TestPlanPrintsManifests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stator.yaml")
	out, err := runCommand(t, "", "plan", "--model-dir", llamaFolder(t), "--gpus", "8", "--gpu-kind", "h200", "--itl", "25ms", "--rate", "8",
		"--simulate=false", "--output", "leaderworkerset", "--image", "example.com/vllm:1", "--out", file)
	if err != nil || !strings.HasPrefix(out, "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\n") {
		t.Errorf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), `target: "leaderworkerset/llama"`) {
		t.Errorf("%v\n%s", err, text)
	}
	if out, err := runCommand(t, "", "validate", "--config", file); err != nil {
		t.Errorf("%v, %s", err, out)
	}
}

// TestPlanFromAGraph: a fleet of Dynamo is printed as manifests whose planner scales them, from a file or the standard input.
func TestPlanFromAGraph(t *testing.T) {
	graph, err := os.ReadFile("../../internal/advise/testdata/graph.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "stator.yaml")
	out, err := runCommand(t, string(graph), "plan", "--from", "-", "--output", "deployment", "--out", file)
	if err != nil || !strings.Contains(out, "kind: Deployment\n") || !strings.Contains(out, "# - spec.services.Frontend: ") {
		t.Errorf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "target: deployment/qwen-qwen3-32b-decode\n") {
		t.Errorf("%v\n%s", err, text)
	}

	out, err = runCommand(t, "", "plan", "--from", "../../internal/advise/testdata/graph.yaml")
	if err != nil || !strings.Contains(out, "\nkind: Stator\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := runCommand(t, "", "plan", "--from", "/nowhere"); err == nil {
		t.Error("no error about a file that is not there")
	}
}

// The answer as JSON: the simulation agrees with the prediction. How many prompts delay the steps of one request is left to chance, so a
// quantile of the ITL is predicted too short where engines do both.
func TestPlanIsSimulated(t *testing.T) {
	race.Skip(t)
	out, err := runCommand(t, "", "plan", "--model-dir", "builtin:sim", "--engine", "sim", "--gpus", "3", "--isl", "1000", "--osl", "100",
		"--ttft", "1s", "--itl", "30ms", "--rate", "10", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got advise.Summary
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Proposals) == 0 || !got.Proposals[0].Met || got.Simulated == nil {
		t.Fatalf("%+v", got)
	}
	p, r := got.Proposals[0], got.Simulated
	if r.ITL < 0.7*p.ITL || r.ITL > 1.5*p.ITL || r.E2E < 0.7*p.E2E || r.E2E > 1.3*p.E2E {
		t.Errorf("simulated %+v, predicted %+v", r, p)
	}
	if r.Missed > 0.1 || r.Rate < 9 || r.Rate > 11 {
		t.Errorf("simulated %+v", r)
	}
}

// A fleet that misses its targets in the simulation is not proposed, though the estimate prefers it.
func TestPlanIsConfirmed(t *testing.T) {
	race.Skip(t)
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	out, err := runCommand(t, "", "plan", "--model-dir", llamaFolder(t), "--gpus", "8", "--gpu-kind", "H200", "--dtype", "fp8", "--isl", "3000",
		"--osl", "300", "--ttft", "500ms", "--itl", "25ms", "--rate", "30")
	if err != nil || !strings.Contains(out, "The estimate prefers 3 × TP 1 aggregated with 8-bit KV, with which the simulation has") ||
		!strings.Contains(out, "Proposed: 2 × TP 1 prefill with 8-bit KV + 1 × TP 1 decode with 8-bit KV. ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A trace has the lengths, the rate and the share that caches spare.
func TestPlanForATrace(t *testing.T) {
	race.Skip(t)
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	var rows strings.Builder
	for _, row := range conversations.Rows(800, 1) {
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&rows, string(line))
	}
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(file, []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}

	out, err := runCommand(t, "", "plan", "--model-dir", llamaFolder(t), "--gpus", "8", "--gpu-kind", "H200", "--trace", file, "--ttft", "2s", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got advise.Summary
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	q := got.Request
	if q.Rate < 2 || q.Rate > 6 || q.Prompt < 5000 || q.Prompt > 30000 || q.Answer < 200 || q.Answer > 500 || q.Cached < 0.05 {
		t.Errorf("requests %+v", q)
	}
	if got.Simulated == nil || got.Simulated.Requests != 800 {
		t.Errorf("simulated %+v", got.Simulated)
	}
}

func TestPlanRefuses(t *testing.T) {
	model := llamaFolder(t)
	gguf := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(gguf, []byte("GGUF"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--model-dir " + gguf + " --gpu-kind H200":                                        "is a file: the size of a model is read from the config.json",
		"--model-dir /nowhere --gpu-kind H200":                                            "name a profile with --profile",
		"--model-dir " + model:                                                            "name the GPU with --gpu-kind",
		"--model-dir " + model + " --gpu-kind H2000":                                      "unknown: use A10",
		"--model-dir " + model + " --gpu-kind L4 --dtype bf16 --gpus 1 --itl 1ms --out x": "No fleet of 1 GPUs meets the targets",
		"--model-dir " + model + " --gpu-kind H200 --dtype int4 --out x":                  "cannot load them as int4",
		"--model-dir " + model + " --gpu-kind H200 --engine trtllm --dtype fp8 --out x":   "cannot load them as fp8",
		"--model-dir " + model + " --gpu-kind H200 --profile /nowhere":                    "load profile",
		"--model-dir " + model + " --gpu-kind H200 --trace /nowhere":                      "open trace",
		"--model-dir " + model + " --gpu-kind A10 --isl 2000000":                          "does not fit",
	} {
		_, err := runCommand(t, "", append([]string{"plan", "--simulate=false"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	for _, args := range []string{
		"", "--model-dir m --gpus 0", "--model-dir m --gpus 99999", "--model-dir m --engine x", "--model-dir m --dtype x", "--model-dir m --quantile 1",
		"--model-dir m --isl 0", "--model-dir m --osl NaN", "--model-dir m --spread 2", "--model-dir m --rate -1", "--model-dir m --rows 0", "--model-dir m --ttft -1s",
		"--model-dir m --profile-gpus 0",
	} {
		if _, err := runCommand(t, "", append([]string{"plan"}, strings.Fields(args)...)...); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
}
