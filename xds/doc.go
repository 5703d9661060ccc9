// Package xds builds Envoy's configuration from the fleet, and serves it.
//
// [Build] is pure. From a fleet snapshot and the gateway's settings it builds one listener and its secrets, one route table, the cluster
// of the routers, and for each model a cluster with its endpoints. [Server] pushes the result of Build over ADS, the endpoints of a
// cluster at most once a second on average. The package makes no decisions about requests. It configures how Envoy asks for them,
// and how Envoy routes without one: affinity first, weights otherwise.
//
// # What changes
//
// Clusters stay byte-identical while their model exists, and all volatile data is in the endpoints. The reason is
// that Envoy warms a changed cluster for as long as its initial fetch timeout. If a cluster does change, its
// endpoints are pushed with changed content.
//
//	event                             listener, routes   clusters          endpoints
//	a worker becomes ready            –                  –                 changed
//	a worker drains                   –                  –                 its health is DRAINING
//	a weight changes                  –                  –                 changed, at most once a second
//	a worker leaves                   –                  –                 UNHEALTHY for 2 s, then removed
//	a model is added or removed       changed            one more or less  one list more or less
//	a setting of the gateway changes  changed            maybe             nudged if the cluster changed
//
// # Secrets
//
// The certificates of listeners are secrets of their own, so that a new file changes no listener and drains no connection. They name
// files on the host of the Envoy: the control plane neither reads nor sends a private key.
//
// # Clients
//
// With [Auth] a request of the gateway's listener passes these filters, in this order, before any filter that reads its body:
//
//	early mutation   removes the header of the tenant, which a client may have set
//	jwt_authn        verifies a token, removes it, and sets the tenant
//	stator.keys      finds the tenant of an API key, and removes the key; passes over a request that has a tenant
//	rbac             refuses a request that has no tenant, whatever the reason
//
// The last one holds if a setting of the others has not the effect that it should have. API keys are in the routes. A key set of a file
// is in the listener.
//
// # Versions of Envoy
//
// Version has the table of the fields that Envoys from 1.36 to 1.40 may be sent. An Envoy gets the resources of its version, by
// the node of its first request. The streams of older ones end with an error. See docs/your-own-envoy.md.
//
// # Failures
//
// A configuration that cannot be built is logged, and the last one stays in force. An Envoy that refuses a
// resource keeps its last one; the refusal is logged and counted. [Server.Status] has both, and the versions that each Envoy has.
//
// # Concurrency
//
// Build is pure. Server.Run owns its one goroutine, which alone writes the caches. All other methods may be called
// from any goroutine.
//
// # Envoys of other control planes
//
// Snippet prints the parts that routers need for a static configuration. The same parts, as objects of Kubernetes, are:
//
//	Istio         an EnvoyFilter, which istiod adds to what it writes; for an InferencePool, an access log alone
//	EnvoyGateway  policies, which Envoy Gateway translates by itself
//	Standalone    the bootstrap of an Envoy that has no other control plane, in the pod of a router
//
// AddSnippet adds the parts to a file of an operator. It finds their places by the types of messages and the names of fields, as Envoy
// does, and names of filters do not matter:
//
//	http_connection_manager  the connection manager that has the virtual host in its route_config
//	virtual_host             the routes come first, because Envoy takes the first route that matches
//	static_resources         the clusters come last
//	listener                 the listener of the connection manager; Envoy 1.36 alone
//
// The objects of Kubernetes are texts for kubectl, so this package needs no client of Kubernetes. Names in them are checked by [Mesh],
// because a name from a command line could hold YAML.
package xds
