package conformance

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	suite "sigs.k8s.io/gateway-api-inference-extension/conformance"
	"sigs.k8s.io/gateway-api-inference-extension/conformance/tests"
	confsuite "sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// The namespaces and images of the suite. Package engine is loaded under the name of the suite's server, and Stator under that of the
// suite's picker.
const (
	infra       = "inference-conformance-infra"
	backend     = "inference-conformance-app-backend"
	engineImage = "gcr.io/k8s-staging-gateway-api/echo-basic:v20251106-v1.3.0-263-g47c3435c"
)

const leftOut = "GatewayWeightedAcrossTwoInferencePools"

// expected are the names of the tests that must run, because the suite skips tests of features that are off. They are sorted.
var expected = []string{
	"EppUnAvailableFailOpen", "GatewayDestinationEndpointServed", "GatewayFollowingEPPRouting",
	"GatewayFollowingEPPRoutingWithDataParallelism", "HTTPRouteInvalidInferencePoolRef", "HTTPRouteMultipleGatewaysDifferentPools",
	"HTTPRouteMultipleRulesDifferentPools", "InferencePoolAccepted", "InferencePoolAppProtocol", "InferencePoolHTTPRoutePortValidation",
	"InferencePoolInvalidEPPService", "InferencePoolMissingEPPRef", "InferencePoolResolvedRefsCondition",
}

// TestPicker runs the suite, and then the table of failures with the objects that the suite leaves behind.
func TestPicker(t *testing.T) {
	n := startNode(t)
	for _, gateway := range []string{"conformance-primary", "conformance-secondary"} {
		n.startGateway(t, gateway)
	}
	var ran []string
	for i := range tests.ConformanceTests {
		c := &tests.ConformanceTests[i]
		run := c.Test
		c.Test = func(t *testing.T, s *confsuite.ConformanceTestSuite) {
			ran = append(ran, c.ShortName)
			run(t, s)
		}
	}

	began := time.Now()
	t.Run("Suite", func(t *testing.T) {
		o := suite.DefaultOptions(t)
		o.GatewayClassName = "istio"
		o.CleanupBaseResources = false
		o.SkipTests = []string{leftOut}
		o.ManifestFS = []fs.FS{manifests{suite.Manifests}}
		suite.RunConformanceWithOptions(t, o)
	})
	t.Logf("the suite took %s", time.Since(began).Round(time.Second))
	if slices.Sort(ran); !slices.Equal(ran, expected) {
		t.Errorf("the suite ran %q, want %q", ran, expected)
	}
	if t.Failed() {
		t.Log(n.kubectl(t, "", "get", "pods", "--all-namespaces", "--output", "wide"))
		t.Log(n.kubectl(t, "", "--namespace", backend, "logs", "deployment/primary-app-endpoint-picker", "--tail", "20"))
		return
	}
	t.Run("Failures", func(t *testing.T) { testFailures(t, n) })
}

// manifests are the suite's, whose pickers are started as Stator's.
type manifests struct{ fs.FS }

// pickerPod is what the suite's manifest has of a picker's pod, from its grace period to the arguments.
var pickerPod = regexp.MustCompile(`terminationGracePeriodSeconds: 130\n((?:.*\n)*?) +args:\n` +
	` +- --pool-name\n +- "(.+)"\n +- --pool-namespace\n +- "(.+)"\n(?: +- .*\n){6}`)

// ReadFile returns a file.
func (m manifests) ReadFile(name string) ([]byte, error) {
	text, err := fs.ReadFile(m.FS, name)
	if name != "resources/base.yaml" || err != nil {
		return text, err
	}
	pickers := strings.Count(string(text), "- --pool-name\n")
	if found := len(pickerPod.FindAll(text, -1)); found != pickers || found == 0 {
		return nil, fmt.Errorf("%d of %d pickers are written as this test expects: compare pickerPod with the suite's base.yaml", found, pickers)
	}
	text = pickerPod.ReplaceAll(text, []byte(`volumes: [{name: config, configMap: {name: picker}}]
$1        volumeMounts: [{name: config, mountPath: /etc/stator}]
        args: [extproc, --config, /etc/stator/stator.yaml, --inference-pool, $3/$2, --insecure, --listen-address, "0.0.0.0:9002",
          --health-address, "0.0.0.0:9003"]
`))
	return append(text, pickerConfig...), nil
}

