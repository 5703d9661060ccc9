// Package istio gives the objects that `stator envoy snippet --for istio` prints to Istio's own code: to its checks, and to an istiod in the
// process of the test, which configures a stock Envoy. It is a module of its own, because Istio has 700 packages.
package istio

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"istio.io/istio/pilot/pkg/config/kube/crd"
	"istio.io/istio/pkg/config/schema/collections"
)

// TestSnippetsAreAccepted validates each object as istiod's admission webhook does. Without that webhook istiod drops patches that it
// cannot read, and says nothing.
func TestSnippetsAreAccepted(t *testing.T) {
	files, err := filepath.Glob("../../cmd/stator/testdata/snippet-istio*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no snippets: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range faults(t, string(text)) {
			t.Errorf("%s: %s", file, fault)
		}
	}
}

// TestFaultsAreFound: the part that istiod cannot read is refused here.
func TestFaultsAreFound(t *testing.T) {
	text, err := os.ReadFile("../../cmd/stator/testdata/snippet-istio.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const kind = "'@type': type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
	broken := strings.Replace(string(text), kind, "config: {}", 1)
	if broken == string(text) {
		t.Fatalf("the snippet has no %s", kind)
	}
	if len(faults(t, broken)) == 0 {
		t.Error("a configuration without a type is accepted")
	}
}

// faults returns what istiod's webhook says of the objects in a text: refusals and warnings.
func faults(t *testing.T, text string) (all []string) {
	t.Helper()
	objects, unknown, err := crd.ParseInputs(text)
	if err != nil {
		return []string{err.Error()}
	}
	if len(unknown) > 0 || len(objects) == 0 {
		t.Fatalf("%d objects, and %d of unknown kinds", len(objects), len(unknown))
	}
	for _, o := range objects {
		schema, ok := collections.Pilot.FindByGroupVersionAliasesKind(o.GroupVersionKind)
		if !ok {
			t.Fatalf("%s is no kind of Istio's", o.GroupVersionKind)
		}
		warning, err := schema.ValidateConfig(o)
		// Each EnvoyFilter gets this warning.
		if warning != nil && !strings.Contains(warning.Error(), "EnvoyFilter exposes internal implementation details") {
			all = append(all, o.Name+": "+warning.Error())
		}
		if err != nil {
			all = append(all, o.Name+": "+err.Error())
		}
	}
	return all
}
