package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/route/sessionid"
)

// The values of gateway.hints and gateway.hintsFrom.
const (
	hintsOff     = "off"
	hintsBody    = "nvext"
	hintsHeaders = "headers"

	hintsFromTrusted  = "trusted"
	hintsFromEveryone = "everyone"
)

// The values of gateway.affinityFilter.
const (
	affinityOff  = "off"
	affinityWasm = "wasm"
)

// Gateway configures the listener for clients.
type Gateway struct {
	// Listen is the IP and port on which Envoy serves clients. Use "0.0.0.0:8080" to serve other machines.
	Listen string `yaml:"listen"`
	// TLS encrypts the connections of clients, on trustedListen too. Without it they are not encrypted.
	TLS GatewayTLS `yaml:"tls"`
	// Auth has Envoy admit only clients of listen that have an API key or a token, and name the client's tenant in tenantHeader.
	// Engines do not get the credentials. Without it every client is admitted.
	Auth Auth `yaml:"auth"`
	// Limits bound what each tenant may send. They need tenantHeader or auth.
	Limits Limits `yaml:"limits"`
	// CORSOrigins are the origins of web pages whose scripts may call the gateway, such as "https://chat.example.com"; "*" is every page.
	// Without it browsers refuse to.
	CORSOrigins []string `yaml:"corsOrigins"`
	// AccessLog is where each Envoy writes a line of JSON for every request: "stdout", or the absolute path of a file on its host. A line
	// has no prompt and no credentials: see docs/front-door.md. Nothing bounds the file.
	AccessLog string `yaml:"accessLog" default:"none"`
	// AnswerTokens has Envoy read the usage in answers, and routers count their tokens: see docs/front-door.md. It needs Envoy 1.40, whose
	// filter for this is work in progress, and 3 to 4 µs of Envoy's CPU time for each token of a stream. With other Envoys streams
	// are estimated.
	AnswerTokens bool `yaml:"answerTokens"`
	// MaxBodyBytes bounds a request body, after Envoy has decompressed it. A larger one is answered with 413.
	MaxBodyBytes int64 `yaml:"maxBodyBytes"`
	// MaxBodiesBytes bounds the sum of the bodies for which a router is making decisions. A request beyond it is
	// answered with 503. It must be at least maxBodyBytes.
	MaxBodiesBytes int64 `yaml:"maxBodiesBytes"`
	// PassPaths are further paths whose requests reach workers. Stator does not parse these requests; they go to the worker of
	// their session, or to the least loaded one. Their bodies must be JSON objects in UTF-8 or forms (multipart/form-data). A
	// path that ends in "/*" stands for all paths below it, and "/*" for all paths. Engines have paths that change or stop them,
	// so list only what every client may use. Others get 404.
	PassPaths []string `yaml:"passPaths" default:"the paths of OpenAI, vLLM and Anthropic that compute something; see docs/security.md"`
	// DecisionTimeout is the time that Envoy waits for a decision before it routes a request itself. A
	// short one costs cache hits while the router is busy. A long one costs time while the router hangs.
	DecisionTimeout Duration `yaml:"decisionTimeout"`
	// IdleTimeout ends a stream on which no byte has moved in either direction.
	IdleTimeout Duration `yaml:"idleTimeout"`
	// AttemptIdleTimeout ends an attempt at a worker on which no byte has moved for so long. If the response has not
	// begun, the request is sent to another worker, once. The longest prompt must be computed in less, and what waits
	// before it in the engine. 0s is no bound but idleTimeout.
	AttemptIdleTimeout Duration `yaml:"attemptIdleTimeout" default:"half of idleTimeout"`
	// HeadersTimeout is the longest time that the headers of a request may take to arrive. 0s is no bound.
	HeadersTimeout Duration `yaml:"headersTimeout"`
	// BodyTimeout is the longest time that a request may take to arrive, its body included. 0s is no bound. A
	// slower one is answered with 408. The time of the response does not count.
	BodyTimeout Duration `yaml:"bodyTimeout"`
	// ConnectionIdleTimeout ends a connection of a client that has no request, from its beginning or its last request on.
	// 0s is no bound. Idle connections count in maxConnections, so a long one lets few clients keep out all others. A short
	// one has clients that keep connections open connect again, and lets some meet a connection that is just ending.
	ConnectionIdleTimeout Duration `yaml:"connectionIdleTimeout"`
	// MaxConnections bounds the connections of clients of an Envoy that stator up runs. Further ones are closed. From three
	// quarters of it on, connections without a request end earlier than after connectionIdleTimeout: after 1s near the bound.
	// For other Envoys see "stator envoy bootstrap --max-connections".
	MaxConnections int `yaml:"maxConnections" reload:"Envoy"`
	// MaxHeapBytes bounds the heap of an Envoy that stator up runs: near it, requests are answered with 503. 0 is
	// no bound. Each request in flight may need maxBodyBytes. For other Envoys see "stator envoy bootstrap
	// --max-heap-bytes".
	MaxHeapBytes int64 `yaml:"maxHeapBytes" reload:"Envoy"`
	// TrustedListen is a second IP and port for clients whose routing hints count. Only trusted clients may
	// reach it. Without it there is none.
	TrustedListen string `yaml:"trustedListen" default:"none"`
	// Sessions are the places in which clients name their sessions: "header:NAME", or "body:MEMBER", where a dot leads into a member
	// that is an object. The first one that a request has counts. If the router makes no decision, Envoy sends a session to one
	// worker, by the headers of the list alone. At most 32. See docs/routing.md.
	Sessions []string `yaml:"sessions" default:"the headers and members of known clients; see docs/routing.md"`
	// AffinityFilter names the sessions of clients that name none, for requests without a decision of the router. "wasm" is
	// a module in Envoy that computes the header x-stator-affinity from the beginning of the prompt, so the turns of a
	// conversation go to one worker. It reads at most 1 MiB of a body. "make build-wasm" builds it. Envoy needs 8 s more of
	// CPU time at its start, and 87 MB more memory. "off" means that such requests go to random workers. It needs a single
	// model without transfers of KV caches, and no tenantHeader: else Envoy refuses requests without a decision. See
	// docs/operations.md.
	AffinityFilter string `yaml:"affinityFilter"`
	// Hints selects the routing hints of trusted clients that count. "nvext" means nvext in the body. "headers" means the
	// headers x-stator-priority, x-stator-strict-priority, x-stator-deadline, x-stator-class, x-stator-tenant,
	// x-stator-worker, x-stator-rank, x-stator-prefill and x-stator-migration-limit too, which take precedence. "off" means none.
	// A client whose
	// hints count can go before others.
	Hints string `yaml:"hints"`
	// HintsFrom is whose hints count: "trusted" means clients of trustedListen, and those whose roleHeader has one
	// of trustedRoles. "everyone" means all clients.
	HintsFrom string `yaml:"hintsFrom"`
	// RoleHeader is a request header that an Envoy of yours sets from its authentication, such as
	// "x-jwt-role". Envoy must remove it from requests of clients.
	RoleHeader string `yaml:"roleHeader" default:"none"`
	// TrustedRoles are the values of roleHeader whose clients are trusted.
	TrustedRoles []string `yaml:"trustedRoles"`
	// Sidecars means that a sidecar of each decode worker sends prompts to prefill workers, as llm-d's routing sidecar does. Routers name
	// the prefill worker in the header x-prefiller-host-port, in place of one of the client, and send prompts to no engine themselves. A
	// gateway must ask a router for each request (failureMode FailClose): without one, the header of a client would count.
	Sidecars bool `yaml:"sidecars"`
	// TenantHeader is a request header with the client's tenant, which Envoy sets from its authentication. Each
	// tenant then has its private cache_salt, so that no tenant can find out what another has asked, and a
	// fair queue serves tenants alike. Without auth it is ignored on Stator's own listener for all clients. Paths on which
	// engines take no cache_salt, such as /v1/audio/speech, leave the default of passPaths.
	TenantHeader string `yaml:"tenantHeader" default:"none; x-tenant with auth"`
	// TenantSecretFile is a file with a secret of 16 or more characters, from which the cache_salt of every tenant
	// follows: without it no client can compute one. All routers need the same. The file is read again when it changes:
	// then all tenants have new salts, and none of their earlier prompts is found in a cache. Without a file every router
	// makes another secret at its start, so with several routers caches are found less often.
	TenantSecretFile string `yaml:"tenantSecretFile" file:"relative" default:"a random secret at every start" reload:"routers"`
}

