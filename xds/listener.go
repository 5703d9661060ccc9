package xds

import (
	"fmt"
	"net/netip"
	"strings"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
)

// Bounds of HTTP/2 connections of clients. A client with more requests at one time opens another connection.
const (
	maxStreams       = 256
	streamWindow     = 256 << 10
	connectionWindow = 4 << 20
)

// connectionBuffer bounds the bytes that Envoy buffers of a connection that is read faster than it is written. Bodies
// of requests have a bound of their own, on the route. So much of a compressed body is decompressed at once, which is
// up to 33 MiB in each worker thread.
const connectionBuffer = 32 << 10

// audience is whom a listener serves.
type audience struct {
	name    string // of the listener
	address string
	node    string // the node id of the Envoy; empty for an Envoy that has none
	version Version
	hints   bool // the routing hints in headers of its clients count
	trusted bool // streams mark its clients as trusted
	own     bool // the Envoy is its operator's own, and its filters set the headers of roles and tenants
}

// buildListeners builds the listeners of one Envoy: the gateway's, and the one for trusted clients if there is one.
func buildListeners(s Settings, node string, v Version) ([]*listenerv3.Listener, error) {
	audiences := []audience{{name: listenerName, address: s.Listen, node: node, version: v, hints: s.HintHeaders, own: s.ownEnvoy}}
	if s.TrustedListen != "" {
		audiences = append(audiences, audience{
			name: trustedName, address: s.TrustedListen, node: node, version: v, hints: true, trusted: true,
		})
	}

	var out []*listenerv3.Listener
	for _, a := range audiences {
		l, err := buildListener(s, a)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// buildListener builds a listener of the gateway.
func buildListener(s Settings, a audience) (*listenerv3.Listener, error) {
	address, err := socketAddress(a.address)
	if err != nil {
		return nil, err
	}
	var p packer
	l := &listenerv3.Listener{
		Name:    a.name,
		Address: address,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: p.pack(buildConnectionManager(s, a, &p))},
		}}, TransportSocket: gatewayTLS(s.TLS, &p)}},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(connectionBuffer),
	}
	return l, p.err
}

// socketAddress parses ip:port. Names are refused, because Envoy does not resolve them here.
func socketAddress(hostPort string) (*corev3.Address, error) {
	a, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", hostPort, err)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}, nil
}

// buildConnectionManager builds the HTTP settings: ext_proc decides, and the router filter forwards.
func buildConnectionManager(s Settings, a audience, p *packer) *hcmv3.HttpConnectionManager {
	m := &hcmv3.HttpConnectionManager{
		StatPrefix: envoynames.ConnectionManager,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			RouteConfigName: routesName, ConfigSource: routesSource(), // apart from the listener, so that a new model drains no connection
		}},
		// The gateway is the edge: it does not trust addresses and paths of clients.
		UseRemoteAddress: wrapperspb.Bool(true),
		NormalizePath:    wrapperspb.Bool(true),
		// Clients that send their headers or their body slowly, or not at all, hold memory.
		RequestHeadersTimeout: seconds(s.HeadersTimeout),
		RequestTimeout:        seconds(s.BodyTimeout),
		// Connections without a request count in the bound of all. Envoy's default is an hour; 0 is no bound.
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: seconds(s.ConnectionIdleTimeout)},
		// nginx speaks HTTP/1.0 to its upstreams by default.
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{AcceptHttp_10: true, DefaultHostForHttp_10: "gateway"},
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
			MaxConcurrentStreams:        wrapperspb.UInt32(maxStreams),
			InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
			InitialConnectionWindowSize: wrapperspb.UInt32(connectionWindow),
		},
		// Engines use the client's id in theirs (cmpl-<id>), so it must reach them. Decisions and access-log
		// entries are joined by another id.
		PreserveExternalRequestId: true,
		// A client without an id of its own gets the one by which logs know its request.
		AlwaysSetRequestIdInResponse: true,
		StreamIdleTimeout:            seconds(s.IdleTimeout),
		EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{{
			Name:        "envoy.http.early_header_mutation.header_mutation",
			TypedConfig: p.pack(&earlyv3.HeaderMutation{Mutations: forgedHeaders(s, a)}),
		}},
		LocalReplyConfig: buildLocalReplies(s, p),
		AccessLog:        buildAccessLogs(s, a, p),
		HttpFilters:      buildFilters(s, a, p),
	}

	setTracing(m, s, a, p)
	return m
}

