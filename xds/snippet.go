package xds

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
)

// SnippetSettings are the settings of Snippet.
type SnippetSettings struct {
	// Settings are the gateway's settings. Listen and TrustedListen have no effect.
	Settings
	// Version is the version of the Envoy to which the snippet is added.
	Version Version
	// NodeID is sent to routers, so that they distinguish Envoys on one host. Empty means that the host is enough.
	NodeID string
	// XDS is the address of the control plane, as in BootstrapSettings, from which pools get their endpoints. With an empty one the
	// snippet has Endpoints.
	XDS string
	// XDSServerName is the DNS name in the certificate of the control plane. It has an effect with ExtProcSecrets alone.
	XDSServerName string
	// Endpoints lists the addresses of the workers of each model, ip:port. A model without any has an example.
	Endpoints map[string][]string
	// FullDuplex has Envoy send bodies in pieces and keep none of them, the mode of Istio for inference: FULL_DUPLEX_STREAMED in place
	// of BUFFERED. Then requests fail while no router answers, and have one attempt.
	FullDuplex bool

	cluster string // the cluster of workers if another control plane names it
}

// exampleEndpoint stands for a worker in a pool without known endpoints. The range is reserved for documentation.
const exampleEndpoint = "192.0.2.1:8000"

// Snippet returns, as YAML with comments, what to add to the configuration of an Envoy so that routers choose workers there.
// Its parts are the same as Build's, without the fields that the version lacks, and with additions for an Envoy that serves
// other things besides.
func Snippet(s SnippetSettings) ([]byte, error) {
	parts, err := s.parts()
	if err != nil {
		return nil, err
	}
	return s.print(parts)
}

// parts returns what a static configuration needs, in the order in which Snippet prints it.
func (s SnippetSettings) parts() ([]snippetPart, error) {
	p, err := s.build()
	if err != nil {
		return nil, err
	}
	parts := []snippetPart{
		{partManager, aboutManager, p.manager, s.commentsOfManager()},
		{partHost, s.aboutHost(), p.host, s.commentsOfHost()},
		{partClusters, aboutClusters, p.clusters, s.commentsOfClusters()},
	}
	if !s.Version.BoundsBodiesByRoute() {
		limit := wrapperspb.UInt32(uint32(min(s.MaxBodyBytes, math.MaxUint32)))
		parts = append(parts, snippetPart{partListener, aboutListener, &listenerv3.Listener{PerConnectionBufferLimitBytes: limit}, nil})
	}
	for i := range parts {
		if err := s.Version.trim(parts[i].content.ProtoReflect()); err != nil {
			return nil, fmt.Errorf("%s: %w", parts[i].key, err)
		}
	}
	return parts, nil
}

// snippetParts are the parts of Build's configuration that routers need in an Envoy of someone else.
type snippetParts struct {
	manager  *hcmv3.HttpConnectionManager
	host     *routev3.VirtualHost
	clusters *bootstrapv3.Bootstrap_StaticResources
}

// build builds the parts. They have all fields of the newest version.
func (s SnippetSettings) build() (p snippetParts, err error) {
	if len(s.Models) == 0 {
		return p, errors.New("no model is named")
	}
	s.Listen, s.TrustedListen = "127.0.0.1:0", "" // of the Envoy to which the parts are added
	s.ownEnvoy = true
	built, err := Build(s.Settings, &fleet.Snapshot{})
	if err != nil {
		return p, err
	}
	listeners, err := buildListeners(s.Settings, s.NodeID, s.Version)
	if err != nil {
		return p, err
	}

	var manager hcmv3.HttpConnectionManager
	if err := listeners[0].FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(&manager); err != nil {
		return p, fmt.Errorf("read connection manager: %w", err)
	}
	p.manager, err = s.connectionManager(&manager)
	if err != nil {
		return p, err
	}
	p.host, err = s.virtualHost(built.Routes[0].VirtualHosts[0])
	if err != nil {
		return p, err
	}
	p.clusters, err = s.clusters(built.Clusters)
	return p, err
}

// Keys of the parts of a static configuration. They are not fields of one message, because the parts belong to several places.
const (
	partManager  = "http_connection_manager"
	partHost     = "virtual_host"
	partClusters = "static_resources"
	partListener = "listener"
)

// snippetPart is one part of a snippet: a message under a key, with comments.
type snippetPart struct {
	key, about string
	content    proto.Message
	comments   []comment
}

// connectionManager returns the parts of a connection manager: the removal of headers, the access log and the filter.
func (s SnippetSettings) connectionManager(m *hcmv3.HttpConnectionManager) (*hcmv3.HttpConnectionManager, error) {
	at := slices.IndexFunc(m.HttpFilters, func(f *hcmv3.HttpFilter) bool { return f.Name == filterName })
	if at < 0 {
		return nil, errors.New("the gateway has no filter for decisions")
	}
	decide := m.HttpFilters[at]
	// Routers refuse paths that they do not know, so the other routes of this Envoy must not ask them.
	decide.Disabled = true

	var p packer
	if s.FullDuplex {
		var filter extprocv3.ExternalProcessor
		if err := decide.GetTypedConfig().UnmarshalTo(&filter); err != nil {
			return nil, fmt.Errorf("read filter: %w", err)
		}
		setFullDuplex(&filter)
		decide.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: p.pack(&filter)}
	}
	for _, log := range m.AccessLog {
		log.Filter = s.ofPools(&p)
	}
	return &hcmv3.HttpConnectionManager{
		EarlyHeaderMutationExtensions: m.EarlyHeaderMutationExtensions, AccessLog: m.AccessLog, HttpFilters: []*hcmv3.HttpFilter{decide},
	}, p.err
}

