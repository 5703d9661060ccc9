// Package envoynames holds the words that Envoy's configuration and those who answer Envoy must
// spell alike: metadata namespaces and keys, header names.
//
// It holds nothing else.
package envoynames

// The Gateway API endpoint picker's words. The namespace is of untyped dynamic metadata; the
// picked key is also a header, because the protocol asks for both.
const (
	NamespaceLB = "envoy.lb"
	Picked      = "x-gateway-destination-endpoint"
	Served      = "x-gateway-destination-endpoint-served"
	Subset      = "x-gateway-destination-endpoint-subset"
)

// Our own words. Booking is set before a pick and joins access-log entries; Decision is set
// with the pick and is shown to clients.
const (
	Namespace = "stator"
	Booking   = "booking"
	Decision  = "decision"

	// HeaderModel chooses the pool where there are several models; HeaderDecision carries the
	// decision's id on responses.
	HeaderModel    = "x-stator-model"
	HeaderDecision = "x-stator-decision"

	// HintPrefix begins the headers by which trusted clients say how a request is to be routed.
	HintPrefix     = "x-stator-"
	HeaderPriority = "x-stator-priority"
	HeaderStrict   = "x-stator-strict-priority"
	HeaderDeadline = "x-stator-deadline"
	HeaderClass    = "x-stator-class"
	HeaderTenant   = "x-stator-tenant"
	HeaderWorker   = "x-stator-worker"
	HeaderRank     = "x-stator-rank"

	// DetailPrefix begins the response code details of answers that extproc gave instead of a
	// worker: they are in OpenAI's shape already.
	DetailPrefix = "stator_"

	// Authority is what an Envoy that we configured calls the server of its decisions.
	Authority = "stator"

	// ConnectionManager is the stat prefix of the gateway's connection manager.
	ConnectionManager = "gateway"
)

// Hints lists the headers of hints.
func Hints() []string {
	return []string{HeaderPriority, HeaderStrict, HeaderDeadline, HeaderClass, HeaderTenant, HeaderWorker, HeaderRank}
}
