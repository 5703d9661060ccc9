package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/internal/cli"
)

// snippet returns what `stator envoy snippet` prints, and its errors.
func snippet(t *testing.T, args string) (text, errs string, err error) {
	t.Helper()
	var out, bad bytes.Buffer
	env := environment{out: &out, err: &bad, hard: t.Context()}
	err = Main(t.Context(), env, append([]string{"envoy", "snippet"}, strings.Fields(args)...))
	return out.String(), bad.String(), err
}

// TestSnippetsForMeshes compares the objects of each way with a golden file. `make test-istio` asks Istio's code for its opinion of them.
func TestSnippetsForMeshes(t *testing.T) {
	for name, args := range map[string]string{
		"istio":         "--for istio -n llm --gateway istio-system/ingress --service vllm --route qwen",
		"istio-eds":     "--for istio -n llm --gateway-labels istio=ingressgateway --service vllm --route-name qwen --eds-only --pool qwen --envoy 1.40",
		"istio-pool":    "--for istio -n llm --gateway istio-system/ingress --inference-pool qwen",
		"envoy-gateway": "--for envoy-gateway -n llm --gateway infra/eg --route qwen",
		"standalone":    "--for standalone -n llm",
	} {
		text, errs, err := snippet(t, args)
		if err != nil {
			t.Errorf("%s: %v, %s", name, err, errs)
			continue
		}
		file := filepath.Join("testdata", "snippet-"+name+".yaml")
		if rewrite() {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || string(want) != text {
			t.Errorf("%s differs (%v): run go test ./cmd/stator -args -rewrite, and read the diff", file, err)
		}

		all := yaml.NewDecoder(strings.NewReader(text))
		for {
			var object struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
			}
			err := all.Decode(&object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || object.Kind == "" || object.Metadata.Name == "" || object.Metadata.Namespace == "" {
				t.Errorf("%s: %v: %+v", file, err, object)
				break
			}
		}
	}
}

// TestSnippetsForMeshesNeedNames: errors say which flag is missing or wrong.
func TestSnippetsForMeshesNeedNames(t *testing.T) {
	const istio, eg = "--for istio -n llm --gateway a/b ", "--for envoy-gateway -n llm --gateway a/b "
	for args, want := range map[string]string{
		"--for kgateway":                   "use istio, envoy-gateway or standalone",
		"--for istio":                      "--namespace",
		"--for istio -n llm":               "--gateway NAMESPACE/NAME",
		istio:                              "--service",
		istio + "--service vllm":           "--route",
		istio + "--service Vllm --route r": "--service is \"Vllm\"",
		istio + "--service vllm --route-name a{b":                                 "--route-name is",
		istio + "--service vllm --route r --port 0":                               "--port is 0",
		istio + "--service vllm --route r --eds-only":                             "--pool",
		istio + "--service vllm --route r --pool a --pool b":                      "one model",
		istio + "--service vllm --route r --secrets /etc/x":                       "--secrets",
		istio + "--inference-pool q --extproc-address 10.0.0.1:9002":              "--extproc-address is \"10.0.0.1:9002\"",
		"--for istio -n llm --gateway-labels x --service v --route r":             "--gateway-labels is",
		istio + "--service v --route r --eds-only --pool q --xds-address a:1,b:1": "takes one address",
		eg:                                  "--route",
		eg + "--route r --eds-only":         "--eds-only",
		eg + "--route r --inference-pool q": "endpointPickerRef",
		"--for standalone -n llm --xds-address localhost": "use ip:port, name:port",
	} {
		_, errs, err := snippet(t, args)
		if err == nil || !errors.Is(err, cli.ErrUsage) && !strings.Contains(err.Error(), want) ||
			errors.Is(err, cli.ErrUsage) && !strings.Contains(errs, want) {
			t.Errorf("%q: %v, %q; want %q", args, err, errs, want)
		}
	}
}
