package dynamograph

import (
	"cmp"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// component is one component of the graph as the file has it. Each path is the place of the field before it.
type component struct {
	name, path string
	// kind and sub are its types: a worker of v1alpha1 has its role in sub.
	kind, sub string
	replicas  int

	image                 string
	command, args         []string
	commandPath, argsPath string
	env                   []variable
	gpus                  int
	gpusPath              string
	isScaled              bool
	model                 string // of modelRef
}

// variable is a variable of the environment with its place.
type variable struct{ name, value, path string }

// Sentences that several fields have.
const (
	ofPods      = "add it to the pods of the manifests"
	ofContainer = "add it to the container of the manifests"
	ofMetadata  = "labels and annotations are not taken over: add them to the manifests"
	ofGrove     = "Grove and its scheduler are not supported: engines are scheduled pod by pod"
	ofVolumes   = "volumes are not taken over: the manifests mount a model folder of the host, and pods download other models"
	ofMemory    = "/dev/shm of the manifests has no bound of its own: the pod's memory limit bounds it"
	ofProbes    = "the manifests have probes for the health page of a stock engine"
	ofRestart   = "restart the objects of the manifests with kubectl rollout restart"
	ofSecret    = "variables from a Secret are not taken over: " + ofContainer
	ofRevision  = "write the revision into models[].path, as hf:ORG/MODEL@REVISION"
	ofNothing   = "Dynamo ignores this field, and so does Stator"
)

// object reads the object.
func (r *reader) object(root *yaml.Node) {
	r.read(root, "", map[string]field{
		"apiVersion": r.version,
		"kind":       nil,
		"status":     nil,
		"metadata": r.inside(map[string]field{
			"name": r.text(&r.graph.Name),
			"namespace": func(n *yaml.Node, path string) {
				r.note(path, "objects of the manifests have no namespace: apply them with kubectl -n %s", quoted(text(n)))
			},
			"annotations": r.annotations,
			// The API server writes these.
			"uid": nil, "resourceVersion": nil, "generation": nil, "creationTimestamp": nil, "managedFields": nil, "selfLink": nil,
			"finalizers": nil,
		}, map[string]string{"labels": ofMetadata}),
		"spec": r.inside(map[string]field{
			"services":         r.services,
			"components":       r.each(func(n *yaml.Node, path string) { r.component(n, path, "") }),
			"backendFramework": r.text(&r.backend),
			"env":              r.graphEnv, "envs": r.graphEnv,
			"experimental": r.inside(nil, map[string]string{
				"kvTransferPolicy": "pairs of prefill and decode workers are chosen by the measured times of transfers within and " +
					"between zones and racks, and no label excludes a pair",
				"componentGroups": "each role is scaled by itself, within planner.maxGPUs",
			}),
		}, map[string]string{
			"annotations": ofMetadata, "labels": ofMetadata, "pvcs": ofVolumes, "restart": ofRestart,
			"topologyConstraint": ofGrove, "priorityClassName": ofGrove, "providerOverride": ofGrove,
		}),
	}, nil)
}

func (r *reader) version(n *yaml.Node, path string) {
	v := strings.TrimPrefix(text(n), group)
	if v != "v1alpha1" && v != "v1beta1" {
		r.refuse(path, "is %s: %sv1alpha1 and %sv1beta1 are read", quoted(text(n)), group, group)
	}
}

// annotations ignores the one that kubectl writes.
func (r *reader) annotations(n *yaml.Node, path string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != "kubectl.kubernetes.io/last-applied-configuration" {
			r.note(path, "%s", ofMetadata)
			return
		}
	}
}

// services reads the components of v1alpha1.
func (r *reader) services(n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode {
		r.refuse(path, "must be a mapping of names to components")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		r.component(n.Content[i+1], join(path, n.Content[i].Value), n.Content[i].Value)
	}
}