// pickerConfig lets the suite's paths pass, which are none of engines.
const pickerConfig = `
---
apiVersion: v1
kind: ConfigMap
metadata: {name: picker, namespace: inference-conformance-app-backend}
data:
  stator.yaml: |
    apiVersion: stator.dev/v1alpha1
    kind: Stator
    gateway: {passPaths: ["/*"]}
`

// startGateway starts the Envoy of a Gateway in a pod, and gives its Service the address of the pod. The Envoy program needs the C library
// of this machine.
func (n *node) startGateway(t *testing.T, name string) {
	t.Helper()
	if err := n.try("", "get", "namespace", infra); err != nil {
		n.kubectl(t, "", "create", "namespace", infra)
	}
	libraries, err := filepath.Glob("/usr/lib/*-linux-gnu")
	if err != nil || len(libraries) != 1 {
		t.Fatalf("the folders of the C library are %q: one is expected, as Debian has it", libraries)
	}
	text := strings.NewReplacer("<gateway>", name, "<infra>", infra, "<image>", engineImage, "<istiod>", nodeAddress,
		"<libraries>", filepath.Base(libraries[0]), "<envoy>", filepath.Dir(os.Getenv("STATOR_TEST_ENVOY"))).Replace(gatewayObjects)
	n.kubectl(t, text, "--namespace", infra, "apply", "-f", "-")
	n.kubectl(t, "", "--namespace", infra, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
	address := n.kubectl(t, "", "--namespace", infra, "get", "pod", name, "--output", "jsonpath={.status.podIP}")
	n.kubectl(t, "", "--namespace", infra, "patch", "service", name+"-istio", "--subresource=status", "--type=merge", "--patch",
		fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": %q}]}}}`, address))
}

// gatewayObjects are the Envoy of a Gateway, its Service, and the translation of the suite's headers.
const gatewayObjects = `apiVersion: v1
kind: Service
metadata: {name: <gateway>-istio}
spec: {type: LoadBalancer, selector: {gateway.networking.k8s.io/gateway-name: <gateway>}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: <gateway>}
data:
  envoy.yaml: |
    node: {cluster: <gateway>.<infra>, metadata: {NAMESPACE: <infra>, LABELS: {gateway.networking.k8s.io/gateway-name: <gateway>},
      CLUSTER_ID: Kubernetes, ISTIO_VERSION: 1.31.0}}
    dynamic_resources:
      ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: istiod}}]}
      lds_config: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
      cds_config: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
    static_resources:
      clusters:
      - name: istiod
        typed_extension_protocol_options:
          envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
            "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
            explicit_http_config: {http2_protocol_options: {}}
        load_assignment: {cluster_name: istiod, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: <istiod>,
          port_value: 15010}}}}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: <gateway>, labels: {gateway.networking.k8s.io/gateway-name: <gateway>}}
spec:
  containers:
  - name: envoy
    image: <image>
    command: [/envoy/envoy, --config-path, /etc/envoy/envoy.yaml, --concurrency, "1", --log-level, warn,
      --service-node, router~$(POD_IP)~<gateway>.<infra>~<infra>.svc.cluster.local]
    securityContext: {runAsUser: 0}
    env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    volumeMounts:
    - {name: libraries, mountPath: /lib/<libraries>}
    - {name: loader, mountPath: /lib64}
    - {name: envoy, mountPath: /envoy}
    - {name: config, mountPath: /etc/envoy}
  volumes:
  - {name: libraries, hostPath: {path: /usr/lib/<libraries>}}
  - {name: loader, hostPath: {path: /usr/lib64}}
  - {name: envoy, hostPath: {path: <envoy>}}
  - {name: config, configMap: {name: <gateway>}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: <gateway>}
spec:
  workloadSelector: {labels: {gateway.networking.k8s.io/gateway-name: <gateway>}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: GATEWAY, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager,
      subFilter: {name: envoy.filters.http.ext_proc}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: subset
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
          request_rules:
          - header: test-epp-endpoint-selection
            on_header_present: {metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset}
  - applyTo: HTTP_FILTER
    match: {context: GATEWAY, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager,
      subFilter: {name: envoy.filters.http.ext_proc}}}}}
    patch:
      operation: MERGE
      value:
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
          metadata_options: {forwarding_namespaces: {untyped: [envoy.lb.subset_hint]}}
  - applyTo: ROUTE_CONFIGURATION
    match: {context: GATEWAY}
    patch:
      operation: MERGE
      value:
        response_headers_to_add:
        - header: {key: x-conformance-test-served-endpoint, value: "%DYNAMIC_METADATA(envoy.lb:x-gateway-destination-endpoint-served)%"}
`

// testFailures has what clients see, by the state of the picker and the failureMode of the pool. A request with a body differs, because
// Envoy cannot take back what it has sent to a picker that is dead.
func testFailures(t *testing.T, n *node) {
	n.kubectl(t, failureObjects, "--namespace", backend, "apply", "-f", "-")
	gateway := n.kubectl(t, "", "--namespace", infra, "get", "pod", "conformance-primary", "--output", "jsonpath={.status.podIP}")
	picker := n.kubectl(t, "", "--namespace", backend, "get", "pod", "--selector", "app=primary-app-backend-epp",
		"--output", "jsonpath={.items[0].status.podIP}")
	for _, state := range []struct {
		name, picker, subset string
		statuses             [4]int // of FailClose with GET and POST, FailOpen with GET and POST
	}{
		{"answers", picker, "", [4]int{200, 200, 200, 200}},
		{"answers, and no pod may be picked", picker, "10.244.0.254", [4]int{503, 503, 503, 503}},
		{"is dead and still in its EndpointSlice", nodeAddress, "", [4]int{500, 500, 200, 500}},
		{"has left its EndpointSlice", "", "", [4]int{500, 500, 200, 200}},
	} {
		endpoints := "[]"
		if state.picker != "" {
			endpoints = fmt.Sprintf("[{addresses: [%q]}]", state.picker)
		}
		n.kubectl(t, pickerSlice+endpoints, "--namespace", backend, "apply", "-f", "-")
		n.eventually(t, "the picker "+state.name, func() error {
			for i, request := range []string{"GET close", "POST close", "GET open", "POST open"} {
				method, pool, _ := strings.Cut(request, " ")
				for range 5 {
					status, err := ask(method, "http://"+gateway+"/"+pool, state.subset)
					if err != nil || status != state.statuses[i] {
						return fmt.Errorf("%s: status %d, want %d: %v", request, status, state.statuses[i], err)
					}
				}
			}
			return nil
		})
	}
}

// ask sends a request to the table's host, and returns the status of its answer.
func ask(method, url, subset string) (int, error) {
	body := ""
	if method == http.MethodPost {
		body = `{"model": "conformance-fake-model", "prompt": "Hello"}`
	}
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Host = "failures.example.com"
	if subset != "" {
		r.Header.Set("test-epp-endpoint-selection", subset)
	}
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Body.Close()
}

// failureObjects are two pools with the pods of the suite's first one, and a picker whose endpoints the test writes.
const failureObjects = `apiVersion: v1
kind: Service
metadata: {name: failing}
spec: {ports: [{name: grpc, port: 9002, appProtocol: http2}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: close}
spec: {selector: {matchLabels: {app: primary-inference-model-server}}, targetPorts: [{number: 3000}],
  endpointPickerRef: {name: failing, port: {number: 9002}, failureMode: FailClose}}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: open}
spec: {selector: {matchLabels: {app: primary-inference-model-server}}, targetPorts: [{number: 3000}],
  endpointPickerRef: {name: failing, port: {number: 9002}, failureMode: FailOpen}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: failures}
spec:
  hostnames: [failures.example.com]
  parentRefs: [{name: conformance-primary, namespace: inference-conformance-infra}]
  rules:
  - {matches: [{path: {value: /close}}], backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: close}]}
  - {matches: [{path: {value: /open}}], backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: open}]}
`

const pickerSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: failing, labels: {kubernetes.io/service-name: failing}}
addressType: IPv4
ports: [{name: grpc, port: 9002, appProtocol: http2}]
endpoints: `
