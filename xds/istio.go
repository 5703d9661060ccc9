package xds

import (
	"bytes"
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// envoyFilter is Istio's object by which parts are added to the configuration that istiod writes.
type envoyFilter struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   map[string]string `yaml:"metadata"`
	Spec       struct {
		WorkloadSelector map[string]map[string]string `yaml:"workloadSelector"`
		ConfigPatches    []*configPatch               `yaml:"configPatches"`
	} `yaml:"spec"`
}

// configPatch is one part, and the place to which it is added.
type configPatch struct {
	ApplyTo string         `yaml:"applyTo"`
	Match   map[string]any `yaml:"match"`
	Patch   struct {
		Operation string     `yaml:"operation"`
		Value     *yaml.Node `yaml:"value"`
	} `yaml:"patch"`

	about string
}

// Istio returns, as YAML, the objects by which routers choose workers behind a gateway of Istio. With an InferencePool istiod
// writes all but the access log. Without one they are an EnvoyFilter.
func Istio(s SnippetSettings, m Mesh) ([]byte, error) {
	if err := s.checkMesh(&m); err != nil {
		return nil, err
	}
	if m.Pool != "" {
		return istioLog(&s, &m)
	}
	if m.Service == "" || m.Route == "" && m.RouteName == "" {
		return nil, fmt.Errorf("name the Service of the workers with --service, and the HTTPRoute that leads to it with --route, or " +
			"the route of a VirtualService with --route-name; or name an InferencePool with --inference-pool")
	}

	s.cluster = fmt.Sprintf("outbound|%d||%s.%s.svc.cluster.local", m.Port, m.Service, m.Namespace)
	eds := s.XDS
	s.XDS = "" // Envoy refuses a service of a cluster that comes from a control plane
	parts, err := s.build()
	if err != nil {
		return nil, err
	}
	patches, err := s.istioPatches(&m, parts, eds)
	if err != nil {
		return nil, err
	}

	f := envoyFilter{APIVersion: "networking.istio.io/v1alpha3", Kind: "EnvoyFilter"}
	f.Metadata = map[string]string{"name": "stator-" + m.Service, "namespace": m.GatewayNamespace}
	key, value, _ := strings.Cut(m.gatewayLabel(), "=")
	f.Spec.WorkloadSelector = map[string]map[string]string{"labels": {key: value}}
	f.Spec.ConfigPatches = patches
	return f.print(wrap(fmt.Sprintf(aboutFilter, s.Version)))
}

const aboutFilter = "Stator's routers behind a gateway of Istio, for Envoy %s. Apply it with `kubectl apply -f -`, and remove " +
	"it with `kubectl delete -f -`.\n\nA workload that has a pool (InferencePool) needs no EnvoyFilter: see " +
	"--inference-pool.\n\nistiod drops patches that it cannot read, and says nothing unless its webhook is there. " +
	"`stator doctor --envoy-admin` finds what is missing."

// gatewayLabel returns the label of the gateway's pods.
func (m *Mesh) gatewayLabel() string {
	if m.GatewayLabels != "" {
		return m.GatewayLabels
	}
	return "gateway.networking.k8s.io/gateway-name=" + m.Gateway
}

