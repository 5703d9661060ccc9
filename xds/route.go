package xds

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
)

// buildRoutes builds a route for each model. Routers set a header that selects the route of every model but the
// first. The route of the first model is the last one and matches all other requests, also those without a
// decision.
func buildRoutes(s Settings) *routev3.RouteConfiguration {
	var p packer
	retry := buildRetry(&p)
	var routes []*routev3.Route

	// Routes are tried in order, so the first model, which matches everything, is at the end.
	for i := len(s.Models) - 1; i >= 0; i-- {
		match := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
		if i > 0 {
			match.Headers = []*routev3.HeaderMatcher{{
				Name: envoynames.HeaderModel,
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
					MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s.Models[i]},
				}},
			}}
		}

		routes = append(routes, &routev3.Route{
			Name:                   s.Models[i],
			Match:                  match,
			Action:                 &routev3.Route_Route{Route: buildAction(s, s.Models[i], retry)},
			RequestBodyBufferLimit: wrapperspb.UInt64(uint64(s.MaxBodyBytes)),
			// The headers of the decision are for Envoy. Engines do not see them.
			RequestHeadersToRemove: []string{envoynames.HeaderModel, envoynames.HeaderDestination},
			// The client gets the id of the decision, which stator explain accepts.
			ResponseHeadersToAdd: []*corev3.HeaderValueOption{{
				Header: &corev3.HeaderValue{Key: envoynames.HeaderDecision,
					Value: "%DYNAMIC_METADATA(" + envoynames.Namespace + ":" + envoynames.Decision + ")%"},
				AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			}},
		})
	}
	return &routev3.RouteConfiguration{
		Name:         routesName,
		VirtualHosts: []*routev3.VirtualHost{{Name: "gateway", Domains: []string{"*"}, Routes: routes}},
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
		// Used where there is no decision: requests with an equal header go to the same worker.
		HashPolicy: []*routev3.RouteAction_HashPolicy{{
			PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: s.AffinityHeader}},
		}},
	}
}

// buildRetry retries requests that failed before the first byte of the answer. The second and the third attempt
// use the further addresses of the decision. After that Envoy chooses as without a decision.
func buildRetry(p *packer) *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn:              "connect-failure,refused-stream,reset-before-request,reset,retriable-status-codes",
		RetriableStatusCodes: []uint32{503},
		// 503 is the answer of an engine that loads or is full. It has not begun the request.
		NumRetries: wrapperspb.UInt32(3),
		// Short, because another worker is tried, not the same one again.
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{BaseInterval: seconds(25e6), MaxInterval: seconds(250e6)},
		// A retry without a further address must not choose a worker that failed before.
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: p.any(&previoushostsv3.PreviousHostsPredicate{})},
		}},
		HostSelectionRetryMaxAttempts: 3,
	}
}