// GatewayTLS has the certificates of the gateway. The files are in PEM, as each Envoy sees them. Envoy reads them again when they are
// moved into their folder, as cert-manager and Kubernetes do; new connections then use them.
type GatewayTLS struct {
	// CertFile is a file with the certificate of the gateway, and the ones that lead to its authority. With it, clients need https://,
	// and may use HTTP/2.
	CertFile string `yaml:"certFile" file:"relative" default:"no TLS"`
	// KeyFile is a file with the private key of certFile.
	KeyFile string `yaml:"keyFile" file:"relative" default:"none"`
	// ClientCAFile is a file with the authorities of clients. With it, a client needs a certificate that one of them has signed.
	ClientCAFile string `yaml:"clientCAFile" file:"relative" default:"clients need no certificate"`
}

// StdoutLog is the value of gateway.accessLog for the standard output of Envoy.
const StdoutLog = "stdout"

// Scheme returns the scheme of the gateway's URL, which TLS decides.
func (g *Gateway) Scheme() string {
	if g.TLS.CertFile != "" {
		return "https://"
	}
	return "http://"
}

// TakesHints reports whether the routing hints of any client count.
func (g *Gateway) TakesHints() bool {
	return g.Hints != hintsOff && (g.TrustsEveryone() || g.TrustedListen != "" || len(g.TrustedRoles) > 0)
}