// istioPatches returns the parts with their places. Each place is a match of istiod's: a patch without a place is added to
// nothing, and istiod reports neither that nor a patch whose type it does not know. eds is the address of the control plane that
// lists the workers; it is empty if istiod lists them.
func (s SnippetSettings) istioPatches(m *Mesh, parts snippetParts, eds string) ([]*configPatch, error) {
	const manager = "envoy.filters.network.http_connection_manager"
	in := func(filter map[string]any) map[string]any {
		return map[string]any{"listener": map[string]any{"filterChain": map[string]any{"filter": filter}}}
	}
	var p packer
	pool, routers := parts.clusters.Clusters[0], parts.clusters.Clusters[1]
	host := m.Service + "." + m.Namespace + ".svc.cluster.local"
	route := m.RouteName
	if route == "" {
		route = m.Namespace + "." + m.Route + ".0"
	}
	// The rules of an HTTPRoute become routes with the names of istiod.
	merged, err := istioPool(pool, s.Models[0], eds)
	if err != nil {
		return nil, err
	}

	list := []struct {
		about, to, operation string
		match                map[string]any
		value                proto.Message
	}{
		{"The routers: they decide, and receive the access log.", "CLUSTER", "ADD", map[string]any{}, routers},
		{
			"The filter that asks routers. Routes that do not enable it do not ask.", "HTTP_FILTER", "INSERT_BEFORE",
			in(map[string]any{"name": manager, "subFilter": map[string]any{"name": "envoy.filters.http.router"}}),
			parts.manager.HttpFilters[0],
		},
		{
			"The access log, whose entries end bookings, and the removal of headers that only routers may set.", "NETWORK_FILTER", "MERGE",
			in(map[string]any{"name": manager}), &listenerv3.Filter{Name: manager, ConfigType: &listenerv3.Filter_TypedConfig{
				TypedConfig: p.pack(&hcmv3.HttpConnectionManager{
					AccessLog: parts.manager.AccessLog, EarlyHeaderMutationExtensions: parts.manager.EarlyHeaderMutationExtensions,
				}),
			}},
		},
		{
			"The route to the workers. Its name is <namespace>.<HTTPRoute>.<number of the rule>, or http[].name of a VirtualService.",
			"HTTP_ROUTE", "MERGE",
			map[string]any{"routeConfiguration": map[string]any{"vhost": map[string]any{"route": map[string]any{"name": route}}}},
			istioRoute(parts.host.Routes[0], &p),
		},
		{
			"The cluster of the workers obeys picks, and reports who served if its version can.", "CLUSTER", "MERGE",
			map[string]any{"cluster": map[string]any{"service": host, "portNumber": m.Port}}, merged,
		},
	}
	if p.err != nil {
		return nil, p.err
	}

	var patches []*configPatch
	for _, l := range list {
		value, err := s.valueNode(l.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.to, err)
		}
		l.match["context"] = "GATEWAY"
		patch := &configPatch{ApplyTo: l.to, Match: l.match, about: l.about}
		patch.Patch.Operation, patch.Patch.Value = l.operation, value
		patches = append(patches, patch)
	}
	return patches, nil
}

// istioRoute returns what is merged into a route of istiod. MERGE appends to lists, and istiod's retry policy has its own
// predicates and status codes already, so the lists of Stator's are left out.
func istioRoute(r *routev3.Route, p *packer) *routev3.Route {
	action := r.GetRoute()
	retry := action.RetryPolicy
	return &routev3.Route{
		// istiod reads a configuration only if it has a type, so the FilterConfig of a static Envoy cannot be used. This type enables a
		// disabled filter, too.
		TypedPerFilterConfig: map[string]*anypb.Any{filterName: p.pack(&extprocv3.ExtProcPerRoute{
			Override: &extprocv3.ExtProcPerRoute_Overrides{Overrides: &extprocv3.ExtProcOverrides{}},
		})},
		RequestHeadersToRemove: r.RequestHeadersToRemove,
		ResponseHeadersToAdd:   r.ResponseHeadersToAdd,
		RequestBodyBufferLimit: r.RequestBodyBufferLimit,
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			Timeout: action.Timeout, IdleTimeout: action.IdleTimeout, HashPolicy: action.HashPolicy,
			RetryPolicy: &routev3.RetryPolicy{
				RetryOn: retry.RetryOn, NumRetries: retry.NumRetries, PerTryIdleTimeout: retry.PerTryIdleTimeout,
			},
		}},
	}
}