// authenticated reports whether the gateway authenticates the clients of the listener.
func (a audience) authenticated(s Settings) bool { return s.Auth.isOn() && !a.trusted && !a.own }

// buildFilters lists the filters of requests. Clients are admitted before anything is read of their bodies. Bodies are decompressed before
// the decision, because engines do not decompress. The router filter must be the last one. Between it and the decision nothing changes a
// request that has been decided.
func buildFilters(s Settings, a audience, p *packer) []*hcmv3.HttpFilter {
	var list []*hcmv3.HttpFilter
	if len(s.CORSOrigins) > 0 && !a.trusted && !a.own { // a browser asks without credentials whether it may call
		list = append(list, filter(corsFilter, p.pack(&corsv3.Cors{})))
	}
	if a.authenticated(s) {
		list = append(list, buildAuth(s, p)...)
	}
	list = append(list, buildDecompressor(p), sizeLimit(s, a.version, p), filter(filterName, p.pack(buildExtProc(s, a))))
	if s.AffinityModule != "" {
		list = append(list, buildAffinity(s, p))
	}
	if s.AnswerTokens && !a.own && a.version.hasUsage() {
		list = append(list, buildUsage(p))
	}
	return append(list, filter("envoy.filters.http.router", p.pack(&routerv3.Router{})))
}

// filter returns a filter for HTTP requests.
func filter(name string, config *anypb.Any) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}}
}

// forgedHeaders removes headers that only routers may set from the requests of clients. It comes before ext_proc,
// because without a running router nothing else would remove them. Clients whose hints count keep all headers that
// begin with x-stator- except the gateway's own headers.
func forgedHeaders(s Settings, a audience) []*mutationv3.HeaderMutation {
	rules := []*matcherv3.StringMatcher{beginsWith(envoynames.DestinationPrefix)}
	if a.authenticated(s) { // which sets the header
		rules = append(rules, exactly(s.TenantHeader)...)
	}
	rules = append(rules, exactly(envoynames.HeaderDataRank)...)
	if a.hints {
		rules = append(rules, exactly(envoynames.HeaderModel, envoynames.HeaderDecision, envoynames.HeaderAffinity)...)
		rules = append(rules, exactly(envoynames.MetadataEnvoy, envoynames.MetadataTrusted)...)
	} else {
		rules = append(rules, beginsWith(envoynames.HintPrefix))
	}

	var out []*mutationv3.HeaderMutation
	for _, r := range rules {
		out = append(out, &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_RemoveOnMatch_{
			RemoveOnMatch: &mutationv3.HeaderMutation_RemoveOnMatch{KeyMatcher: r},
		}})
	}
	return out
}

// beginsWith returns a matcher of names that begin with a prefix.
func beginsWith(prefix string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}}
}

