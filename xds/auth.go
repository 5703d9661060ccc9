package xds

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matchingv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	skipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	keysv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/api_key_auth/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	rbacfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/stator-project/stator/internal/envoynames"
)

// Auth names the clients that Envoys admit on the listener for all. Nothing of it means every client.
type Auth struct {
	Keys    []APIKey
	Issuers []Issuer
}

// APIKey is a key of a tenant's clients.
type APIKey struct{ Tenant, Key string }

// Issuer is an issuer of tokens.
type Issuer struct {
	// Name is iss in its tokens. Audiences has the values of aud of which a token needs one.
	Name      string
	Audiences []string
	// JWKS is the set of the issuer's keys, or URL the https:// URL of the set. CAFile has the authorities for the URL's server, as
	// Envoys see it.
	JWKS, URL, CAFile string
	// TenantClaim is the claim that is the tenant.
	TenantClaim string
}

// isOn reports whether clients are authenticated.
func (a *Auth) isOn() bool { return len(a.Keys)+len(a.Issuers) > 0 }

// keysFilter is the name of the filter that compares API keys, and of its settings in the routes.
const keysFilter = "stator.keys"

// How long Envoys use a set of keys that they have fetched, and how long they wait for it.
const (
	jwksFor  = 5 * time.Minute
	jwksWait = 5 * time.Second
)

// buildAuth returns the filters that admit clients: tokens first, then keys. The last one admits the requests that have a tenant by now,
// so a request that both have passed over, by mistake or by a path that no rule matches, ends there.
func buildAuth(s Settings, p *packer) (list []*hcmv3.HttpFilter) {
	if len(s.Auth.Issuers) > 0 {
		list = append(list, filter("envoy.filters.http.jwt_authn", p.pack(buildTokens(s))))
	}
	if len(s.Auth.Keys) > 0 {
		list = append(list, buildKeys(s, p))
	}
	return append(list, filter("envoy.filters.http.rbac", p.pack(&rbacfilterv3.RBAC{Rules: &rbacv3.RBAC{
		Action: rbacv3.RBAC_ALLOW,
		Policies: map[string]*rbacv3.Policy{"tenant": {
			Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
			Principals:  []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Header{Header: matchHeader(s.TenantHeader, ".+")}}},
		}},
	}})))
}

// matchHeader matches a header whose whole value matches an expression.
func matchHeader(name, regex string) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: regex},
		}},
	}}
}

// buildTokens builds the filter that verifies tokens. With keys, a request without anything like a token is left to the next filter.
func buildTokens(s Settings) *jwtv3.JwtAuthentication {
	c := &jwtv3.JwtAuthentication{Providers: map[string]*jwtv3.JwtProvider{}}
	var each []*jwtv3.JwtRequirement
	for i, issuer := range s.Auth.Issuers {
		provider := &jwtv3.JwtProvider{
			// A token without an end would be valid for as long as the issuer's key is.
			Issuer: issuer.Name, Audiences: issuer.Audiences, RequireExpiration: true,
			// Only there: a token in a URL would be in logs.
			FromHeaders:    []*jwtv3.JwtHeader{{Name: "authorization", ValuePrefix: "Bearer "}},
			ClaimToHeaders: []*jwtv3.JwtClaimToHeader{{HeaderName: s.TenantHeader, ClaimName: issuer.TenantClaim}},
		}
		if issuer.URL == "" {
			provider.JwksSourceSpecifier = &jwtv3.JwtProvider_LocalJwks{LocalJwks: inline(issuer.JWKS)}
		} else {
			provider.JwksSourceSpecifier = &jwtv3.JwtProvider_RemoteJwks{RemoteJwks: &jwtv3.RemoteJwks{
				HttpUri: &corev3.HttpUri{
					Uri: issuer.URL, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: jwksCluster(i)}, Timeout: seconds(jwksWait),
				},
				CacheDuration: seconds(jwksFor),

				// The main thread fetches it before the first request, and for all worker threads.
				AsyncFetch: &jwtv3.JwksAsyncFetch{},
			}}
		}
		c.Providers[strconv.Itoa(i)] = provider
		each = append(each, &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: strconv.Itoa(i)}})
	}

	requires := each[0]
	if len(each) > 1 {
		requires = &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{
			RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: each},
		}}
	}
	// A client with a key has no token. Nothing but a token begins like one: no key may.
	match := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	if len(s.Auth.Keys) > 0 {
		match.Headers = []*routev3.HeaderMatcher{matchHeader("authorization", "Bearer eyJ.*")}
	}
	c.Rules = []*jwtv3.RequirementRule{{Match: match, RequirementType: &jwtv3.RequirementRule_Requires{Requires: requires}}}
	return c
}

