package kubernetes

import (
	"context"
	"net/url"
	"slices"
	"strings"
)

// inferencePool has the fields of an InferencePool that are read.
type inferencePool struct {
	named
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []struct {
			Number int `json:"number"`
		} `json:"targetPorts"`
		EndpointPickerRef struct {
			Name string `json:"name"`
			Port struct {
				Number int `json:"number"`
			} `json:"port"`
			FailureMode string `json:"failureMode"`
		} `json:"endpointPickerRef"`
	} `json:"spec"`
}

// poolVersion is the group and version of InferencePools.
const poolVersion = "inference.networking.k8s.io/v1"

// poolsPath returns the path of the InferencePools of a namespace.
func poolsPath(namespace string) string {
	return "/apis/" + poolVersion + "/namespaces/" + url.PathEscape(namespace) + "/inferencepools"
}

// labels returns the selector of the pool as a query has it; empty for a pool without one.
func (p *inferencePool) labels() string {
	var all []string
	for key, value := range p.Spec.Selector.MatchLabels {
		all = append(all, key+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// ports returns the target ports of the pool. Each is an engine of its own, or a data-parallel rank that has a server of its own.
func (p *inferencePool) ports() (all []int) {
	for _, port := range p.Spec.TargetPorts {
		all = append(all, port.Number)
	}
	return all
}

// Pool is an InferencePool as it is now, with its pods and its picker. It is for a look from outside: a router follows changes instead.
type Pool struct {
	Namespace, Name string
	// Ports are its target ports; each is another engine in each pod.
	Ports []int
	// Pods are those that its selector matches. A pool without a selector has none.
	Pods []Pod
	// Picker is the Service that decides; its name is empty if the pool names none.
	Picker Picker
}

// Pod is a pod of a pool. Its name is the object's, not the worker's: see [Endpoint].
// Endpoints are its engines; a pod that is not ready, or is being deleted, has none.
type Pod struct {
	Name        string
	Terminating bool
	Endpoints   []Endpoint
}

// Picker is an endpoint picker as a pool names it.
type Picker struct {
	Name string
	Port int
	// FailOpen means that requests go on without it.
	FailOpen bool
}

// Pools reads the InferencePools of a namespace, in the order of their names, with their pods. The error is that of the pools, or of the
// first pods that could not be read.
func (c *Client) Pools(ctx context.Context, namespace string) (all []Pool, err error) {
	var found []inferencePool
	_, err = readAll(ctx, c, poolsPath(namespace), url.Values{}, func(p inferencePool) { found = append(found, p) })
	if err != nil {
		return nil, err
	}

	for i := range found {
		p := &found[i]
		picker := &p.Spec.EndpointPickerRef
		pool := Pool{
			Namespace: namespace, Name: p.Metadata.Name, Ports: p.ports(),
			// failureMode is FailClose by default, and the API server fills it in.
			Picker: Picker{Name: picker.Name, Port: picker.Port.Number, FailOpen: picker.FailureMode == "FailOpen"},
		}
		// The pods of each pool are listed apart: a namespace may have thousands that belong to none.
		if labels := p.labels(); labels != "" { // without labels the query would select all pods of the namespace
			_, err := readAll(ctx, c, podsPath(namespace), url.Values{"labelSelector": {labels}}, func(of pod) {
				m := &of.Metadata
				engines := endpoints(&of, pool.Ports, namespace)
				pool.Pods = append(pool.Pods, Pod{Name: m.Name, Terminating: m.DeletionTimestamp != "", Endpoints: engines})
			})
			if err != nil {
				return nil, err
			}
		}
		all = append(all, pool)
	}
	return all, nil
}