// setFullDuplex changes the mode of the filter. Envoy refuses failure_mode_allow in it, and needs the mode of trailers. Routers need the
// id of a request, because the reply that has the booking's id may be lost.
func setFullDuplex(f *extprocv3.ExternalProcessor) {
	const requestID = "x-request-id"
	f.ProcessingMode.RequestBodyMode = extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED
	f.ProcessingMode.RequestTrailerMode = extprocv3.ProcessingMode_SEND
	f.FailureModeAllow = false
	isSent := func(m *matcherv3.StringMatcher) bool { return m.GetExact() == requestID }
	if headers := f.ForwardRules.AllowedHeaders; !slices.ContainsFunc(headers.Patterns, isSent) {
		headers.Patterns = append(headers.Patterns, exactly(requestID)...)
	}
}

// ofPools matches the requests that routers must know of: requests with a booking, wherever they went, and requests to a pool.
func (s SnippetSettings) ofPools(p *packer) *accesslogv3.AccessLogFilter {
	var names []string
	for _, c := range s.poolNames() {
		names = append(names, fmt.Sprintf("%q", c))
	}
	return when(p, fmt.Sprintf("%q in metadata.filter_metadata || xds.cluster_name in [%s]",
		envoynames.Namespace, strings.Join(names, ", ")))
}

// poolNames returns the clusters to which the routes of Stator lead.
func (s SnippetSettings) poolNames() (names []string) {
	if s.cluster != "" {
		return []string{s.cluster}
	}
	for _, m := range s.Models {
		names = append(names, PoolName(m))
	}
	if len(s.Models) > 1 {
		names = append(names, undecidedName)
	}
	return names
}

// virtualHost returns the routes to the pools, with the filter enabled. One model has one route for the paths that routers
// read. With several, the routes of the models come first, because they match a router's decision.
func (s SnippetSettings) virtualHost(all *routev3.VirtualHost) (*routev3.VirtualHost, error) {
	var p packer
	// A filter that is disabled is enabled by a configuration, also by an empty one.
	enabled := p.pack(&routev3.FilterConfig{Config: &anypb.Any{}})
	host := &routev3.VirtualHost{}
	for _, r := range all.Routes {
		isOfModel := slices.Contains(s.Models, r.Name)
		if len(s.Models) == 1 {
			if r.Name != parsedPaths[0] {
				continue
			}
			r.Name = s.Models[0]
		}
		if !isOfModel {
			r.Match = matchParsed()
		}

		if s.FullDuplex {
			r.GetRoute().RetryPolicy = nil
		}
		r.TypedPerFilterConfig = map[string]*anypb.Any{filterName: enabled}
		host.Routes = append(host.Routes, r)
	}

	if len(host.Routes) == 0 {
		return nil, errors.New("the gateway has no routes")
	}
	return host, p.err
}

// matchParsed matches all paths whose requests routers read.
func matchParsed() *routev3.RouteMatch {
	var paths []string
	for _, p := range parsedPaths {
		paths = append(paths, regexp.QuoteMeta(p))
	}
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{
		Regex: "(?:" + strings.Join(paths, "|") + ")/?",
	}}}
}

// clusters returns the pools, the cluster of the routers, and the cluster of the control plane if pools get endpoints from it.
func (s SnippetSettings) clusters(all []*clusterv3.Cluster) (*bootstrapv3.Bootstrap_StaticResources, error) {
	out := &bootstrapv3.Bootstrap_StaticResources{}
	for _, model := range s.Models {
		at := slices.IndexFunc(all, func(c *clusterv3.Cluster) bool { return c.Name == PoolName(model) })
		if at < 0 {
			return nil, fmt.Errorf("there is no pool of model %s", model)
		}
		if err := s.setEndpoints(all[at], model); err != nil {
			return nil, err
		}
		out.Clusters = append(out.Clusters, all[at])
	}

	for _, c := range all {
		if c.Name == extProcCluster || c.Name == undecidedName && len(s.Models) > 1 {
			out.Clusters = append(out.Clusters, c)
		}
	}
	if s.XDS == "" {
		return out, nil
	}

	control, err := buildXDSCluster(s.XDS, s.ExtProcSecrets, s.XDSServerName)
	if err != nil {
		return nil, err
	}
	out.Clusters = append(out.Clusters, control)
	return out, nil
}

// setEndpoints has a pool get its endpoints from the control plane's endpoint service, or lists them.
func (s SnippetSettings) setEndpoints(c *clusterv3.Cluster, model string) error {
	if s.XDS != "" {
		source := adsSource()
		source.ConfigSourceSpecifier = &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: xdsSource()}
		c.EdsClusterConfig.EdsConfig = source
		return nil
	}

	addresses := s.Endpoints[model]
	if len(addresses) == 0 {
		addresses = []string{exampleEndpoint}
	}
	var list []*endpointv3.LbEndpoint
	for _, text := range addresses {
		address, err := socketAddress(text)
		if err != nil {
			return fmt.Errorf("worker of model %s: %w", model, err)
		}
		e := endpoint(address, 1, corev3.HealthStatus_UNKNOWN)
		if s.EnginesInClear.Has(text) {
			markPlain(e)
		}
		list = append(list, e)
	}

	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	c.EdsClusterConfig = nil
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: c.Name, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: list}},
	}
	return nil
}

// print joins the parts to one document with comments.
func (s SnippetSettings) print(parts []snippetPart) ([]byte, error) {
	var doc document
	doc.about(s.about())
	for i, part := range parts {
		about := fmt.Sprintf("PART %d of %d: %s", i+1, len(parts), part.about)
		if err := doc.addMessage(part.key, about, part.content, part.comments); err != nil {
			return nil, fmt.Errorf("%s: %w", part.key, err)
		}
	}
	return bytes.TrimSuffix(doc.b.Bytes(), []byte("\n")), nil
}
