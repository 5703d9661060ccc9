// Package deploy_test checks the manifests with nothing but Go. `make test-kubernetes` has a real API server check them.
package deploy_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/internal/envoynames"
)

// object has the fields of Kubernetes objects that the tests read.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Rules    []struct{ Verbs []string }
	Data     map[string]string
	Spec     struct {
		Template struct{ Spec podSpec }
	}
}

type podSpec struct {
	SecurityContext struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      int                   `yaml:"runAsUser"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
	Containers                    []struct {
		Name, Image     string
		Args            []string
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		Lifecycle struct {
			PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
		}
	}
}

// namespaced lists the kinds that the chart may create, but for places.yaml. None of them is cluster-wide, and none defines another kind.
var namespaced = []string{
	"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy",
	"InferencePool", "ServiceMonitor", "DestinationRule", "EnvoyExtensionPolicy", "BackendTrafficPolicy", "ClientTrafficPolicy",
}

// mostObjects is how many objects an installation beside an InferencePool has.
const mostObjects = 8

func TestObjects(t *testing.T) {
	base := objects(t, "base/stator.yaml")
	if len(base) > mostObjects {
		t.Errorf("the base has %d objects, more than %d", len(base), mostObjects)
	}

	for _, o := range slices.Concat(base, objects(t, "demo/stator.yaml"), objects(t, "demo/engines.yaml")) {
		if o.Metadata.Name == "" || o.Metadata.Namespace != "" {
			t.Errorf("%s %q has no name, or a namespace: the user selects the namespace", o.Kind, o.Metadata.Name)
		}
		for _, rule := range o.Rules {
			if !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) {
				t.Errorf("%s %s allows %v: the picker only reads", o.Kind, o.Metadata.Name, rule.Verbs)
			}
		}
	}
	for path, text := range templates(t) {
		for _, kind := range regexp.MustCompile(`(?m)^kind: (\w+)`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(namespaced, kind[1]) && filepath.Base(path) != "places.yaml" {
				t.Errorf("%s has kind %s, which is not one of %v", path, kind[1], namespaced)
			}
		}
	}
}

// TestNodesByChoice: the only objects that belong to the cluster allow to get nodes and nothing else, and are there with one value alone, which
// is off by default.
func TestNodesByChoice(t *testing.T) {
	text := string(read(t, "chart/templates/places.yaml"))
	if !strings.Contains(text, "{{- if .Values.places.nodeLabels -}}\n") || !strings.HasSuffix(text, "{{- end }}\n") {
		t.Error("chart/templates/places.yaml does not depend on places.nodeLabels")
	}
	rules := regexp.MustCompile(`(?s)\nrules:\n(.*?)---\n`).FindStringSubmatch(text)
	if rules == nil || rules[1] != "- apiGroups: [\"\"]\n  resources: [nodes]\n  verbs: [get]\n" {
		t.Errorf("the rules are %q", rules)
	}
	decoded := map[string]any{}
	if err := yaml.Unmarshal(read(t, "chart/values.yaml"), &decoded); err != nil {
		t.Fatal(err)
	}
	places, _ := decoded["places"].(map[string]any)
	if enabled, isBool := places["nodeLabels"].(bool); !isBool || enabled {
		t.Errorf("places.nodeLabels is %v by default", places["nodeLabels"])
	}
}

func TestPods(t *testing.T) {
	const picker = "picker"
	drain := regexp.MustCompile(`--drain-time=(\d+)s`)
	for _, path := range []string{"base/stator.yaml", "demo/stator.yaml", "demo/engines.yaml"} {
		for _, o := range objects(t, path) {
			if o.Kind != "Deployment" {
				continue
			}
			pod := o.Spec.Template.Spec
			if c := pod.SecurityContext; !c.RunAsNonRoot || c.RunAsUser != 65532 || c.SeccompProfile.Type != "RuntimeDefault" {
				t.Errorf("%s: the pod's security context is %+v", path, c)
			}

			for _, c := range pod.Containers {
				s := c.SecurityContext
				if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
					t.Errorf("%s: the security context of container %s is %+v", path, c.Name, s)
				}
				if c.Name != picker {
					continue
				}
				var seconds int
				match := drain.FindStringSubmatch(strings.Join(c.Args, " "))
				if match == nil {
					t.Fatalf("%s: container %s has no --drain-time in seconds", path, c.Name)
				}
				_, _ = fmt.Sscan(match[1], &seconds)
				preStop := c.Lifecycle.PreStop.Sleep.Seconds
				if preStop == 0 || pod.TerminationGracePeriodSeconds <= preStop+seconds {
					t.Errorf("%s: the pod is killed after %d s, and waits for %d s and drains for %d s before", path, pod.TerminationGracePeriodSeconds, preStop, seconds)
				}
			}
		}
	}
}

// TestFlags compares the arguments of all containers with the help of the commands, and the flags in the chart's templates with all of
// them.
func TestFlags(t *testing.T) {
	flag := regexp.MustCompile(`--[a-z][a-z-]*`)
	help := map[string][]string{"envoy": {"--config-path", "--service-node", "--disable-hot-restart"}}
	for _, command := range []string{"extproc", "xds", "sim"} {
		help[command] = flag.FindAllString(string(run(t, command, "--help")), -1)
	}

	for _, path := range []string{"base/stator.yaml", "demo/stator.yaml", "demo/engines.yaml"} {
		for _, o := range objects(t, path) {
			for _, c := range o.Spec.Template.Spec.Containers {
				command, args := c.Args[0], c.Args[1:]
				if c.Name == "envoy" {
					command, args = c.Name, c.Args
				}
				for _, arg := range args {
					name, _, _ := strings.Cut(arg, "=")
					if strings.HasPrefix(arg, "-") && !slices.Contains(help[command], name) {
						t.Errorf("%s: %s has no flag %s", path, command, name)
					}
				}
			}
		}
	}

	all := slices.Concat(slices.Collect(maps.Values(help))...)
	for path, text := range templates(t) {
		if filepath.Ext(path) != ".yaml" {
			continue
		}
		for _, name := range flag.FindAllString(text, -1) {
			if !slices.Contains(all, name) {
				t.Errorf("%s: no command has the flag %s", path, name)
			}
		}
	}
}

// TestValues checks that each value has a comment, and that the schema, which refuses all others, has it.
func TestValues(t *testing.T) {
	var root yaml.Node
	if err := yaml.Unmarshal(read(t, "chart/values.yaml"), &root); err != nil {
		t.Fatal(err)
	}
	var schema property
	if err := json.Unmarshal(read(t, "chart/values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}

	delete(schema.Properties, "global") // Helm adds it in charts that depend on this one
	compareValues(t, "", root.Content[0], schema, false)
}

// property is a part of the schema.
type property struct {
	AdditionalProperties *bool
	Properties           map[string]property
}

func compareValues(t *testing.T, path string, values *yaml.Node, schema property, explained bool) {
	t.Helper()
	if schema.AdditionalProperties == nil || *schema.AdditionalProperties {
		t.Errorf("the schema lets unknown values pass at %q", path)
	}

	names := map[string]bool{}
	for i := 0; i < len(values.Content); i += 2 {
		key, value := values.Content[i], values.Content[i+1]
		name, at := key.Value, path+"/"+key.Value
		names[name] = true
		inner, known := schema.Properties[name]
		if !known {
			t.Errorf("the schema lacks %s", at)
		}
		commented := explained || key.HeadComment != ""
		if len(inner.Properties) > 0 {
			compareValues(t, at, value, inner, commented)
		} else if !commented && !slices.Contains(conventional, at) {
			t.Errorf("values.yaml does not explain %s", at)
		}
	}
	for name := range schema.Properties {
		if !names[name] {
			t.Errorf("values.yaml lacks %s/%s of the schema", path, name)
		}
	}
}

// conventional lists values that every chart has.
var conventional = []string{
	"/image/repository", "/image/pullPolicy", "/imagePullSecrets", "/podLabels", "/podAnnotations", "/nodeSelector", "/tolerations",
	"/podDisruptionBudget/enabled", "/networkPolicy/enabled",
}

// TestForgedHeaders checks that Envoy Gateway removes the headers from clients that Stator's own listener removes.
func TestForgedHeaders(t *testing.T) {
	text := string(read(t, "chart/templates/provider.yaml"))
	for _, name := range []string{envoynames.DestinationPrefix, envoynames.HintPrefix, envoynames.HeaderDataRank} {
		if !strings.Contains(text, "value: "+name+"}") {
			t.Errorf("the ClientTrafficPolicy does not remove %s", name)
		}
	}
}

// TestBootstrap compares the bootstrap of the Envoy in the pod with the program's.
func TestBootstrap(t *testing.T) {
	want := run(t, "envoy", "bootstrap", "--xds-address", "unix:///run/stator/xds.sock")
	if !bytes.Equal(read(t, "chart/files/envoy.json"), want) {
		t.Errorf("chart/files/envoy.json is out of date: run make golden-deploy")
	}
}

// TestRendered compares the checksum of the chart with the one in the files that were rendered from it.
func TestRendered(t *testing.T) {
	sum := sha256.New()
	err := filepath.WalkDir("chart", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			sum.Write(read(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sum.Write(read(t, "demo/values.yaml"))

	for _, path := range []string{"base/stator.yaml", "demo/stator.yaml"} {
		if !strings.Contains(string(read(t, path)), fmt.Sprintf("%x", sum.Sum(nil))) {
			t.Errorf("%s was rendered from another chart: run make golden-deploy", path)
		}
	}
}

// program builds stator once for all tests.
var program = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "deploy")
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "stator")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/stator").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return path, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func run(t *testing.T, args ...string) []byte {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, args...).Output()
	if err != nil {
		t.Fatalf("stator %v: %v", args, err)
	}
	return out
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func objects(t *testing.T, path string) (list []object) {
	t.Helper()
	for d := yaml.NewDecoder(bytes.NewReader(read(t, path))); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		list = append(list, o)
	}
}

// templates returns the texts of the chart's templates by path.
func templates(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("chart/templates/*")
	if err != nil || len(paths) == 0 {
		t.Fatalf("chart/templates has %v: %v", paths, err)
	}
	texts := map[string]string{}
	for _, path := range paths {
		texts[path] = string(read(t, path))
	}
	return texts
}
