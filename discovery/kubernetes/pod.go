package kubernetes

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// pod has the fields of a pod that are read. The API server checks types, so that a field of another type is an error of the whole answer.
type pod struct {
	named
	Spec struct {
		NodeName   string `json:"nodeName"`
		Containers []struct {
			Command []string `json:"command"`
			Args    []string `json:"args"`
		} `json:"containers"`
	} `json:"spec"`
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

// podsPath returns the path of the pods of a namespace.
func podsPath(namespace string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods"
}

// Endpoint is one engine: a port of a pod.
type Endpoint struct {
	// Name is unique among the endpoints of a source, and a name of a worker.
	Name string
	// Address is ip:port.
	Address string
	// Role and Revision are what the pod's labels name. A revision is empty for none, and has the slice of a DisaggregatedSet behind it.
	Role     fleet.Role
	Revision string
	// Epoch is another one after a restart of the engine, and the same in every replica. It is not 0.
	Epoch uint64
	// MaxRequests is the number of requests that a rank runs at once, if the pod's command line names it; else 0.
	MaxRequests int
}

// endpoints returns the engines of a pod, one for each port; none if it is nil or not ready. home is the namespace whose pods have short
// names. It reads nothing but its arguments, so that all replicas have the same endpoints.
func endpoints(p *pod, ports []int, home string) []Endpoint {
	if p == nil || !p.isReady() {
		return nil
	}
	all := make([]Endpoint, 0, len(ports))
	for _, port := range ports {
		at := net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port))
		suffix := ""
		if len(ports) > 1 {
			suffix = "-" + strconv.Itoa(port)
		}
		all = append(all, Endpoint{
			Name: p.Metadata.workerName(suffix, home), Address: at, Role: p.role(), Revision: p.Metadata.exchanges(), Epoch: p.epoch(at),
			MaxRequests: p.maxRequests(),
		})
	}
	return all
}

// maxRequests returns the number of requests that run at once by the command line of the pod's containers, which may be the script of a
// shell. vLLM reports that number nowhere. It is 0 if none names it.
func (p *pod) maxRequests() int {
	between := func(r rune) bool { return r == '=' || unicode.IsSpace(r) }
	for _, c := range p.Spec.Containers {
		words := strings.FieldsFunc(strings.Join(slices.Concat(c.Command, c.Args), " "), between)
		for i, word := range words[:max(0, len(words)-1)] {
			if n := engines.MaxRequests(word, words[i+1]); n > 0 && strings.HasPrefix(word, "--") {
				return n
			}
		}
	}
	return 0
}

// place returns the place of a pod; nil is in none.
func (p *pod) place() (at podPlace) {
	if p == nil {
		return at
	}
	return podPlace{p.Spec.NodeName, placeOf(p.Metadata.Labels)}
}

// isReady reports whether requests may go to the pod. A pod that is being deleted may be ready for all of its grace period, because its
// engine finishes its requests, and must get no new ones.
func (p *pod) isReady() bool {
	if p.Metadata.DeletionTimestamp != "" || p.Status.PodIP == "" || !p.Metadata.leads() {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// leads reports whether the pod has a server. Further pods of an engine on several nodes have none.
func (m *metadata) leads() bool {
	index := m.Labels["leaderworkerset.sigs.k8s.io/worker-index"]
	return index == "" || index == "0"
}

// workerName returns the name of the pod as a worker's. Names of pods may have dots and be longer, and pods of two namespaces may have one
// name: then a hash of namespace and name makes it unique.
func (m *metadata) workerName(suffix, home string) string {
	plain := strings.ReplaceAll(m.Name, ".", "-")
	if plain == m.Name && m.Namespace == home && len(plain)+len(suffix) <= fleet.MaxName {
		return plain + suffix
	}
	h := fnv.New64a()
	fmt.Fprint(h, m.Namespace, "/", m.Name)
	suffix = "-" + hex.EncodeToString(h.Sum(nil))[:8] + suffix
	return plain[:min(len(plain), fleet.MaxName-len(suffix))] + suffix
}

// epoch identifies the engine of the pod at an address, so that a router forgets a cache that has ended: names and addresses of pods are
// used again, of a StatefulSet at once, and containers restart in place. Replicas exchange bookings by it.
func (p *pod) epoch(address string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, p.Metadata.UID, " ", address)
	for _, c := range p.Status.ContainerStatuses {
		fmt.Fprint(h, " ", c.RestartCount)
	}
	return h.Sum64() | 1 // 0 means that starts cannot be distinguished
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
//
// A DisaggregatedSet may have several slices: copies of all its roles, each of which rolls out by itself, and which a placement policy
// may keep in one domain of the network each. Its Services let a prefill server find the decode servers of the same slice alone, "which is
// required for in-domain KV-cache handoff" (KEP-846 of LWS). So workers of two slices are kept apart as workers of two revisions are.
var (
	roleLabels = []string{
		"llm-d.ai/role", "disaggregatedset.x-k8s.io/role", "nvidia.com/dynamo-sub-component-type", "nvidia.com/dynamo-component-type",
	}
	// roles are the values of the labels of roles. llm-d's decode workers may be called "both".
	roles = map[string]fleet.Role{
		"prefill": fleet.Prefill, "decode": fleet.Decode, "both": fleet.Aggregated, "prefill-decode": fleet.Aggregated,
	}
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

// revision returns the revision that all roles of the pod's fleet have in common, as its labels name it; empty if they name none.
func (m *metadata) revision() string {
	return cmp.Or(m.Labels["disaggregatedset.x-k8s.io/revision"], m.Labels["nvidia.com/dynamo-worker-hash"])
}

// sliceLabel names the slice of a DisaggregatedSet, from LWS 0.10 on.
const sliceLabel = "disaggregatedset.x-k8s.io/slice"

// exchanges returns the revision and the slice whose workers exchange KV caches, such as "6ad7c921/0".
func (m *metadata) exchanges() string {
	revision := m.revision()
	if slice := m.Labels[sliceLabel]; revision != "" && slice != "" {
		return revision + "/" + slice
	}
	return revision
}

// templateRevision returns the revision of the template that the pod was made from, as the controller of its object labels it; empty for a
// pod without such a label. Revisions of two objects cannot be compared.
func (m *metadata) templateRevision() string {
	return cmp.Or(m.revision(), m.Labels["leaderworkerset.sigs.k8s.io/template-revision-hash"], m.Labels["pod-template-hash"],
		m.Labels["controller-revision-hash"])
}
