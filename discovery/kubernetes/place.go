package kubernetes

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
)

// placeLabels are the labels of nodes and pods that name their place, by level, in the order in which they count. These set them:
//
//	stator.dev/…                               an operator, by hand
//	topology.kubernetes.io/zone                cloud providers, on nodes; Kubernetes copies it to pods from 1.35 on
//	topology.kubernetes.io/rack                operators, as many guides of schedulers have it; it is no standard
//	nvidia.com/gpu.clique                      NVIDIA's GPU operator
//	*.topograph.run/…                          NVIDIA's topograph, from 1.0 on; tier 0 is the lowest switch
//	network.topology.nvidia.com/…              topograph before
//	topology.k8s.aws/…                         Amazon EKS; layer 3 is the lowest switch
//	cloud.google.com/gce-topology-subblock     Google GKE
//	nvidia.com/dynamo-topology.…               Dynamo's operator, on pods
var placeLabels = [fleet.Levels][]string{
	fleet.InZone: {"stator.dev/zone", "topology.kubernetes.io/zone", "nvidia.com/dynamo-topology.zone"},
	fleet.InRack: {
		"stator.dev/rack", "topology.kubernetes.io/rack", "fabric.topograph.run/tier-0", "network.topology.nvidia.com/leaf",
		"topology.k8s.aws/network-node-layer-3", "cloud.google.com/gce-topology-subblock", "nvidia.com/dynamo-topology.rack",
	},
	fleet.InNVLink: {
		"stator.dev/nvlink", "nvidia.com/gpu.clique", "accelerator.topograph.run/domain", "network.topology.nvidia.com/accelerator",
		"topology.k8s.aws/ultraserver-id",
	},
}

// placeNames are the names of a place by level; empty for a level that is not named.
type placeNames [fleet.Levels]string

// placeOf returns the place that labels name. Values that cannot be in a taint are left out.
func placeOf(labels map[string]string) (names placeNames) {
	for level, keys := range placeLabels {
		for _, key := range keys {
			if name := labels[key]; name != "" && names[level] == "" && fleet.ValidTaint(fleet.Level(level).Taint(name)) {
				names[level] = name
			}
		}
	}
	return names
}

// podPlace is the node of a pod and the place that the pod's own labels name.
type podPlace struct {
	node  string
	names placeNames
}

// taintsLocked returns the taints of a pod's place, and their source. Labels of the node count first, because a pod may have got its
// labels from it when it had fewer.
func (s *Source) taintsLocked(at *podPlace) (fleet.Taints, fleet.PlaceSource) {
	node := s.nodes[at.node].names
	from := fleet.ByPodLabels
	var taints []string
	for level := fleet.InZone; level < fleet.Levels; level++ {
		name := at.names[level]
		if node[level] != "" {
			name, from = node[level], fleet.ByNodeLabels
		}
		if name != "" {
			taints = append(taints, level.Taint(name))
		}
	}
	if len(taints) == 0 {
		return "", fleet.ByTaints
	}
	all, err := fleet.NewTaints(taints)
	if err != nil { // they were validated, so this cannot happen
		return "", fleet.ByTaints
	}
	return all, from
}

// node is a node of pods.
type node struct {
	names placeNames
	next  time.Time // when its labels are read again
}

const (
	// nodesEvery is the interval at which the labels of nodes are read again: some are set when the node has been running for a while.
	// After a refusal it is the time until the next attempt: most routers have no right to read nodes.
	nodesEvery = 5 * time.Minute
	// nodesRetry is the pause after a failure that passes by itself.
	nodesRetry = 10 * time.Second
	// nodesGather is the time for which new nodes are gathered.
	nodesGather = 200 * time.Millisecond
)

// readNodes reads the labels of the nodes of pods until ctx ends: of a new node at once.
func (s *Source) readNodes(ctx context.Context) {
	refused := false
	for ctx.Err() == nil {
		changed := s.Changed()
		err := s.readDueNodes(ctx)
		var status *Status
		switch {
		case err == nil:
			_ = backoff.Sleep(ctx, nodesGather)
			select {
			case <-changed:
			case <-time.After(nodesEvery):
			case <-ctx.Done():
			}
		case errors.As(err, &status) && status.Code < http.StatusInternalServerError && status.Code != http.StatusTooManyRequests:
			if !refused {
				s.cfg.Log.Info("nodes cannot be read; the places of engines are those that the labels of their pods name", "err", err)
			}
			refused = true
			_ = backoff.Sleep(ctx, nodesEvery)
		default:
			s.troubles.WithLabelValues("nodes").Inc()
			_ = backoff.Sleep(ctx, nodesRetry)
		}
	}
}

// readDueNodes reads the labels of the nodes that are due. It ends at the first error, because others would have the same. A node that is
// gone has no labels.
func (s *Source) readDueNodes(ctx context.Context) error {
	for _, name := range s.dueNodes(time.Now()) {
		labels, err := s.cfg.Client.nodeLabels(ctx, name)
		var status *Status
		if err != nil && !(errors.As(err, &status) && status.Code == http.StatusNotFound) {
			return err
		}
		s.setNode(name, node{placeOf(labels), time.Now().Add(nodesEvery)})
	}
	return nil
}

// dueNodes returns the nodes of pods whose labels are to be read, sorted, and forgets the nodes that have no pod any more.
func (s *Source) dueNodes(now time.Time) (due []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := map[string]bool{}
	for _, g := range s.groups {
		for _, p := range g.pods {
			used[p.at.node] = true
		}
	}
	delete(used, "") // of a pod without a node
	maps.DeleteFunc(s.nodes, func(name string, _ node) bool { return !used[name] })
	for name := range used {
		if known, ok := s.nodes[name]; !ok || !now.Before(known.next) {
			due = append(due, name)
		}
	}
	slices.Sort(due)
	return due
}

// setNode records the labels of a node.
func (s *Source) setNode(name string, now node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.nodes[name].names != now.names
	s.nodes[name] = now
	if changed {
		s.notifyLocked()
	}
}

// nodeLabels reads the labels of a node. It needs the right to get nodes, which no namespace has.
func (c *Client) nodeLabels(ctx context.Context, name string) (map[string]string, error) {
	var n named
	err := c.read(ctx, "/api/v1/nodes/"+url.PathEscape(name), "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", &n)
	return n.Metadata.Labels, err
}