// istioPool returns what is merged into the cluster of the workers. eds is the address of the control plane that lists them;
// empty if istiod does.
func istioPool(pool *clusterv3.Cluster, model, eds string) (*clusterv3.Cluster, error) {
	// The type of the cluster, its TLS and its connection options stay those of istiod. MERGE cannot set a value to zero, but a
	// message that has only zeros in it is one that is set.
	c := &clusterv3.Cluster{
		LoadBalancingPolicy: pool.LoadBalancingPolicy, LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED,
		CircuitBreakers: pool.CircuitBreakers, OutlierDetection: pool.OutlierDetection, CommonLbConfig: pool.CommonLbConfig,
	}
	if eds == "" {
		return c, nil
	}

	// gRPC's own client resolves a name, and has no list of clusters.
	if strings.Contains(eds, ",") || strings.HasPrefix(eds, unixPrefix) {
		return nil, fmt.Errorf("--xds-address is %q: a gateway of Istio takes one address, so use the name of the Service", eds)
	}
	if err := CheckServers([]string{eds}, false); err != nil {
		return nil, fmt.Errorf("--xds-address: %w", err)
	}

	source := adsSource()
	source.ConfigSourceSpecifier = &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
		ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
		// envoy_grpc needs a cluster of the bootstrap, and istiod's gateways have none for this.
		GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_GoogleGrpc_{
			GoogleGrpc: &corev3.GrpcService_GoogleGrpc{TargetUri: eds, StatPrefix: "stator_eds"},
		}}},
	}}
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: PoolName(model), EdsConfig: source}
	return c, nil
}

// valueNode returns a message as YAML, with the fields that the version has.
func (s SnippetSettings) valueNode(m proto.Message) (*yaml.Node, error) {
	if err := s.Version.trim(m.ProtoReflect()); err != nil {
		return nil, err
	}
	return messageNode(m)
}

// print returns the object as YAML, with a comment before each patch.
func (f *envoyFilter) print(about string) ([]byte, error) {
	var doc yaml.Node
	if err := doc.Encode(f); err != nil {
		return nil, err
	}
	doc.HeadComment = about + "\n"
	_, spec := stepInto(&doc, "spec")
	_, list := stepInto(spec, "configPatches")
	// A comment belongs to a node, and the nodes of a struct are there only after it is encoded.
	for i, patch := range f.Spec.ConfigPatches {
		list.Content[i].HeadComment = wrap(patch.about)
	}

	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// istioLog returns the objects for an InferencePool: istiod writes the filter and the cluster, and the access log is what is
// missing.
func istioLog(s *SnippetSettings, m *Mesh) ([]byte, error) {
	r, err := s.serviceOf()
	if err != nil {
		return nil, err
	}
	key, value, _ := strings.Cut(m.gatewayLabel(), "=")
	about := wrap(fmt.Sprintf(aboutPool, m.Pool, r.name, r.port, r.host, r.port))
	return docs(fmt.Sprintf(`%s
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata:
  name: stator
  namespace: %s
spec:
  selector:
    matchLabels:
      %s: %s
  accessLogging:
  - providers:
    - name: stator
`, about, m.GatewayNamespace, key, value)), nil
}

const aboutPool = "Stator's routers behind a gateway of Istio with the InferencePool %s. istiod writes the filter and the " +
	"cluster of workers by itself: no EnvoyFilter is needed. The pool must name the routers as its picker:\n" +
	"  endpointPickerRef: {name: %s, port: {number: %d}}\n" +
	"The access log of the gateway ends bookings. Without it all bytes of answers pass through the routers, and a router that " +
	"dies cuts them off. It needs these lines in the mesh configuration (the ConfigMap istio, or meshConfig of the chart and of " +
	"IstioOperator), and the object below:\n" +
	"  extensionProviders:\n" +
	"  - name: stator\n" +
	"    envoyHttpAls: {service: %s, port: %d, logName: stator}\n" +
	"An HTTPRoute that leads to the pool needs `timeouts: {request: 0s}`. Istio retries twice by default, which can double a body " +
	"that trailers follow: set `retry: {attempts: 0}` if clients send trailers."
