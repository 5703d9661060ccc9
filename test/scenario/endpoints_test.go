package scenario

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/endpoints"
	"github.com/stator-project/stator/test/process"
)

var rewriteEndpoints = flag.Bool("endpoints.rewrite", false, "rewrite the results in docs/results/endpoints.json that TestEndpoints compares")

const endpointResults = "../../docs/results/endpoints.json"

// TestEndpoints: requests to all endpoints are routed and answered as docs/results/endpoints.json has it. The simulator stands in for
// kinds of engines that do not run here, so of these only the routes are compared.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	columns := []endpoints.Column{
		{Engine: "simulator", Kind: "sim"}, {Engine: "SGLang*", Kind: "sglang"}, {Engine: "TensorRT-LLM*", Kind: "trtllm"},
		{Engine: "Dynamo*", Kind: "dynamo"},
	}
	g := startKinds(t, columns)
	for i := range columns {
		c := &columns[i]
		results, err := endpoints.Play(t.Context(), g, endpoints.Models{Model: c.Kind, Vectors: c.Kind})
		if err != nil {
			t.Fatalf("%s: %v", c.Engine, err)
		}
		c.Results = results
		if c.Kind != "sim" {
			c.LeaveAnswers()
		}
	}
	if *rewriteEndpoints {
		if err := endpoints.Replace(endpointResults, columns...); err != nil {
			t.Fatal(err)
		}
	}

	written, err := endpoints.Read(endpointResults)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range written {
		for _, c := range columns {
			if c.Kind == w.Kind && !reflect.DeepEqual(c, w) {
				t.Errorf("%s: the file has\n%v\nfound\n%v\nrun this test with -args -endpoints.rewrite, then make golden", w.Engine, w.Results, c.Results)
			}
		}
	}
}

// startKinds starts a simulated engine for each column, and a gateway in front with a model of that name, whose worker is of that kind.
func startKinds(t *testing.T, columns []endpoints.Column) *process.Gateway {
	t.Helper()
	var models strings.Builder
	for _, c := range columns {
		address, events := freeAddress(t), "ipc://"+filepath.Join(t.TempDir(), "events")
		start(t, "sim", "--listen-address", address, "--model", c.Kind, "--kv-events", events, "--kv-replay", events+".replay")
		more := "healthPath: /health" // Dynamo's default is another one
		if c.Kind == "sim" {
			more = fmt.Sprintf("kvEvents: %q, kvReplay: %q", events, events+".replay")
		}
		fmt.Fprintf(&models, "- {name: %s, path: 'builtin:sim', workers: [{name: %s, engine: %s, address: %q, %s}]}\n",
			c.Kind, c.Kind, c.Kind, address, more)
	}
	g, err := process.StartGateway(t.Context(), process.GatewayConfig{
		Stator: binary, Envoy: envoyPath(t), Folder: t.TempDir(),
		Configuration: "apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels:\n" + models.String(),
		Ready:         func(ctx context.Context, g *process.Gateway) error { return g.Exact(ctx, "sim") },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	return g
}
