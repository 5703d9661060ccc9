package xds

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	samplersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/samplers/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Tracing has Envoys export spans of requests, between the client's span and the router's. The zero value has none.
type Tracing struct {
	// Receiver is http://host:port, with a path before /v1/traces if it has one, or grpc://host:port.
	Receiver string
	// Ratio is the share of the requests without a trace context that are sampled, 0 to 1.
	Ratio float64
}

// tracesCluster is the cluster of the receiver, and exportWait bounds the export of one batch.
const (
	tracesCluster = "stator_traces"
	exportWait    = 5 * time.Second
)

// receiver returns the URL of the receiver; nil if this Envoy makes no spans. An Envoy of an operator has a tracer of its operator's.
func (s Settings) receiver(a audience) *url.URL {
	u, err := url.Parse(s.Tracing.Receiver)
	if err != nil || u.Host == "" || a.own {
		return nil
	}
	return u
}

// setTracing has the connection manager make a span for a request, one for the call of a router, and one for each attempt at an engine. The
// engine gets the router's span as its parent: Envoy passes the router's header on. One before 1.38 replaces the header by its own span,
// which is in the same trace.
//
// The tracer samples, because the connection manager would sample by the request id, and write the result into it. Engines have the
// client's id in theirs, and it need not be a UUID.
func setTracing(m *hcmv3.HttpConnectionManager, s Settings, a audience, p *packer) {
	u := s.receiver(a)
	if u == nil {
		return
	}

	c := &tracev3.OpenTelemetryConfig{ServiceName: "envoy", Sampler: sampler(s.Tracing.Ratio, p)}
	if u.Scheme == "grpc" {
		c.GrpcService = &corev3.GrpcService{Timeout: seconds(exportWait), TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: tracesCluster},
		}}
	} else {
		c.HttpService = &corev3.HttpService{HttpUri: &corev3.HttpUri{
			Uri: u.JoinPath("v1", "traces").String(), Timeout: seconds(exportWait),
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: tracesCluster},
		}}
	}
	m.Tracing = &hcmv3.HttpConnectionManager_Tracing{
		SpawnUpstreamSpan: wrapperspb.Bool(true), NoContextPropagation: true,
		Provider: &tracev3.Tracing_Http{
			Name:       "envoy.tracers.opentelemetry",
			ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: p.pack(c)},
		},
	}
	m.RequestIdExtension = &hcmv3.RequestIDExtension{TypedConfig: p.pack(&uuidv3.UuidRequestIdConfig{
		PackTraceReason: wrapperspb.Bool(false), UseRequestIdForTraceSampling: wrapperspb.Bool(false),
	})}
}

// sampler samples as routers do: by the flag of a request's trace context, and by a ratio without one.
func sampler(ratio float64, p *packer) *corev3.TypedExtensionConfig {
	const million = 1e6
	share := &typev3.FractionalPercent{Numerator: uint32(ratio * million), Denominator: typev3.FractionalPercent_MILLION}
	return &corev3.TypedExtensionConfig{
		Name: "envoy.tracers.opentelemetry.samplers.parent_based",
		TypedConfig: p.pack(&samplersv3.ParentBasedSamplerConfig{WrappedSampler: &corev3.TypedExtensionConfig{
			Name:        "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based",
			TypedConfig: p.pack(&samplersv3.TraceIdRatioBasedSamplerConfig{SamplingPercentage: share}),
		}}),
	}
}

// buildTraces builds the cluster of the receiver; nil if there is none.
func buildTraces(s Settings) (*clusterv3.Cluster, error) {
	u := s.receiver(audience{})
	if u == nil {
		return nil, nil
	}
	c, err := buildServers(tracesCluster, []string{net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))})
	if err != nil {
		return nil, fmt.Errorf("the receiver of traces: %w", err)
	}
	if u.Scheme == "grpc" {
		var p packer
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: p.pack(overHTTP2(&corev3.Http2ProtocolOptions{}))}
		return c, p.err
	}
	return c, nil
}
