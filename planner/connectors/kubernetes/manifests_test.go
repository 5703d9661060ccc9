package kubernetes_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stator-project/stator/internal/advise"
	"github.com/stator-project/stator/test/testkit"
)

// moduleFolder returns the folder of a Go module, which is downloaded if it is not there.
func moduleFolder(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	var found struct{ Dir, Error string }
	if json.Unmarshal(out, &found) != nil || found.Dir == "" {
		t.Fatalf("go mod download %s: %v %s", module, err, found.Error)
	}
	return found.Dir
}

// scaling is a field that DisaggregatedSets have since LeaderWorkerSet 0.10, whose definitions are no Go module here.
var scaling = regexp.MustCompile(`(?m)^ *(- )?scaling:\n *mode: External\n`)

// TestManifestsOnARealAPIServer: a real API server accepts what stator plan prints, and knows every field in it.
func TestManifestsOnARealAPIServer(t *testing.T) {
	c := startCluster(t)
	sets := filepath.Join(moduleFolder(t, "sigs.k8s.io/lws@v0.9.0"), "config/crd/bases")
	for _, definition := range []string{
		filepath.Join(sets, "leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
		filepath.Join(sets, "disaggregatedset.x-k8s.io_disaggregatedsets.yaml"),
		filepath.Join(moduleFolder(t, "sigs.k8s.io/gateway-api-inference-extension@v1.6.0"),
			"config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"),
		"testdata/dynamographdeployment.yaml",
	} {
		c.must("", "apply", "--server-side", "-f", definition)
	}
	for _, kind := range []string{"leaderworkersets", "disaggregatedsets", "inferencepools", "dynamographdeployments"} {
		testkit.Eventually(t, "the kind "+kind+" to be served", func() bool {
			_, err := c.kubectl("", "get", kind)
			return err == nil
		})
	}

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
		if out, err := c.kubectl(objects, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"); err != nil {
			t.Errorf("%s: %v\n%s\n%s", output, err, out, objects)
		} else {
			t.Logf("%s", out)
		}
	}
}
