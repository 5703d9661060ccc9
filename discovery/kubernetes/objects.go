package kubernetes

import (
	"fmt"
	"hash/fnv"

	"github.com/stator-project/stator/internal/fleet"
)

// pod has the fields of a pod that are read. The API server checks types, so that a field of another type is an error of the whole answer.
type pod struct {
	named
	Status struct {
		PodIP      string `json:"podIP"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
		ContainerStatuses []struct {
			RestartCount int `json:"restartCount"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// isReady reports whether requests may go to the pod. A pod that is being deleted may be ready for all of its grace period, because its
// engine finishes what it has; it must get nothing new.
func (p *pod) isReady() bool {
	if p.Metadata.DeletionTimestamp != "" || p.Status.PodIP == "" {
		return false
	}
	// Further pods of an engine on several nodes have no server.
	if index := p.Metadata.Labels["leaderworkerset.sigs.k8s.io/worker-index"]; index != "" && index != "0" {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// epoch identifies the engine of a pod at an address, so that a router forgets a cache that has ended: names and addresses of pods are used
// again, of a StatefulSet at once, and containers restart in place. It is the same in all replicas, which exchange bookings by it.
func (p *pod) epoch(address string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, p.Metadata.UID, " ", address)
	for _, c := range p.Status.ContainerStatuses {
		fmt.Fprint(h, " ", c.RestartCount)
	}
	return h.Sum64() | 1 // 0 means that starts cannot be distinguished
}

// roles are the values of the labels by which pods name their role. llm-d's decode workers may be called "both".
var roles = map[string]fleet.Role{
	"prefill": fleet.Prefill, "decode": fleet.Decode, "both": fleet.Aggregated, "prefill-decode": fleet.Aggregated,
}

// The labels of roles, in the order in which they count, and the labels of revisions:
//
//	set by                          role                                            revision
//	llm-d, by hand or by its guides llm-d.ai/role                                   none
//	DisaggregatedSet of LWS         disaggregatedset.x-k8s.io/role                  disaggregatedset.x-k8s.io/revision
//	Dynamo's operator               nvidia.com/dynamo-component-type; a pod of      nvidia.com/dynamo-worker-hash
//	                                type worker has a sub-component-type beside it
//
// A rollout replaces all roles of a revision. Engines of two revisions may not be able to exchange KV caches.
var (
	roleLabels = []string{
		"llm-d.ai/role", "disaggregatedset.x-k8s.io/role", "nvidia.com/dynamo-sub-component-type", "nvidia.com/dynamo-component-type",
	}
	revisionLabels = []string{"disaggregatedset.x-k8s.io/revision", "nvidia.com/dynamo-worker-hash"}
)

// role returns the role that the pod's labels name; aggregated if they name none.
func (p *pod) role() fleet.Role {
	for _, label := range roleLabels {
		if role, ok := roles[p.Metadata.Labels[label]]; ok {
			return role
		}
	}
	return fleet.Aggregated
}

// revision returns the revision that the pod's labels name; empty if they name none.
func (p *pod) revision() string {
	for _, label := range revisionLabels {
		if value := p.Metadata.Labels[label]; value != "" {
			return value
		}
	}
	return ""
}

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

// service has the fields of a Service that are read. Routers read none: they need no rights on Services.
type service struct {
	named
	Spec struct {
		Ports []struct {
			Port int `json:"port"`
		} `json:"ports"`
	} `json:"spec"`
}

// endpointSlice has the fields of an EndpointSlice that are read. Its endpoints have no labels, so workers are found by pods.
type endpointSlice struct {
	named
	Endpoints []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready *bool `json:"ready"`
		} `json:"conditions"`
	} `json:"endpoints"`
}
