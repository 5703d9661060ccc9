package kubernetes_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	chart     = "../../deploy/chart"
	namespace = "llm"
	account   = "system:serviceaccount:" + namespace + ":stator"
)

// accepted has values that users would write, by what they install.
var accepted = map[string]string{
	"a pool":        `inferencePool: qwen`,
	"several pools": `{inferencePools: [qwen, llama], huggingFace: {tokenSecretName: hub, endpoint: "https://hub.example.com"}}`,
	"a selector": `{selector: "app=qwen,tier=gpu", port: "8000,8001", podLabels: {team: serving}, podAnnotations: {example.com/owner: serving},
		nodeSelector: {kubernetes.io/os: linux}, tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]}`,
	"a pool of its own": `{selector: app=qwen, port: "8000,8001", pool: {create: true, failureMode: FailOpen}}`,
	"an Envoy of its own": `{selector: app=qwen, standalone: {enabled: true, port: 8080},
		modelVolume: {persistentVolumeClaim: {claimName: models}}, config: {models: [{name: qwen, path: /models/qwen}]}}`,
	"TLS on Istio":  `{inferencePool: qwen, tls: {selfSigned: true}, provider: {name: istio}}`,
	"Envoy Gateway": `{selector: app=qwen, provider: {name: envoy-gateway, httpRoute: llm, gateway: eg}}`,
	"a planner": `{inferencePool: qwen, planner: {enabled: true, kinds: [{group: nvidia.com, resources: [dynamographdeploymentscalingadapters]}]},
		config: {bus: {url: "nats://bus:4222"}, planner: {algorithm: sla, connector: kubernetes}}}`,
	"places": `{inferencePool: qwen, places: {nodeLabels: true}, planner: {enabled: true},
		config: {bus: {url: "nats://bus:4222"}, planner: {algorithm: sla, connector: kubernetes}}}`,
	"metrics without a token": `{inferencePool: qwen, serviceMonitor: {enabled: true}}`,
	"certificates and metrics": `{inferencePool: qwen, tls: {secretName: picker-tls, verifyClient: true},
		admin: {tokenSecretName: picker-admin}, relay: {enabled: true}, serviceMonitor: {enabled: true}, networkPolicy: {from: [{namespaceSelector: {matchLabels: {gateway: "true"}}}]},
		imagePullSecrets: [{name: registry}]}`,
}

// refused has values with a misspelt field, by its name.
var refused = map[string]string{
	"inferencepool":        `{inferencepool: qwen}`,
	"secret":               `{tls: {secret: picker-tls}}`,
	"nodeLabel":            `{places: {nodeLabel: true}}`,
	"replica":              `{replica: 3}`,
	"enable":               `{standalone: {enable: true}}`,
	"nmae":                 `{provider: {nmae: istio}}`,
	"repo":                 `{image: {repo: example.com/stator}}`,
	"limts":                `{resources: {limts: {memory: 1Gi}}}`,
	"oprator":              `{tolerations: [{key: dedicated, oprator: Exists}]}`,
	"persistentVolumeClam": `{modelVolume: {persistentVolumeClam: {claimName: models}}}`,
	"namespaceSelecter":    `{networkPolicy: {from: [{namespaceSelecter: {}}]}}`,
}

// dryRun has the API server check an installation without storing it.
func (c *cluster) dryRun(values string) (string, error) {
	rendered, err := c.helm(values, "template", "stator", chart, "--namespace", namespace, "--values", "-")
	if err != nil {
		return rendered, err
	}
	return c.kubectl(rendered, "apply", "--server-side", "--dry-run=server", "--namespace", namespace, "-f", "-")
}

