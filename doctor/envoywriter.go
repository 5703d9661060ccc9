package doctor

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/envoynames"
)

// Control planes of others write filters that ask routers, too. Their users cannot follow advice about Envoy's own settings, because the
// control plane would overwrite them: it is replaced by advice about the objects that it reads.

// writer is the control plane that has written a filter.
type writer uint8

const (
	anyone       writer = iota // a person, Stator, or a control plane that is not known
	istiod                     // for an InferencePool
	envoyGateway               // for an EnvoyExtensionPolicy
)

// Names by which the filters of control planes are recognised.
const (
	istiodFilter       = "envoy.filters.http.ext_proc"
	istiodPlaceholder  = "dummy"     // the cluster of the filter on routes without an InferencePool
	istiodOutbound     = "outbound|" // begins the names of clusters for Services
	envoyGatewayFilter = "envoy.filters.http.ext_proc/envoyextensionpolicy/"
)

// writerOf returns the control plane that has written a filter.
func writerOf(filter, config node) writer {
	name := filter.text("name")
	switch cluster := routerCluster(config.at("grpc_service")); {
	case strings.HasPrefix(name, envoyGatewayFilter):
		return envoyGateway
	case name == istiodFilter && (cluster == istiodPlaceholder || strings.HasPrefix(cluster, istiodOutbound)):
		return istiod
	}
	return anyone
}

// writer returns the control plane that has written the filters of all paths; anyone if they differ.
func (e *envoySeen) writer() (all writer) {
	for i := range e.paths {
		w := writerOf(e.paths[i].filter, e.paths[i].config)
		if i > 0 && w != all {
			return anyone
		}
		all = w
	}
	return all
}

// advice replaces the remedy of findings of a check. what is a part of their text. An empty remedy means that the finding needs no action.
type advice struct {
	check, what    string
	istio, gateway string
	isNote         bool // under these control planes
}

// keep is a remedy that is right for a control plane, too.
const keep = "keep"

const (
	timeoutOfRule = "set `timeouts: {request: 0s}` in the rule of the HTTPRoute"
	ofPolicy      = " of the BackendTrafficPolicy"
	attempts      = "set `retry: {attempts: 0}` in the rule of the HTTPRoute, or retries.attempts of the VirtualService"
)

