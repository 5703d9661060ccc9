package kubernetes

import (
	"encoding/hex"
	"hash/fnv"
	"net"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// Endpoint is one engine: a port of a pod.
type Endpoint struct {
	// Name is unique among the endpoints of a source, and a name of a worker.
	Name string
	// Address is ip:port.
	Address string
	// Role and Revision are what the pod's labels name. An empty revision is none.
	Role     fleet.Role
	Revision string
	// Epoch is another one after a restart of the engine, and the same in every replica. It is not 0.
	Epoch uint64
}

// endpoints returns the engines of a pod, one for each port; none if it is not ready. home is the namespace whose pods have short names.
// It reads nothing but its arguments, so that all replicas have the same endpoints.
func endpoints(p *pod, ports []int, home string) []Endpoint {
	if !p.isReady() {
		return nil
	}
	all := make([]Endpoint, 0, len(ports))
	// Each port of an InferencePool is an engine of its own, or a data-parallel rank that has a server of its own.
	for _, port := range ports {
		at := net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port))
		suffix := ""
		if len(ports) > 1 {
			suffix = "-" + strconv.Itoa(port)
		}
		all = append(all, Endpoint{
			Name: workerName(p.Metadata.Namespace, p.Metadata.Name, suffix, home), Address: at,
			Role: p.role(), Revision: p.revision(), Epoch: p.epoch(at),
		})
	}
	return all
}

// workerName returns the name of a pod as a worker's. Names of pods may have dots and be longer, and pods of two namespaces may have one
// name: then a hash of namespace and name makes it unique.
func workerName(namespace, name, suffix, home string) string {
	plain := strings.ReplaceAll(name, ".", "-")
	if plain == name && namespace == home && len(name)+len(suffix) <= fleet.MaxName {
		return name + suffix
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(namespace + "/" + name))
	suffix = "-" + hex.EncodeToString(h.Sum(nil))[:8] + suffix
	return plain[:min(len(plain), fleet.MaxName-len(suffix))] + suffix
}