func TestKubernetes(t *testing.T) {
	c := startCluster(t)
	c.must(t, "", "create", "namespace", namespace)

	t.Run("Accepted", func(t *testing.T) {
		for name, values := range accepted {
			if out, err := c.dryRun(values); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
	})

	t.Run("Refused", func(t *testing.T) {
		for field, values := range refused {
			if out, err := c.dryRun(values); err == nil || !regexp.MustCompile(`\b`+field+`\b`).MatchString(out) {
				t.Errorf("%s: the refusal does not name %s: %v\n%s", values, field, err, out)
			}
		}
	})

	t.Run("Contradictions", func(t *testing.T) {
		for values, message := range map[string]string{
			`{inferencePool: a, selector: app=a}`:                        "set selector or inferencePool",
			`{inferencePool: a, inferencePools: [b]}`:                    "set inferencePool or inferencePools",
			`{pool: {create: true}}`:                                     "pool.create needs selector",
			`{pool: {create: true}, selector: a=b, inferencePools: [b]}`: "pool.create makes one pool",
			`{tls: {secretName: a, selfSigned: true}}`:                   "set tls.secretName or tls.selfSigned",
			`{tls: {verifyClient: true}}`:                                "tls.verifyClient needs tls.secretName",
			`{standalone: {enabled: true}, tls: {selfSigned: true}}`:     "standalone.enabled has an Envoy of its own",
			`{planner: {enabled: true}}`:                                 "planner.enabled needs config.bus.url",
			`{provider: {name: envoy-gateway}}`:                          "needs provider.httpRoute and provider.gateway",
			`{inferencePool: a, relay: {enabled: true}}`:                 "relay.enabled needs networkPolicy.enabled",
		} {
			if out, err := c.dryRun(values); err == nil || !strings.Contains(out, message) {
				t.Errorf("%s: the refusal is not %q: %v\n%s", values, message, err, out)
			}
		}
	})

	t.Run("BaseIsTheChart", func(t *testing.T) { testBase(t, c) })
	t.Run("Install", func(t *testing.T) { testInstall(t, c) })
	t.Run("Places", func(t *testing.T) { testPlaces(t, c) })
}

// testPlaces installs a picker and a planner that may read nodes. Their accounts may get one, as discovery/kubernetes does, and neither list
// nor change nodes. A removal leaves nothing.
func testPlaces(t *testing.T, c *cluster) {
	before := c.inventory(t)
	c.must(t, `{apiVersion: v1, kind: Node, metadata: {name: gpu-1, labels: {topology.kubernetes.io/rack: "7"}}}`, "create", "-f", "-")
	values := accepted["places"]
	c.mustHelm(t, values, "upgrade", "-i", "stator", chart, "-n", namespace, "--values", "-")

	for _, who := range []string{account, account + "-planner"} {
		node, err := c.kubectl("", "get", "--raw", "/api/v1/nodes/gpu-1", "--as="+who)
		if err != nil || !strings.Contains(node, `"topology.kubernetes.io/rack":"7"`) {
			t.Errorf("%s cannot read a node: %v\n%s", who, err, node)
		}
		for _, verb := range []string{"list", "watch", "patch", "delete"} {
			if out, err := c.kubectl("", "auth", "can-i", verb, "nodes", "--as="+who); err == nil || !strings.HasSuffix(strings.TrimSpace(out), "no") {
				t.Errorf("%s may %s nodes: %s", who, verb, out)
			}
		}
	}
	if node, err := c.kubectl("", "get", "--raw", "/api/v1/nodes/gpu-1", "--as=system:serviceaccount:"+namespace+":stranger"); err == nil {
		t.Errorf("everyone may read nodes: %s", node)
	}

	c.mustHelm(t, "", "uninstall", "stator", "-n", namespace)
	c.must(t, "", "delete", "node", "gpu-1")
	if after := c.inventory(t); !slices.Equal(before, after) {
		t.Errorf("before the installation there were\n%v\nand after its removal there are\n%v", before, after)
	}
}

// testBase compares `kubectl kustomize deploy/base` with the chart's default values, printed by the same program, and has the API server
// check the demo and a base in another namespace.
func testBase(t *testing.T, c *cluster) {
	folder := t.TempDir()
	rendered := c.mustHelm(t, "", "template", "stator", chart)
	write(t, filepath.Join(folder, "chart.yaml"), []byte(rendered))
	write(t, filepath.Join(folder, "kustomization.yaml"), []byte("resources: [chart.yaml]\n"))
	if base := c.must(t, "", "kustomize", "../../deploy/base"); base != c.must(t, "", "kustomize", folder) {
		t.Error("deploy/base is not what helm template prints with default values: run make golden-deploy")
	}
	c.must(t, "", "apply", "--server-side", "--dry-run=server", "-k", "../../deploy/demo")

	base, err := filepath.Abs("../../deploy/base")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	relative, err := filepath.Rel(elsewhere, base)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(elsewhere, "kustomization.yaml"), []byte("namespace: "+namespace+"\nresources: ["+relative+"]\n"))
	out := c.must(t, "", "kustomize", elsewhere)
	if !strings.Contains(out, "- kind: ServiceAccount\n  name: stator\n  namespace: "+namespace+"\n") {
		t.Errorf("the RoleBinding does not follow the namespace:\n%s", out)
	}
	c.must(t, "", "apply", "--server-side", "--dry-run=server", "-k", elsewhere)
}

