package advise

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/workeragent/engine"
)

// The kinds of objects that run a proposal's engines in Kubernetes.
const (
	outputDeployment       = "deployment"
	outputLeaderWorkerSet  = "leaderworkerset"
	outputDisaggregatedSet = "disaggregatedset"
	outputLLMD             = "llm-d"
)

// outputDynamo is the object of Dynamo's operator.
var outputDynamo = engines.Dynamo.Name

// Outputs lists them.
func Outputs() []string {
	return []string{outputDeployment, outputLeaderWorkerSet, outputDisaggregatedSet, outputDynamo, outputLLMD}
}

// object is an object of Kubernetes, or a part of one.
type object = map[string]any

// Manifests returns the objects that run the proposal's engines, as YAML: one for each role, or a single one that has the roles. The
// engines have the options that an agent would start them with. Their pods have a label of the model, and of their role.
func (a *Answer) Manifests(p *Options) ([]byte, error) {
	cfg, err := config.Parse(a.Deployment.Config(a.Question, a.Best()))
	if err != nil {
		return nil, fmt.Errorf("the proposal's configuration: %w", err)
	}
	return p.manifests(&cfg.Models[0], func(string) string { return p.Image })
}

// manifests returns the objects that run the engines of a model, each with the image of its role.
func (p *Options) manifests(m *config.Model, image func(role string) string) ([]byte, error) {
	var objects, roles []object
	for i := range m.Launch {
		l := &m.Launch[i]
		labels := p.labels(m.Name, l.Role)
		pod, err := podOf(m, l, image(l.Role), labels)
		if err != nil {
			return nil, err
		}
		name := nameOf(m.Name, l.Role)
		set := object{"replicas": l.Count, "leaderWorkerTemplate": object{"size": 1, "workerTemplate": pod}}
		switch p.Output {
		case outputDeployment, outputLLMD:
			objects = append(objects, newObject("apps/v1", "Deployment", name, object{
				"replicas": l.Count, "selector": object{"matchLabels": labels}, "template": pod,
			}))
		case outputLeaderWorkerSet:
			objects = append(objects, newObject("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, set))
		case outputDisaggregatedSet:
			roles = append(roles, object{"name": l.Role, "scaling": object{"mode": "External"}, "spec": set})
		case outputDynamo:
			roles = append(roles, componentOf(l, pod))
		}
	}

	switch name := nameOf(m.Name, ""); p.Output {
	case outputDisaggregatedSet:
		if len(roles) < 2 {
			return nil, fmt.Errorf("the fleet has engines that do both parts of a request, and a DisaggregatedSet has two roles at "+
				"least: use --output %s or %s", outputDeployment, outputLeaderWorkerSet)
		}
		objects = append(objects, newObject("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", name, object{"roles": roles}))
	case outputDynamo:
		objects = append(objects, newObject("nvidia.com/v1beta1", "DynamoGraphDeployment", name, object{
			"backendFramework": m.Launch[0].Engine, "components": roles,
		}))
	case outputLLMD:
		objects = append(objects, newObject("inference.networking.k8s.io/v1", "InferencePool", name, object{
			"selector":          object{"matchLabels": p.labels(m.Name, "")},
			"targetPorts":       []object{{"number": engine.PodPort}},
			"endpointPickerRef": object{"name": pickerService, "port": object{"number": pickerPort}},
		}))
	}
	return encode(objects)
}

// The Service of the routers, if the chart was installed with the name "stator".
const (
	pickerService = "stator"
	pickerPort    = 9002
)

// componentOf returns the component of a DynamoGraphDeployment whose pods are the engines of a launch. Dynamo's operator fills the
// container "main" in, as far as the pod leaves something open: so the pod has probes and a command.
func componentOf(l *config.Launch, pod object) object {
	spec := pod["spec"].(object)
	spec["containers"].([]object)[0]["name"] = "main"
	return object{
		"name": componentName(l.Role), "type": componentName(l.Role), "replicas": l.Count,
		"scalingAdapter":         object{},      // creates the object that a planner scales
		"sharedMemorySize":       "0",           // the pod has its own
		"runtimeVersionOverride": dynamoVersion, // an image of a stock engine names no version of Dynamo
		"podTemplate":            pod,
	}
}

// dynamoVersion is the release of Dynamo whose objects are printed.
const dynamoVersion = "1.6.1"

// componentName returns the name of the component of a role, which is also its type.
func componentName(role string) string {
	if role == fleet.Aggregated.String() {
		return "worker"
	}
	return role
}

// target returns the object whose replicas the engines of a role are, as launch[].target names it.
func (p *Options) target(model string, role fleet.Role) string {
	name := nameOf(model, role.String())
	switch p.Output {
	case outputDisaggregatedSet:
		return "disaggregatedset.x-k8s.io/v1/DisaggregatedSetRoleScaler/" + name
	case outputDynamo:
		return "nvidia.com/v1beta1/DynamoGraphDeploymentScalingAdapter/" + nameOf(model, "") + "-" + componentName(role.String())
	case outputLLMD:
		return outputDeployment + "/" + name
	}
	return p.Output + "/" + name
}

// nameOf returns the name of an object of a model's role. The role of engines that do both is left out.
func nameOf(model, role string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(model))
	clean = strings.Trim(clean[:min(len(clean), maxObjectName)], "-")
	clean = cmp.Or(clean, "model")
	if clean[0] >= '0' && clean[0] <= '9' {
		clean = "m" + clean // the name of a Service begins with a letter
	}
	if role == "" || role == fleet.Aggregated.String() {
		return clean
	}
	return clean + "-" + role
}

// maxObjectName leaves room for a role, and for what controllers add to the names of pods.
const maxObjectName = 30

// labels returns the labels of a role's pods, or of all pods of a model if the role is empty. Routers find pods by all but the last one,
// and read their role from that.
func (p *Options) labels(model, role string) object {
	out := object{"app": nameOf(model, "")}
	if p.Output == outputLLMD {
		out = object{"llm-d.ai/inference-serving": "true", "llm-d.ai/model": nameOf(model, "")}
	}
	switch {
	case role == "":
	case role != fleet.Aggregated.String():
		out[roleLabel] = role
	case p.Output == outputLLMD:
		out[roleLabel] = "both"
	}
	return out
}

// roleLabel is the label of a pod's role.
const roleLabel = "llm-d.ai/role"

func newObject(version, kind, name string, spec object) object {
	return object{"apiVersion": version, "kind": kind, "metadata": object{"name": name}, "spec": spec}
}

// The times of a pod. It ends when its longest answer has had the time to end, and routers learn of the end before the engine does.
const (
	podGraceSeconds  = 600
	podLeaveSeconds  = 5
	podProbeSeconds  = 5
	podPatientStarts = 4 // start-up times, after which the kubelet restarts the engine
)

// podOf returns the template of the pods of a launch.
func podOf(m *config.Model, l *config.Launch, image string, labels object) (object, error) {
	p, err := engine.InPod(m, l)
	if err != nil {
		return nil, err
	}
	gpus, err := engine.GPUs(l)
	if err != nil {
		return nil, err
	}
	env := []object{{"name": "POD_IP", "valueFrom": object{"fieldRef": object{"fieldPath": "status.podIP"}}}}
	for _, v := range p.Env {
		name, value, _ := strings.Cut(v, "=")
		env = append(env, object{"name": name, "value": value})
	}
	ports := []object{{"name": "http", "containerPort": p.HTTP}}
	for _, name := range slices.Sorted(maps.Keys(p.Ports)) {
		ports = append(ports, object{"name": name, "containerPort": p.Ports[name]})
	}

	health := object{"path": p.HealthPath, "port": "http"}
	starts := int(l.StartUp.Std().Seconds()) * podPatientStarts / podProbeSeconds
	mounts := []object{{"name": "shm", "mountPath": "/dev/shm"}}
	volumes := []object{{"name": "shm", "emptyDir": object{"medium": "Memory"}}}
	if !hub.IsRef(m.Path) {
		mounts = append(mounts, object{"name": "model", "mountPath": m.Path, "readOnly": true})
		volumes = append(volumes, object{"name": "model", "hostPath": object{"path": m.Path, "type": "Directory"}})
	}
	return object{
		"metadata": object{"labels": labels},
		"spec": object{
			"terminationGracePeriodSeconds": podGraceSeconds,
			"volumes":                       volumes,
			"containers": []object{{
				"name": "engine", "image": image, "command": p.Command[:1], "args": p.Command[1:], "env": env, "ports": ports,
				"volumeMounts":   mounts,
				"resources":      object{"limits": object{"nvidia.com/gpu": max(1, gpus)}},
				"startupProbe":   object{"httpGet": health, "periodSeconds": podProbeSeconds, "failureThreshold": max(1, starts)},
				"readinessProbe": object{"httpGet": health, "periodSeconds": podProbeSeconds},
				"lifecycle":      object{"preStop": object{"sleep": object{"seconds": podLeaveSeconds}}},
			}},
		},
	}, nil
}
