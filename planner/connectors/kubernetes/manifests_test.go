package kubernetes_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stator-project/stator/internal/advise"
	"github.com/stator-project/stator/test/testkit"
)

// scaling is a field that DisaggregatedSets have since LeaderWorkerSet 0.10, whose definitions are no Go module here.
var scaling = regexp.MustCompile(`(?m)^ *(- )?scaling:\n *mode: External\n`)

// TestManifestsOnARealAPIServer: a real API server accepts what stator plan prints, and knows every field in it.
func TestManifestsOnARealAPIServer(t *testing.T) {
	c := startCluster(t)
	for plural, definition := range map[string][2]string{
		"leaderworkersets":  {"sigs.k8s.io/lws@v0.9.0", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"},
		"disaggregatedsets": {"sigs.k8s.io/lws@v0.9.0", "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml"},
		"inferencepools": {"sigs.k8s.io/gateway-api-inference-extension@v1.6.0",
			"config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"},
	} {
		c.ApplyKind(definition[0], definition[1], plural)
	}
	c.Must("", "apply", "--server-side", "-f", "testdata/dynamographdeployment.yaml")
	testkit.Eventually(t, "the kind dynamographdeployments to be served", func() bool {
		_, err := c.Kubectl("", "get", "dynamographdeployments")
		return err == nil
	})

	graph, err := os.ReadFile("../../../internal/advise/testdata/graph.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, output := range advise.Outputs() {
		converted, err := (&advise.Options{From: "f", Output: output, Image: "example.test/engine:1"}).Convert(graph)
		if err != nil {
			t.Errorf("%s: %v", output, err)
			continue
		}
		objects := scaling.ReplaceAllStringFunc(string(converted.Manifests), func(string) string { return "" })
		if out, err := c.Kubectl(objects, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"); err != nil {
			t.Errorf("%s: %v\n%s\n%s", output, err, out, objects)
		} else {
			t.Logf("%s", out)
		}
	}
}