// buildKeys builds the filter that compares keys. The keys are in the routes, so that a new key drains no connection. A request with a
// tenant has a valid token, and is not asked for a key.
func buildKeys(s Settings, p *packer) *hcmv3.HttpFilter {
	c := p.pack(&keysv3.ApiKeyAuth{KeySources: keySources()})
	if len(s.Auth.Issuers) == 0 {
		return filter(keysFilter, c)
	}

	hasTenant := &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
		Input: &xdscorev3.TypedExtensionConfig{
			Name: "tenant", TypedConfig: p.pack(&matcherv3.HttpRequestHeaderMatchInput{HeaderName: s.TenantHeader}),
		},
		Matcher: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: &xdsmatcherv3.StringMatcher{
			MatchPattern: &xdsmatcherv3.StringMatcher_SafeRegex{SafeRegex: &xdsmatcherv3.RegexMatcher{
				EngineType: &xdsmatcherv3.RegexMatcher_GoogleRe2{GoogleRe2: &xdsmatcherv3.RegexMatcher_GoogleRE2{}}, Regex: ".+",
			}},
		}},
	}
	return filter(keysFilter, p.pack(&matchingv3.ExtensionWithMatcher{
		ExtensionConfig: &corev3.TypedExtensionConfig{Name: keysFilter, TypedConfig: c},
		XdsMatcher: &xdsmatcherv3.Matcher{MatcherType: &xdsmatcherv3.Matcher_MatcherList_{MatcherList: &xdsmatcherv3.Matcher_MatcherList{
			Matchers: []*xdsmatcherv3.Matcher_MatcherList_FieldMatcher{{
				Predicate: &xdsmatcherv3.Matcher_MatcherList_Predicate{
					MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{SinglePredicate: hasTenant},
				},
				OnMatch: &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{
					Action: &xdscorev3.TypedExtensionConfig{Name: "skip", TypedConfig: p.pack(&skipv3.SkipFilter{})},
				}},
			}},
		}}},
	}))
}

// keySources returns the headers in which clients of OpenAI, Anthropic and Azure send keys.
func keySources() []*keysv3.KeySource {
	return []*keysv3.KeySource{{Header: "authorization"}, {Header: "x-api-key"}, {Header: "api-key"}}
}

// filterSettings returns the settings of filters in the routes: the keys of all clients, and the pages that may call.
func filterSettings(s Settings, p *packer) map[string]*anypb.Any {
	all := map[string]*anypb.Any{}
	if len(s.Auth.Keys) > 0 {
		all[keysFilter] = p.pack(routeKeys(s))
	}
	if len(s.CORSOrigins) > 0 {
		all[corsFilter] = p.pack(routeCORS(s.CORSOrigins))
	}
	return all
}

// corsFilter is the name of the filter that answers browsers which ask whether a page may call.
const corsFilter = "envoy.filters.http.cors"

// routeCORS returns the pages that may call the gateway with any header of theirs. Their scripts may read the ids of requests.
func routeCORS(origins []string) *corsv3.CorsPolicy {
	c := &corsv3.CorsPolicy{
		AllowMethods: "GET, POST, OPTIONS",
		// A browser takes * for all headers but this one.
		AllowHeaders:  "*, authorization",
		ExposeHeaders: "x-request-id, retry-after, " + envoynames.HeaderDecision,
		MaxAge:        "600",
	}
	for _, o := range origins {
		if o == "*" {
			c.AllowOriginStringMatch = append(c.AllowOriginStringMatch, beginsWith("http"))
		} else {
			c.AllowOriginStringMatch = append(c.AllowOriginStringMatch, exactly(o)...)
		}
	}
	return c
}

// routeKeys returns the keys of all clients.
func routeKeys(s Settings) *keysv3.ApiKeyAuthPerRoute {
	c := &keysv3.ApiKeyAuthPerRoute{
		// Envoy ignores these two of the filter if its route has settings.
		KeySources: keySources(), Forwarding: &keysv3.Forwarding{Header: s.TenantHeader, HideCredentials: true},
	}
	for _, k := range s.Auth.Keys {
		c.Credentials = append(c.Credentials, &keysv3.Credential{Key: k.Key, Client: k.Tenant})
	}
	return c
}

// jwksCluster returns the name of the cluster of an issuer's server.
func jwksCluster(i int) string { return fmt.Sprintf("stator-jwks-%d", i) }

// buildJWKSClusters builds the clusters of the servers from which Envoys fetch issuers' keys.
func buildJWKSClusters(a Auth) (list []*clusterv3.Cluster, err error) {
	for i, issuer := range a.Issuers {
		if issuer.URL == "" {
			continue
		}
		u, err := url.Parse(issuer.URL)
		if err != nil {
			return nil, err
		}
		port := uint64(443)
		if u.Port() != "" {
			port, err = strconv.ParseUint(u.Port(), 10, 16)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", issuer.URL, err)
			}
		}

		var p packer
		server := endpoint(&corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: u.Hostname(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
		}}}, 1, corev3.HealthStatus_UNKNOWN)
		list = append(list, &clusterv3.Cluster{
			Name: jwksCluster(i), ConnectTimeout: seconds(jwksWait),
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS},
			DnsLookupFamily:      clusterv3.Cluster_V4_PREFERRED,
			LoadAssignment: &endpointv3.ClusterLoadAssignment{
				ClusterName: jwksCluster(i), Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{server}}},
			},
			TransportSocket: upstreamTLS(u.Hostname(), tlsv3.TlsParameters_TLSv1_2, verifiedByFile(u.Hostname(), issuer.CAFile), &p),
		})
		if p.err != nil {
			return nil, p.err
		}
	}
	return list, nil
}