// advices are the remedies for other control planes. The first one that fits counts.
var advices = []advice{
	{check: "envoy-filter-routes", what: "no route",
		istio:   "have the HTTPRoute lead to an InferencePool whose endpointPickerRef is the routers",
		gateway: "name the HTTPRoute in targetRefs of the EnvoyExtensionPolicy"},
	{check: "envoy-filter-routes", what: "is disabled on it",
		istio:   "have its HTTPRoute lead to the InferencePool, not to a Service; istiod drops filters of rules with CORS or faults",
		gateway: "name its HTTPRoute in targetRefs of the EnvoyExtensionPolicy"},
	{check: "envoy-filter-mode", what: "response headers", istio: "", gateway: ""},
	{check: "envoy-filter-mode", what: "request_body_mode is " + fullDuplex, isNote: true,
		istio:   "nothing can be set: run two replicas of the routers, whose Service leaves out those that are not ready",
		gateway: "set `body: Buffered` and `failOpen: true` in the EnvoyExtensionPolicy"},
	{check: "envoy-filter-mode", what: "request_body_mode is", istio: keep, gateway: "set `body: Buffered` in the EnvoyExtensionPolicy"},
	{check: "envoy-failure-mode", what: "failure_mode_allow", istio: keep, gateway: "set `failOpen: true` in the EnvoyExtensionPolicy"},
	{check: "envoy-decision-time", what: "message_timeout", istio: keep,
		gateway: "set messageTimeout of the EnvoyExtensionPolicy above the time for a decision and the longest wait in a queue"},
	{check: "envoy-namespaces", what: "lacks " + envoynames.NamespaceLB, istio: keep,
		gateway: "add it to metadata.writableNamespaces of the EnvoyExtensionPolicy"},
	{check: "envoy-access-log", what: "no gRPC access log",
		istio:   "add the Telemetry and the extensionProviders that `stator envoy snippet --for istio --inference-pool NAME` prints",
		gateway: "add the EnvoyProxy that `stator envoy snippet --for envoy-gateway` prints, and refer to it in the Gateway"},
	{check: "envoy-access-log", what: "has no filter", isNote: true, istio: "set accessLogging[].filter of the Telemetry, or leave it",
		gateway: "set telemetry.accessLog.settings[].matches of the EnvoyProxy, or leave it"},
	{check: "envoy-access-log", what: "gathers entries", isNote: true, istio: "Telemetry has no such setting; an EnvoyFilter can set it",
		gateway: "EnvoyProxy has no such setting; an EnvoyPatchPolicy can set it"},
	{check: "envoy-headers", what: "does not remove", isNote: true,
		istio:   "add a RequestHeaderModifier with these names to the rule of the HTTPRoute; a pick of a client has no effect here",
		gateway: "add them to headers.earlyRequestHeaders.remove of the ClientTrafficPolicy"},
	{check: "envoy-headers", what: "credentials", istio: "", gateway: ""},
	{check: "envoy-body-limit", what: "bodies", istio: keep,
		gateway: "set requestBuffer.limit" + ofPolicy + " and connection.bufferLimit of the ClientTrafficPolicy"},
	{check: "envoy-decompressor", what: "no decompressor",
		istio:   "add envoy.filters.http.decompressor by an EnvoyFilter if you have such clients",
		gateway: "nothing can be set: clients must send plain bodies"},
	{check: "envoy-route-timeout", what: "its timeout is", istio: timeoutOfRule, gateway: timeoutOfRule},
	{check: "envoy-route-timeout", what: "without data", isNote: true, istio: "merge route.idle_timeout by an EnvoyFilter",
		gateway: "set timeout.http.streamIdleTimeout" + ofPolicy},
	{check: "envoy-route-timeout", what: "max_stream_duration", istio: "remove it from the EnvoyFilter that sets it",
		gateway: "remove timeout.http.maxStreamDuration" + ofPolicy},
	{check: "envoy-retry", what: fullDuplex, isNote: true, istio: attempts + ", if clients send trailers",
		gateway: "remove retry" + ofPolicy + " if clients send trailers"},
	{check: "envoy-retry", what: "no retry_policy", isNote: true, istio: "remove `retry: {attempts: 0}` from the rule of the HTTPRoute",
		gateway: "set `retry: {numRetries: 1}`" + ofPolicy},
	{check: "envoy-retry", what: "it retries up to", istio: "set `retry: {attempts: 1}` in the rule of the HTTPRoute",
		gateway: "set `retry: {numRetries: 1}`" + ofPolicy},
	{check: "envoy-router-cluster", what: "circuit_breakers", istio: "raise connectionPool.http.http2MaxRequests of the DestinationRule",
		gateway: "set backendSettings.circuitBreaker of extProc in the EnvoyExtensionPolicy"},
	{check: "envoy-pool-policy", what: "", istio: "have the HTTPRoute lead to the InferencePool: istiod writes this policy for pools",
		gateway: "set loadBalancer.endpointOverride" + ofPolicy + ", as `stator envoy snippet --for envoy-gateway` prints it"},
	{check: "envoy-pool-limits", what: "circuit_breakers", istio: "raise connectionPool of the DestinationRule",
		gateway: "set circuitBreaker" + ofPolicy},
	{check: "envoy-pool-limits", what: "healthy_panic_threshold",
		istio:   "set outlierDetection.minHealthPercent of the DestinationRule to 0",
		gateway: "set healthCheck.panicThreshold" + ofPolicy + " to 0"},
	{check: "envoy-pool-limits", what: "idle connections", istio: "set connectionPool.http.idleTimeout of the DestinationRule to 4s",
		gateway: "set timeout.http.connectionIdleTimeout" + ofPolicy + " to 4s"},
}

// advise replaces remedies by those that users of the control plane can follow, and leaves out findings that need no action there.
func (w writer) advise(check string, found []Finding) []Finding {
	if w == anyone {
		return found
	}
	kept := found[:0:0]
	for _, f := range found {
		i := slices.IndexFunc(advices, func(a advice) bool { return a.check == check && strings.Contains(f.What, a.what) })
		if i < 0 {
			kept = append(kept, f)
			continue
		}

		remedy := advices[i].istio
		if w == envoyGateway {
			remedy = advices[i].gateway
		}

		f.Note = f.Note || advices[i].isNote
		switch remedy {
		case "":
			continue
		case keep:
		default:
			f.Remedy = remedy
		}
		kept = append(kept, f)
	}
	return kept
}

// reachesRouters reports whether a cluster leads to routers: it is one of theirs, or has an address of one. Envoy Gateway has a cluster for
// the filter and another one for the access log.
func (e *envoySeen) reachesRouters(name string, routers map[string]bool) bool {
	if routers[name] || name == envoynames.Routers {
		return true
	}
	at := map[netip.AddrPort]bool{}
	for router := range routers {
		for _, h := range e.endpoints[router] {
			at[h.address] = h.address.IsValid()
		}
	}
	return slices.ContainsFunc(e.endpoints[name], func(h endpointSeen) bool { return at[h.address] })
}
