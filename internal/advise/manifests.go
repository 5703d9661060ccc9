package advise

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/workeragent/engine"
)

// The kinds of objects that run a proposal's engines in Kubernetes.
const (
	outputDeployment       = "deployment"
	outputLeaderWorkerSet  = "leaderworkerset"
	outputDisaggregatedSet = "disaggregatedset"
)

// Outputs lists them.
func Outputs() []string {
	return []string{outputDeployment, outputLeaderWorkerSet, outputDisaggregatedSet}
}

// object is an object of Kubernetes, or a part of one.
type object = map[string]any

// Manifests returns the objects that run the proposal's engines, as YAML: one for each role, or a single DisaggregatedSet. The engines have
// the options that an agent would start them with. Their pods have a label of the model, and of their role.
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
		pod, err := podOf(m, l, image(l.Role))
		if err != nil {
			return nil, err
		}
		name := nameOf(m.Name, l.Role)
		set := object{"replicas": l.Count, "leaderWorkerTemplate": object{"size": 1, "workerTemplate": pod}}
		switch p.Output {
		case outputDeployment:
			objects = append(objects, newObject("apps/v1", "Deployment", name, object{
				"replicas": l.Count, "selector": object{"matchLabels": labelsOf(m.Name, l.Role)}, "template": pod,
			}))
		case outputLeaderWorkerSet:
			objects = append(objects, newObject("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, set))
		case outputDisaggregatedSet:
			roles = append(roles, object{"name": l.Role, "scaling": object{"mode": "External"}, "spec": set})
		}
	}

	if p.Output == outputDisaggregatedSet {
		if len(roles) < 2 {
			return nil, fmt.Errorf("the fleet has engines that do both parts of a request, and a DisaggregatedSet has two roles at "+
				"least: use --output %s or %s", outputDeployment, outputLeaderWorkerSet)
		}
		objects = append(objects, newObject("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", nameOf(m.Name, ""), object{"roles": roles}))
	}
	return encode(objects)
}

// target returns the object whose replicas the engines of a role are, as launch[].target names it.
func (p *Options) target(model string, role fleet.Role) string {
	name := nameOf(model, role.String())
	if p.Output == outputDisaggregatedSet {
		return "disaggregatedset.x-k8s.io/v1/DisaggregatedSetRoleScaler/" + name
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

// labelsOf returns the labels of a role's pods. Routers find them by the first one, and read their role from the second.
func labelsOf(model, role string) object {
	out := object{"app": nameOf(model, "")}
	if role != fleet.Aggregated.String() {
		out["llm-d.ai/role"] = role
	}
	return out
}

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
func podOf(m *config.Model, l *config.Launch, image string) (object, error) {
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
		"metadata": object{"labels": labelsOf(m.Name, l.Role)},
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
