// Package envoynames holds the names that Envoy's configuration and the services behind Envoy share:
// metadata namespaces, metadata keys and headers.
package envoynames

// Names of the Gateway API endpoint picker protocol. NamespaceLB is a namespace of dynamic metadata. The
// destination is a metadata key and a header, because the protocol requires both.
const (
	NamespaceLB             = "envoy.lb"
	HeaderDestination       = "x-gateway-destination-endpoint"
	HeaderDestinationServed = "x-gateway-destination-endpoint-served"

	// DestinationPrefix begins the names of all headers of the protocol.
	DestinationPrefix = "x-gateway-destination-"
)

// Stator's own names.
const (
	// Namespace is the namespace of dynamic metadata. Booking is set in it before the pick, and the access-log entry
	// carries it. Decision is set with the pick, and CachedTokens with the pick of a request whose prompt a prefill
	// worker has computed.
	Namespace    = "stator"
	Booking      = "booking"
	Decision     = "decision"
	CachedTokens = "cached_tokens"

	// Model, Worker, PromptTokens and Overlap are set with the pick if Envoys write an access log: facts for its lines. Overlap is how
	// many tokens of the prompt the router found in the worker's cache.
	Model        = "model"
	Worker       = "worker"
	PromptTokens = "prompt_tokens"
	Overlap      = "overlap_tokens"

	// BookingLB and DecisionLB are Booking and Decision as keys of NamespaceLB, for an Envoy whose filter takes that namespace alone: those
	// of Istio's InferencePools.
	BookingLB  = "stator.booking"
	DecisionLB = "stator.decision"

	// NamespaceUsage is the namespace of typed metadata in which Envoy's filter ai_protocol_manager publishes the usage of an answer, a
	// message of the type TypeUsage.
	NamespaceUsage = "envoy.ai.token_usage"
	TypeUsage      = "type.googleapis.com/envoy.data.ai.v3.TokenUsage"

	// TagFirstToken is the custom tag of access-log entries that has the time from the request to the first byte of the response's
	// body, in microseconds: that of the first token, if the engine streams.
	TagFirstToken = "stator.first_token_us"

	// HeaderModel selects the pool when there are several models. HeaderDecision carries the id of the
	// decision to the client.
	HeaderModel    = "x-stator-model"
	HeaderDecision = "x-stator-decision"

	// HeaderCachedTokens carries to the client how many tokens of the prompt the prefill worker had in its cache. The usage in
	// the answer is the decode worker's, which has computed nothing of the prompt.
	HeaderCachedTokens = "x-stator-cached-tokens"

	// HeaderPrefiller carries the host and port of the prefill worker to the sidecar of a decode worker, as pickers of llm-d name it.
	HeaderPrefiller = "x-prefiller-host-port"

	// HeaderAffinity carries the key of a conversation. The Wasm filter sets it on requests without a decision, and
	// Envoy chooses the worker by it.
	HeaderAffinity = "x-stator-affinity"

	// HintPrefix begins the headers by which trusted clients influence routing.
	HintPrefix     = "x-stator-"
	HeaderPriority = "x-stator-priority"
	HeaderStrict   = "x-stator-strict-priority"
	HeaderDeadline = "x-stator-deadline"
	HeaderClass    = "x-stator-class"
	HeaderTenant   = "x-stator-tenant"
	HeaderWorker   = "x-stator-worker"
	HeaderRank     = "x-stator-rank"
	HeaderPrefill  = "x-stator-prefill"
	// HeaderMigrationLimit lowers how often a stream is continued at another worker.
	HeaderMigrationLimit = "x-stator-migration-limit"

	// HeaderSpeculative has the prefix of a conversation's next turn computed after the answer.
	HeaderSpeculative = "x-stator-speculative-prefill"

	// HeaderDataRank is vLLM's header that selects a data-parallel rank. Routers set it; clients must not.
	HeaderDataRank = "x-data-parallel-rank"

	// HeaderSession is vLLM's header with the client's session. Routers set it for a session that clients name elsewhere.
	HeaderSession = "x-session-id"

	// DetailPrefix begins the response code details of answers that the router gave itself. They have
	// OpenAI's shape already, so Envoy must not replace them.
	DetailPrefix = "stator_"

	// Authority is the :authority of the streams of an Envoy whose whole configuration is from xds, and SnippetAuthority
	// the same for an Envoy to which its operator added the snippet. Both read picks from the metadata.
	Authority        = "xds.stator"
	SnippetAuthority = "snippet.stator"

	// MetadataTrusted is the gRPC metadata, of value "true", with which an Envoy opens the streams of requests
	// that came on its listener for trusted clients.
	MetadataTrusted = "x-stator-trusted"

	// MetadataEnvoy is the gRPC metadata with which an Envoy opens all its streams: its node id.
	MetadataEnvoy = "x-stator-envoy"

	// Filter is the name of the ext_proc filter in configurations that this program writes, Routers the name of the
	// cluster of routers, and Undecided the name of the cluster without endpoints.
	Filter    = "stator.ext_proc"
	Routers   = "stator-extproc"
	Undecided = "stator-undecided"

	// ConnectionManager is the stat prefix of the gateway's connection manager.
	ConnectionManager = "gateway"
)

// RouterHeaders returns the headers that only routers and Envoy may set: no client may, not even a trusted one.
func RouterHeaders() []string {
	return []string{HeaderDestination, HeaderDataRank, HeaderModel, HeaderDecision, HeaderAffinity}
}

// HintHeaders returns the headers of all hints.
func HintHeaders() []string {
	return []string{HeaderPriority, HeaderStrict, HeaderDeadline, HeaderClass, HeaderTenant, HeaderWorker, HeaderRank, HeaderPrefill,
		HeaderMigrationLimit, HeaderSpeculative}
}

// Header is one header. Its key is in lower case.
type Header struct{ Key, Value string }