// buildExtProc builds the filter that asks routers. The body mode is BUFFERED: the whole prompt is needed, retries
// send the same body, and it is the only mode in which requests can go on when no router answers. Request headers
// must be sent, or Envoy ignores the picks.
func buildExtProc(s Settings, a audience) *extprocv3.ExternalProcessor {
	forwarded := []string{":method", ":path", "content-encoding", "content-length", "content-type", "traceparent"}
	forwarded = append(forwarded, s.SessionHeaders...)
	if a.hints {
		forwarded = append(forwarded, envoynames.HintHeaders()...)
	}
	if s.Splits { // both engines of a request get the same id, and the client's credentials
		forwarded = append(forwarded, "x-request-id", "authorization")
	}
	if (a.trusted || a.own || a.authenticated(s)) && s.TenantHeader != "" {
		forwarded = append(forwarded, s.TenantHeader)
	}
	if a.own && s.RoleHeader != "" {
		forwarded = append(forwarded, s.RoleHeader)
	}

	var rules *mutationv3.HeaderMutationRules
	if s.Splits { // routers set the statuses of a decode worker after which the relay is tried
		rules = &mutationv3.HeaderMutationRules{AllowEnvoy: wrapperspb.Bool(true)}
	}
	return &extprocv3.ExternalProcessor{
		MutationRules: rules,
		GrpcService:   decisionService(a),
		StatPrefix:    "stator",
		// Without an answer in time, the request goes on without a decision, or is refused.
		FailureModeAllow: !s.FailClosed,
		MessageTimeout:   seconds(s.DecisionTimeout),
		// A request that must wait in the router's queue asks once for a longer timeout, up to this one.
		MaxMessageTimeout: seconds(s.IdleTimeout),
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode: extprocv3.ProcessingMode_SEND,
			RequestBodyMode:   extprocv3.ProcessingMode_BUFFERED,
			// Answers are not sent to routers: they are most of the traffic, and nothing in them is needed.
			ResponseHeaderMode:  extprocv3.ProcessingMode_SKIP,
			RequestTrailerMode:  extprocv3.ProcessingMode_SKIP,
			ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
		},

		// Envoy ignores metadata of other namespaces, so without these picks have no effect.
		MetadataOptions: &extprocv3.MetadataOptions{
			ReceivingNamespaces: &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{envoynames.NamespaceLB,
				envoynames.Namespace}},
		},
		// Only these headers leave Envoy: no cookies, and credentials only if routers send prompts to engines.
		ForwardRules: &extprocv3.HeaderForwardingRules{AllowedHeaders: &matcherv3.ListStringMatcher{
			Patterns: exactly(forwarded...),
		}},
	}
}

// exactly returns matchers of names.
func exactly(names ...string) []*matcherv3.StringMatcher {
	var out []*matcherv3.StringMatcher
	for _, n := range names {
		out = append(out, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: n}})
	}
	return out
}

// extProcService returns the gRPC service of the routers. Its streams carry the node id of their Envoy, so that
// routers can tell Envoys on one host apart.
func extProcService(a audience) *corev3.GrpcService {
	g := &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
		ClusterName: extProcCluster, Authority: envoynames.Authority,
	}}}
	if a.own {
		g.GetEnvoyGrpc().Authority = envoynames.SnippetAuthority
	}
	if a.node != "" {
		// Envoy replaces %COMMANDS% in the value; %% is a percent sign.
		id := strings.ReplaceAll(a.node, "%", "%%")
		g.InitialMetadata = []*corev3.HeaderValue{{Key: envoynames.MetadataEnvoy, Value: id}}
	}
	return g
}

// decisionService returns the service for decisions. Its streams also tell whether the clients are trusted.
func decisionService(a audience) *corev3.GrpcService {
	g := extProcService(a)
	if a.trusted {
		g.InitialMetadata = append(g.InitialMetadata, &corev3.HeaderValue{Key: envoynames.MetadataTrusted, Value: "true"})
	}
	return g
}

// routesSource refers to the routes. A listener opens when it has them, however long a busy machine needs for that: without routes it would
// answer 404, and of two Envoys on a port the other one could serve the request.
func routesSource() *corev3.ConfigSource {
	s := adsSource()
	s.InitialFetchTimeout = seconds(0)
	return s
}

// adsSource refers to resources of this package's server.
func adsSource() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		// A changed cluster waits this long for its endpoints, and then uses the cached ones.
		InitialFetchTimeout: seconds(2e9),
	}
}