// TrustsEveryone reports whether the routing hints of all clients count.
func (g *Gateway) TrustsEveryone() bool { return g.HintsFrom == hintsFromEveryone }

// SessionHeaders returns the headers of Sessions.
func (g *Gateway) SessionHeaders() (names []string) {
	for _, name := range sessionid.Headers(sessionid.ParseAll(g.Sessions)) {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// FiltersAffinity reports whether a Wasm filter names the sessions of clients that do not.
func (g *Gateway) FiltersAffinity() bool { return g.AffinityFilter == affinityWasm }

func (v *validator) gateway(g *Gateway) {
	_, err := netip.ParseAddrPort(g.Listen)
	v.is(err == nil, "gateway.listen", "is %q: use an IP and a port, such as 127.0.0.1:8080", g.Listen)
	v.is(g.DecisionTimeout >= minDecision, "gateway.decisionTimeout", "must be at least %s", minDecision)
	v.is(g.IdleTimeout >= minIdle, "gateway.idleTimeout", "must be at least %s", minIdle)
	attempt := g.AttemptIdleTimeout
	v.is(attempt == 0 || g.IdleTimeout < minIdle || attempt >= minIdle && attempt <= g.IdleTimeout,
		"gateway.attemptIdleTimeout", "must be 0s, or lie between %s and gateway.idleTimeout, which is %s", minIdle, g.IdleTimeout)
	v.is(g.MaxBodyBytes >= minBodyBytes && g.MaxBodyBytes <= MaxBodyBytes, "gateway.maxBodyBytes",
		"must lie between %d and %d", minBodyBytes, MaxBodyBytes)
	v.is(g.MaxBodiesBytes >= g.MaxBodyBytes && g.MaxBodiesBytes <= maxBodiesBytes, "gateway.maxBodiesBytes",
		"must lie between gateway.maxBodyBytes, which is %d, and %d", g.MaxBodyBytes, int64(maxBodiesBytes))
	for i, p := range g.PassPaths {
		path, _ := strings.CutSuffix(p, "/*")
		v.is(strings.HasPrefix(p, "/") && !strings.ContainsAny(path, "*?%\\ "), fmt.Sprintf("gateway.passPaths[%d]", i),
			"is %q: it must begin with a slash, and have a * only as the last of its parts, such as /v1/audio/*", p)
	}

	v.edge(g)
	v.auth(&g.Auth)
	v.limits(g)
	v.is(g.AccessLog == "" || g.AccessLog == StdoutLog || strings.HasPrefix(g.AccessLog, "/"), "gateway.accessLog",
		"is %q: use stdout, or the absolute path of a file", g.AccessLog)
	for i, origin := range g.CORSOrigins {
		u, err := url.Parse(origin)
		ok := err == nil && u.Host != "" && origin == u.Scheme+"://"+u.Host
		v.is(origin == "*" || ok, fmt.Sprintf("gateway.corsOrigins[%d]", i), "is %q: use a scheme and a host, such as https://chat.example.com, or *",
			origin)
	}
	v.sessions(g.Sessions)
	v.oneOf(g.AffinityFilter, []string{affinityOff, affinityWasm}, "gateway.affinityFilter")
	v.trust(g)
}

// sessions checks the places in which clients name their sessions.
func (v *validator) sessions(list []string) {
	v.is(len(list) <= sessionid.MaxSources, "gateway.sessions", "must have at most %d elements", sessionid.MaxSources)
	for i, text := range list {
		path := fmt.Sprintf("gateway.sessions[%d]", i)
		s, err := sessionid.Parse(text)
		v.is(err == nil, path, "%v", err)
		if s.Header != "" {
			v.header(s.Header, path)
		}
	}
}

// edge checks the bounds on clients' connections.
func (v *validator) edge(g *Gateway) {
	_, err := netip.ParseAddrPort(g.TrustedListen)
	v.is(err == nil || g.TrustedListen == "", "gateway.trustedListen",
		"is %q: use an IP and a port, such as 127.0.0.1:8090", g.TrustedListen)
	v.is(g.TrustedListen == "" || g.TrustedListen != g.Listen, "gateway.trustedListen", "must differ from gateway.listen")
	v.is(g.HeadersTimeout >= 0, "gateway.headersTimeout", "must not be negative")
	v.is(g.BodyTimeout >= 0, "gateway.bodyTimeout", "must not be negative")
	v.is(g.ConnectionIdleTimeout >= 0, "gateway.connectionIdleTimeout", "must not be negative")
	v.is(g.MaxConnections >= 1, "gateway.maxConnections", "must be at least 1")
	v.is((g.TLS.CertFile == "") == (g.TLS.KeyFile == ""), "gateway.tls.keyFile", "and gateway.tls.certFile need each other")
	v.is(g.TLS.CertFile != "" || g.TLS.ClientCAFile == "", "gateway.tls.clientCAFile", "has no effect until gateway.tls.certFile is set")
	v.is(g.MaxHeapBytes == 0 || g.MaxHeapBytes >= minHeapBytes, "gateway.maxHeapBytes", "must be 0, or at least %d", minHeapBytes)
}

// trust checks whose hints count.
func (v *validator) trust(g *Gateway) {
	v.oneOf(g.Hints, []string{hintsOff, hintsBody, hintsHeaders}, "gateway.hints")
	v.oneOf(g.HintsFrom, []string{hintsFromTrusted, hintsFromEveryone}, "gateway.hintsFrom")
	if g.RoleHeader != "" {
		v.header(g.RoleHeader, "gateway.roleHeader")
	}
	v.is(g.RoleHeader == "" || len(g.TrustedRoles) > 0, "gateway.trustedRoles",
		"must name at least one role, because gateway.roleHeader is set")
	v.is(g.RoleHeader != "" || len(g.TrustedRoles) == 0, "gateway.trustedRoles", "has no effect until gateway.roleHeader is set")
	if g.TenantHeader != "" {
		v.header(g.TenantHeader, "gateway.tenantHeader")
	}
	v.is(g.TenantHeader != "" || g.TenantSecretFile == "", "gateway.tenantSecretFile", "has no effect until gateway.tenantHeader is set")
}

// header accepts the name of an ordinary request header. Headers with credentials are refused, because routers
// keep the values in their logs.
func (v *validator) header(name, path string) {
	ok := name != ""
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	v.is(ok, path, "is %q: use the name of a header in lower case, such as x-session-id", name)
	v.is(!slices.Contains(credentials, name), path, "is %q, whose values are credentials: use another header", name)
}

// credentials are headers whose values must be in no log.
var credentials = []string{"authorization", "proxy-authorization", "cookie", "api-key", "x-api-key"}
