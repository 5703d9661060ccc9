package kubernetes_test

import (
	"maps"
	"testing"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/test/kubeapi"
	"github.com/stator-project/stator/test/testkit"
)

// placed returns a pod on a node, with further labels.
func placed(name string, n int, node string, labels map[string]string) kubeapi.Pod {
	p := pod(name, n)
	p.Node = node
	p.Labels = maps.Clone(pool)
	maps.Copy(p.Labels, labels)
	return p
}

// places prints the taints of the workers and their sources, such as "a rack=7,zone=a, by node labels".
func (c *cluster) places() (text string) {
	for _, w := range c.source.Workers() {
		if text != "" {
			text += "; "
		}
		text += w.Name + " " + string(w.Taints) + " by " + w.PlaceFrom.String()
	}
	return text
}

func (c *cluster) awaitPlaces(want string) {
	c.t.Helper()
	testkit.Eventually(c.t, "places "+want+", not "+c.places(), func() bool { return c.places() == want })
}

// TestPlacesByNodes: the place of a worker comes from the labels of its node, and from the labels of its pod for levels that the node does
// not name. Another place does not make another worker: its engine is not asked again.
func TestPlacesByNodes(t *testing.T) {
	c, _ := follow(t, kubernetes.Selection{Namespace: "llm", Labels: "app=vllm"})
	c.PutNode("n1", map[string]string{
		"topology.kubernetes.io/zone": "eu-1a", "network.topology.nvidia.com/leaf": "s1", "nvidia.com/gpu.clique": "9c6f.0", "other": "x",
	})
	c.PutNode("n2", map[string]string{"topology.kubernetes.io/zone": "eu-1b", "stator.dev/rack": "r7", "fabric.topograph.run/tier-0": "s2"})
	c.PutPod(placed("a", 2, "n1", nil))
	c.PutPod(placed("b", 3, "n2", map[string]string{"nvidia.com/dynamo-topology.zone": "old", "stator.dev/nvlink": "cage 1"}))
	c.PutPod(placed("c", 4, "gone", map[string]string{"topology.kubernetes.io/zone": "eu-1c"}))
	c.awaitPlaces("a nvlink=9c6f.0,rack=s1,zone=eu-1a, by node labels; b rack=r7,zone=eu-1b, by node labels; c zone=eu-1c, by pod labels")

	before := c.source.Workers()[2]
	c.PutPod(placed("c", 4, "gone", map[string]string{"topology.kubernetes.io/zone": "eu-1d"}))
	c.awaitPlaces("a nvlink=9c6f.0,rack=s1,zone=eu-1a, by node labels; b rack=r7,zone=eu-1b, by node labels; c zone=eu-1d, by pod labels")
	if after := c.source.Workers()[2]; after.Epoch != before.Epoch {
		t.Error("another place is another engine")
	}
	if asked, _ := c.engines.Load("127.0.0.4"); asked != 1 {
		t.Errorf("the engine was asked %v times", asked)
	}
}

// TestPlacesByPods: without the right to read nodes the labels of pods count, one attempt is made for all nodes, and the reason is logged
// once. It is no trouble of the source.
func TestPlacesByPods(t *testing.T) {
	c, _ := follow(t, kubernetes.Selection{Namespace: "llm", Labels: "app=vllm"})
	c.PutPod(placed("a", 2, "n1", map[string]string{"topology.kubernetes.io/zone": "eu-1a", "topology.kubernetes.io/region": "eu-1"}))
	c.PutPod(placed("b", 3, "n2", nil))
	c.awaitPlaces("a zone=eu-1a, by pod labels; b  by taints")
	testkit.Eventually(t, "the missing right is logged", func() bool { return c.log.Count("nodes cannot be read") == 1 })
	if c.Lists("nodes") != 1 || c.source.Err() != nil {
		t.Errorf("%d attempts, %v", c.Lists("nodes"), c.source.Err())
	}
}
