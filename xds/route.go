package xds

import (
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
)

// buildRoutes builds the routes to the pools of models. With one model they match the paths of workers, also without a
// decision. With several, routers set a header that selects the route, and a request without that header is refused:
// Envoy does not read bodies, so it cannot know the model, and the worker of another one would answer as if it were
// asked for.
func buildRoutes(s Settings) *routev3.RouteConfiguration {
	var p packer
	retry := buildRetry(s, &p)
	var routes []*routev3.Route

	if len(s.Models) == 1 {
		further := slices.DeleteFunc(slices.Clone(s.PassPaths), func(path string) bool { return slices.Contains(parsedPaths, path) })
		for _, path := range slices.Concat(parsedPaths, further) {
			routes = append(routes, buildRoute(s, path, s.Models[0], matchPath(path), retry))
		}
	} else {
		for _, model := range s.Models {
			routes = append(routes, buildRoute(s, model, model, matchModel(model), retry))
		}
	}
	routes = append(routes, undecided(s))

	return &routev3.RouteConfiguration{
		Name: routesName,
		VirtualHosts: []*routev3.VirtualHost{{
			Name: "gateway", Domains: []string{"*"}, Routes: routes, TypedPerFilterConfig: filterSettings(s, &p),
		}},
	}
}

// buildRoute builds a route to the pool of a model.
func buildRoute(s Settings, name, model string, match *routev3.RouteMatch, retry *routev3.RetryPolicy) *routev3.Route {
	return &routev3.Route{
		Name:                   name,
		Match:                  match,
		Action:                 &routev3.Route_Route{Route: buildAction(s, model, retry)},
		RequestBodyBufferLimit: wrapperspb.UInt64(uint64(s.MaxBodyBytes)),
		// The headers of the decision are for Envoy, and hints are for routers. Engines do not see them.
		RequestHeadersToRemove: append([]string{envoynames.HeaderModel, envoynames.HeaderDestination}, envoynames.HintHeaders()...),
		// The client gets the id of the decision, which stator explain accepts.
		ResponseHeadersToAdd: addedHeaders(s),
		// Engines set no cookies of the gateway's site, and the destination is between Envoys.
		ResponseHeadersToRemove: []string{"set-cookie", envoynames.HeaderDestination},
	}
}

// addedHeaders returns the headers that responses get.
func addedHeaders(s Settings) []*corev3.HeaderValueOption {
	list := []*corev3.HeaderValueOption{fromMetadata(envoynames.HeaderDecision, envoynames.Decision)}
	if s.Splits {
		list = append(list, fromMetadata(envoynames.HeaderCachedTokens, envoynames.CachedTokens))
	}
	return list
}

// fromMetadata sets a header of the response to a value of the metadata that routers set. Without the value there is no header.
func fromMetadata(header, key string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: header, Value: "%DYNAMIC_METADATA(" + envoynames.Namespace + ":" + key + ")%"},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// matchModel matches the requests for which a router has chosen a worker of that model. It has checked their path.
func matchModel(model string) *routev3.RouteMatch {
	return &routev3.RouteMatch{
		PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"},
		Headers: []*routev3.HeaderMatcher{{
			Name: envoynames.HeaderModel,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Exact{Exact: model},
			}},
		}},
	}
}

// parsedPaths are the paths whose requests routers parse.
var parsedPaths = []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"}

// matchPath matches a path of workers, with or without a slash at the end. Below a path that ends in "/*" it matches no
// escapes, which could lead out of it. Each path has its own expression, because Envoy bounds their size.
func matchPath(path string) *routev3.RouteMatch {
	if path == "/*" {
		return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	}
	regex := regexp.QuoteMeta(path) + "/?"
	if prefix, below := strings.CutSuffix(path, "*"); below {
		regex = regexp.QuoteMeta(prefix) + `[^%\\]*`
	}
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: regex}}}
}

// undecided refuses the requests that no router decided and that Envoy may not route itself. With several models every
// request begins with this route, because the header of the model comes with the decision, so the body must fit.
func undecided(s Settings) *routev3.Route {
	return &routev3.Route{
		Name:  undecidedName,
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		// A direct response would be simpler, but Envoy ignores the bound of the body there and uses the
		// connection's bound.
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: undecidedName},
			IdleTimeout:      seconds(s.IdleTimeout),
		}},
		RequestBodyBufferLimit: wrapperspb.UInt64(uint64(s.MaxBodyBytes)),
	}
}

// buildAction forwards requests to the pool of a model.
func buildAction(s Settings, model string, retry *routev3.RetryPolicy) *routev3.RouteAction {
	return &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: PoolName(model)},
		// Answers have no bound of their duration. A stream without data ends by the idle timeout.
		Timeout:     seconds(0),
		IdleTimeout: seconds(s.IdleTimeout),
		RetryPolicy: retry,
		HashPolicy:  buildHashPolicy(s),
	}
}

// buildRetry retries a request once that failed before the first byte of the answer, at the next address of the
// decision. Envoy has one number for all kinds of failures. With a higher one, a prompt that makes engines crash
// would stop as many of them.
//
// There is no bound on the whole of an attempt, because an answer may take hours. The bound on its idle time begins again
// with each byte. Before the first one it must be longer than any prefill, so it ends only requests that hang for long:
// routers find a frozen worker within seconds, and this frees the requests that it had already.
func buildRetry(s Settings, p *packer) *routev3.RetryPolicy {
	retry := &routev3.RetryPolicy{
		RetryOn:              "connect-failure,refused-stream,reset-before-request,reset,retriable-status-codes",
		RetriableStatusCodes: []uint32{503},
		// 503 is the answer of an engine that loads or is full. It has not begun the request.
		NumRetries: wrapperspb.UInt32(1),
		// Short, because another worker is tried, not the same one again.
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{BaseInterval: seconds(25e6), MaxInterval: seconds(250e6)},
		// A retry without a further address must not choose a worker that failed before.
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: p.pack(&previoushostsv3.PreviousHostsPredicate{})},
		}},
		// Each choice is random. With two workers, of which one fails, so many choose it again once in two million retries.
		HostSelectionRetryMaxAttempts: 20,
	}
	if s.AttemptIdleTimeout > 0 {
		retry.PerTryIdleTimeout = seconds(s.AttemptIdleTimeout)
	}
	return retry
}