// pool is an InferencePool with another picker.
const pool = `{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: qwen}, spec: {
	selector: {matchLabels: {app: qwen}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: other, port: {number: 9002}}}}`

// testInstall installs a picker beside a pool with one value, asks what it may do, types what the notes print, and removes it.
func testInstall(t *testing.T, c *cluster) {
	c.must(t, pool, "apply", "--server-side", "-n", namespace, "-f", "-")
	before := c.inventory(t)
	notes := c.mustHelm(t, "", "upgrade", "-i", "stator", chart, "-n", namespace, "--set", "inferencePool=qwen")

	added := slices.DeleteFunc(c.inventory(t), func(name string) bool {
		return slices.Contains(before, name) || strings.Contains(name, "helm.release") // Helm's own record
	})
	if len(added) == 0 || len(added) > 8 {
		t.Errorf("an installation adds %d objects, not 1 to 8: %v", len(added), added)
	}

	rights := c.must(t, "", "auth", "can-i", "--list", "--as="+account, "-n", namespace)
	for _, resource := range []string{"pods", "endpointslices.discovery.k8s.io", "inferencepools.inference.networking.k8s.io"} {
		row := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(resource) + ` .*\[get list watch\]$`)
		if !row.MatchString(rights) {
			t.Errorf("the account cannot read %s:\n%s", resource, rights)
		}
		rights = row.ReplaceAllString(rights, "")
	}
	stranger := c.must(t, "", "auth", "can-i", "--list", "--as=system:serviceaccount:"+namespace+":stranger", "-n", namespace)
	if sortedLines(rights) != sortedLines(stranger) {
		t.Errorf("the account may do more than read three kinds:\n%s\neveryone may:\n%s", rights, stranger)
	}

	var printed []string
	for _, command := range regexp.MustCompile(`(?m)^  kubectl .*(get|patch) inferencepool.*$`).FindAllString(notes, -1) {
		out, err := c.run("bash", "kubectl() { "+c.kubectlPath+" \"$@\"; }\n"+command)
		if err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
		printed = append(printed, strings.TrimSpace(out))
	}
	if want := []string{`{"failureMode":"FailClose","group":"","kind":"Service","name":"other","port":{"number":9002}}`,
		"inferencepool.inference.networking.k8s.io/qwen patched", "qwen FailClose"}; !slices.Equal(printed, want) {
		t.Errorf("the commands of the notes print\n%q, want\n%q", printed, want)
	}

	c.mustHelm(t, "", "uninstall", "stator", "-n", namespace)
	if after := c.inventory(t); !slices.Equal(before, after) {
		t.Errorf("before the installation there were\n%v\nand after its removal there are\n%v", before, after)
	}
}

// inventory lists all objects by kind and name, without the ones that the server makes for itself.
func (c *cluster) inventory(t *testing.T) (names []string) {
	t.Helper()
	kinds := strings.Fields(c.must(t, "", "api-resources", "--verbs=list,delete", "-o", "name"))
	kinds = slices.DeleteFunc(kinds, func(kind string) bool {
		name, _, _ := strings.Cut(kind, ".")
		return slices.Contains([]string{"events", "leases", "ipaddresses"}, name)
	})
	out := c.must(t, "", "get", strings.Join(kinds, ","), "--all-namespaces", "-o", "name", "--ignore-not-found")
	names = strings.Fields(out)
	slices.Sort(names)
	return names
}

func sortedLines(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
