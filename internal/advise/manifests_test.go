package advise

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/propose"
)

// manifest has the fields of an object that the test reads.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template             template
		LeaderWorkerTemplate struct {
			WorkerTemplate template `yaml:"workerTemplate"`
		} `yaml:"leaderWorkerTemplate"`
		Roles []struct {
			Name    string
			Scaling struct{ Mode string }
		}
		Components []struct {
			Name, Type     string
			Replicas       int
			ScalingAdapter map[string]any `yaml:"scalingAdapter"`
			PodTemplate    template       `yaml:"podTemplate"`
		}
		EndpointPickerRef struct{ Name string } `yaml:"endpointPickerRef"`
	}
}

type template struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct {
		Containers []struct {
			Name          string
			Image         string
			Command, Args []string
			Env           []struct{ Name, Value string }
			Ports         []struct{ Name string }
			Resources     struct{ Limits map[string]int }
		}
	}
}

// answerOf returns an answer with engines of these roles, on two GPUs each.
func answerOf(p *Options, roles ...fleet.Role) *Answer {
	a := &Answer{
		Deployment: propose.Deployment{Model: "Llama 3.1", Path: p.Model, Engine: p.Engine, GPU: "H200", StartUp: 100 * time.Second,
			Target: func(role fleet.Role) string { return p.target("Llama 3.1", role) }},
		Question: propose.Question{GPUs: 8, Targets: capacity.Targets{TTFT: time.Second, Quantile: 0.9}},
		list:     []propose.Proposal{{}},
	}
	for i, role := range roles {
		a.list[0].Pools = append(a.list[0].Pools, propose.Pool{Role: role, Replicas: i + 1, Engine: propose.Engine{GPUs: 2}})
	}
	return a
}

// read returns the objects of some manifests.
func read(t *testing.T, text []byte) (all []manifest) {
	t.Helper()
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		all = append(all, m)
	}
}

// TestManifests: each role is an object with the name that the configuration has as its target, whose pods have the engine's options, its
// GPUs, and the labels by which routers find them and their roles.
func TestManifests(t *testing.T) {
	for _, c := range []struct {
		output string
		roles  []fleet.Role
		names  []string // kind and name
		target string
	}{
		{outputDeployment, []fleet.Role{fleet.Aggregated}, []string{"Deployment llama-3-1"}, "deployment/llama-3-1"},
		{outputDeployment, []fleet.Role{fleet.Prefill, fleet.Decode}, []string{"Deployment llama-3-1-prefill", "Deployment llama-3-1-decode"},
			"deployment/llama-3-1-decode"},
		{outputLeaderWorkerSet, []fleet.Role{fleet.Prefill, fleet.Decode},
			[]string{"LeaderWorkerSet llama-3-1-prefill", "LeaderWorkerSet llama-3-1-decode"}, "leaderworkerset/llama-3-1-decode"},
		{outputDisaggregatedSet, []fleet.Role{fleet.Prefill, fleet.Decode}, []string{"DisaggregatedSet llama-3-1"},
			"disaggregatedset.x-k8s.io/v1/DisaggregatedSetRoleScaler/llama-3-1-decode"},
		{outputDynamo, []fleet.Role{fleet.Aggregated}, []string{"DynamoGraphDeployment llama-3-1"},
			"nvidia.com/v1beta1/DynamoGraphDeploymentScalingAdapter/llama-3-1-worker"},
		{outputDynamo, []fleet.Role{fleet.Prefill, fleet.Decode}, []string{"DynamoGraphDeployment llama-3-1"},
			"nvidia.com/v1beta1/DynamoGraphDeploymentScalingAdapter/llama-3-1-decode"},
		{outputLLMD, []fleet.Role{fleet.Aggregated}, []string{"Deployment llama-3-1", "InferencePool llama-3-1"}, "deployment/llama-3-1"},
		{outputLLMD, []fleet.Role{fleet.Prefill, fleet.Decode},
			[]string{"Deployment llama-3-1-prefill", "Deployment llama-3-1-decode", "InferencePool llama-3-1"}, "deployment/llama-3-1-decode"},
	} {
		for _, engine := range []string{"vllm", "sglang"} {
			p := &Options{Model: "/models/llama", Engine: engine, Output: c.output, Image: "example.com/engine:1"}
			a := answerOf(p, c.roles...)
			text, err := a.Manifests(p)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, m := range read(t, text) {
				names = append(names, m.Kind+" "+m.Metadata.Name)
				pod := m.Spec.Template
				switch {
				case c.output == outputDisaggregatedSet:
					if r := m.Spec.Roles; len(r) != 2 || r[0].Name != "prefill" || r[1].Scaling.Mode != "External" {
						t.Errorf("roles %+v", r)
					}
					continue
				case m.Kind == "InferencePool":
					if m.Spec.EndpointPickerRef.Name != "stator" {
						t.Errorf("%+v", m)
					}
					continue
				case c.output == outputDynamo:
					last := m.Spec.Components[len(c.roles)-1]
					if last.Type != last.Name || last.Replicas != len(c.roles) || last.ScalingAdapter == nil ||
						last.PodTemplate.Spec.Containers[0].Name != "main" {
						t.Errorf("component %+v", last)
					}
					pod = last.PodTemplate
				case c.output == outputLeaderWorkerSet:
					pod = m.Spec.LeaderWorkerTemplate.WorkerTemplate
				}
				checkPod(t, &pod, c.output == outputLLMD)
				if wrong := m.Spec.Selector.MatchLabels; m.Kind == "Deployment" && len(wrong) != len(pod.Metadata.Labels) {
					t.Errorf("%s selects %v of %v", m.Metadata.Name, wrong, pod.Metadata.Labels)
				}
			}
			if !slices.Equal(names, c.names) {
				t.Errorf("objects %q, want %q", names, c.names)
			}

			cfg, err := config.Parse(a.Deployment.Config(a.Question, a.Best()))
			if err != nil {
				t.Fatal(err)
			}
			if l := cfg.Models[0].Launch; l[len(l)-1].Target != c.target {
				t.Errorf("target %q, want %q", l[len(l)-1].Target, c.target)
			}
		}
	}
}