// component reads one component.
func (r *reader) component(n *yaml.Node, path, name string) {
	if len(r.components) == maxComponents {
		r.refuse(path, "is one component too many: the limit is %d", maxComponents)
		return
	}
	c := &component{name: name, path: path, replicas: 1}
	r.components = append(r.components, c)

	r.read(n, path, map[string]field{
		"name": r.text(&c.name), "serviceName": nil, "dynamoNamespace": nil,
		"type": r.text(&c.kind), "componentType": r.text(&c.kind), "subComponentType": r.text(&c.sub),
		"replicas":       r.number(&c.replicas, maxReplicas),
		"resources":      r.resources(c),
		"env":            r.variables(&c.env),
		"envs":           r.variables(&c.env),
		"modelRef":       r.inside(map[string]field{"name": r.text(&c.model)}, map[string]string{"revision": ofRevision}),
		"scalingAdapter": func(*yaml.Node, string) { c.isScaled = true },
		"multinode": r.inside(map[string]field{"nodeCount": func(n *yaml.Node, path string) {
			r.note(path, "engines on several nodes are not taken over: the engine of the result must fit on one node")
		}}, nil),
		"extraPodSpec": r.inside(map[string]field{
			"mainContainer": r.container(c), "containers": r.each(r.sidecar),
		}, map[string]string{"volumes": ofVolumes, allOthers: ofPods}),
		"podTemplate": r.inside(map[string]field{
			"metadata": r.inside(map[string]field{"creationTimestamp": nil}, map[string]string{allOthers: ofMetadata}),
			"spec": r.inside(map[string]field{"containers": r.each(func(n *yaml.Node, path string) {
				if text(member(n, "name")) == "main" {
					r.container(c)(n, path)
					return
				}
				r.sidecar(n, path)
			})}, map[string]string{"volumes": ofVolumes, allOthers: ofPods}),
		}, nil),
	}, map[string]string{
		"annotations": ofMetadata, "labels": ofMetadata, "extraPodMetadata": ofMetadata,
		"envFromSecret": ofSecret, "volumeMounts": ofVolumes, "sharedMemory": ofMemory, "sharedMemorySize": ofMemory,
		"livenessProbe": ofProbes, "readinessProbe": ofProbes,
		"autoscaling": ofNothing, "ingress": "write an HTTPRoute or an Ingress to the Service of the gateway",
		"eppConfig":              "the picker is \"stator extproc\", whose policy is router of the configuration",
		"minAvailable":           ofGrove,
		"topologyConstraint":     ofGrove,
		"providerOverride":       ofGrove,
		"roles":                  "engines on several nodes are not taken over",
		"globalDynamoNamespace":  "workers are found by the labels of their pods, and not by a namespace of Dynamo",
		"frontendSidecar":        "engines have HTTP servers of their own, so they need no frontend beside them",
		"dynamoSidecar":          "engines have HTTP servers of their own, so they need no runtime beside them",
		"compilationCache":       "mount a volume at the folder of the engine's compilation cache",
		"runtimeVersionOverride": "stock engines have no runtime of Dynamo",
		"checkpoint":             "pods cannot be restored from checkpoints",
		"experimental":           "GPU memory service, failover and checkpoints are not supported",
	})
}

// sidecar notes a container beside the engine.
func (r *reader) sidecar(n *yaml.Node, path string) {
	r.note(path, "the container %s beside the engine is not taken over", quoted(text(member(n, "name"))))
}

// container returns a function that reads the engine's container.
func (r *reader) container(c *component) field {
	at := func(into *string, read field) field {
		return func(n *yaml.Node, path string) {
			*into = path
			read(n, path)
		}
	}
	return r.inside(map[string]field{
		"name": nil, "image": r.text(&c.image),
		"command": at(&c.commandPath, r.texts(&c.command)), "args": at(&c.argsPath, r.texts(&c.args)),
		"env": r.variables(&c.env), "resources": r.resources(c),
	}, map[string]string{
		"envFrom": ofSecret, "volumeMounts": ofVolumes, "livenessProbe": ofProbes, "readinessProbe": ofProbes, "startupProbe": ofProbes,
		"workingDir": "stock engines need no folder of Dynamo's image", "ports": "the manifests have the ports of a stock engine",
		allOthers: ofContainer,
	})
}

// resources returns a function that reads the GPUs of a component.
func (r *reader) resources(c *component) field {
	gpus := func(n *yaml.Node, path string) {
		c.gpusPath = path
		r.number(&c.gpus, maxGPUs)(n, path)
	}
	amounts := r.inside(map[string]field{"gpu": gpus, "nvidia.com/gpu": gpus}, map[string]string{
		"gpuType": "the manifests ask for nvidia.com/gpu", allOthers: ofContainer,
	})
	return r.inside(map[string]field{"limits": amounts, "requests": amounts}, map[string]string{allOthers: ofContainer})
}

// maxGPUs bounds the GPUs of a container.
const maxGPUs = 64

// variables returns a function that adds the variables of a list.
func (r *reader) variables(into *[]variable) field {
	return r.each(func(n *yaml.Node, path string) {
		v := variable{path: path}
		r.read(n, path, map[string]field{"name": r.text(&v.name), "value": r.text(&v.value), "valueFrom": func(_ *yaml.Node, path string) {
			r.note(path, "values from other objects are not taken over: %s", ofContainer)
			v.name = ""
		}}, nil)
		if v.name != "" {
			*into = append(*into, v)
		}
	})
}

// graphEnv reads the variables of all components.
func (r *reader) graphEnv(n *yaml.Node, path string) { r.variables(&r.env)(n, path) }

// option returns the place of an option of the command line.
func (c *component) option(name string) string {
	return fmt.Sprintf("%s %s", cmp.Or(c.argsPath, c.commandPath), strings.Trim(quoted("--"+name), `"`))
}