// checkPod checks what pods of all kinds have.
func checkPod(t *testing.T, pod *template, llmd bool) {
	t.Helper()
	c := pod.Spec.Containers[0]
	args := strings.Join(c.Args, " ")
	role := pod.Metadata.Labels["llm-d.ai/role"]
	label := "app"
	if llmd {
		label = "llm-d.ai/model"
	}
	if pod.Metadata.Labels[label] != "llama-3-1" || c.Image != "example.com/engine:1" || c.Command[0] != "python3" ||
		c.Resources.Limits["nvidia.com/gpu"] != 2 || c.Env[0].Name != "POD_IP" {
		t.Errorf("%+v", pod)
	}
	for _, want := range []string{"--host $(POD_IP) --port 8000", "/models/llama", `"endpoint":"tcp://*:5557"`} {
		if !strings.Contains(args, want) {
			t.Errorf("%q is not in %s", want, args)
		}
	}
	transfers := slices.ContainsFunc(c.Ports, func(p struct{ Name string }) bool { return p.Name == "transfer" })
	if transfers != (role != "" && role != "both") {
		t.Errorf("role %q, ports %+v", role, c.Ports)
	}
}

// TestManifestsAreRefused: what cannot be in a manifest is refused, with the reason. Weights of a hub are downloaded by the pod.
func TestManifestsAreRefused(t *testing.T) {
	p := &Options{Model: "/m", Engine: "vllm", Output: outputDisaggregatedSet, Image: "i"}
	if _, err := answerOf(p, fleet.Aggregated).Manifests(p); err == nil || !strings.Contains(err.Error(), "two roles at least") {
		t.Error(err)
	}
	p = &Options{Model: "builtin:sim", Engine: "sim", Output: outputDeployment, Image: "i"}
	if _, err := answerOf(p, fleet.Aggregated).Manifests(p); err == nil || !strings.Contains(err.Error(), "use vllm or sglang") {
		t.Error(err)
	}

	p = &Options{Model: "hf:meta-llama/Llama-3.1-8B", Engine: "vllm", Output: outputDeployment, Image: "i"}
	text, err := answerOf(p, fleet.Aggregated).Manifests(p)
	if err != nil || bytes.Contains(text, []byte("HF_HUB_OFFLINE")) || bytes.Contains(text, []byte("hostPath")) ||
		!bytes.Contains(text, []byte("- meta-llama/Llama-3.1-8B\n")) {
		t.Errorf("%v\n%s", err, text)
	}
	for _, bad := range []Options{
		{Output: "pod", Image: "i"}, {Output: outputDeployment}, {Image: "i"}, {Output: outputDeployment, Image: "i", AsJSON: true},
	} {
		bad.Model, bad.GPUs, bad.ProfileGPUs, bad.Engine, bad.DType = "m", 1, 1, "vllm", "auto"
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), "--image") && !strings.Contains(err.Error(), "--output") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
