package xds

import (
	"fmt"

	"github.com/stator-project/stator/internal/envoynames"
)

// about is the comment at the head of a snippet.
func (s SnippetSettings) about() string {
	text := fmt.Sprintf("What to add to the configuration of an Envoy %s so that Stator's routers (stator extproc) "+
		"choose the workers of its requests.\n\nThe parts below belong to several places of that configuration: the "+
		"connection manager of the listener, the virtual host, the clusters. Each part is needed, and its comment "+
		"describes what happens without it. docs/your-own-envoy.md has the way step by step.", s.Version)
	if s.NodeID == "" {
		text += "\n\nSeveral Envoys on one host, or behind one address, need --node-id, different for each. Without it " +
			"the bookings of one that dies end only when all of them are gone."
	}
	if s.XDS != "" {
		text += "\n\nEnvoy subscribes endpoints only if it has a name, in its configuration or by --service-node and " +
			"--service-cluster:\n  node: {id: edge-1, cluster: edge}"
	}
	return text
}

const aboutManager = "the HTTP connection manager of your listener (typed_config of " +
	"envoy.filters.network.http_connection_manager). Append the elements of these lists to yours."

// commentsOfManager explain the parts of the connection manager.
func (s SnippetSettings) commentsOfManager() []comment {
	const filter, log = "http_filters/0/typed_config/", "access_log/0/typed_config/common_config/"

	list := []comment{
		{"early_header_mutation_extensions", "Removes headers that only routers may set from the requests of clients. " +
			"Without it a client can choose a data-parallel rank of vLLM, or the pool of another model, and workers " +
			"see these headers."},
		{"access_log", "The entry of a request ends its booking. Without it every request stays booked for ever, and " +
			"all workers seem busy."},
		{"access_log/0/filter", "Requests of your other routes are not reported. Without the filter they count as " +
			"requests without a decision (outcome \"unpicked\")."},
		{log + "buffer_size_bytes", "Each entry is sent at once. Without this line an entry waits up to a second, and " +
			"the next request of a conversation avoids its worker, because the last one is still booked there."},
		{"http_filters", "Put the filter directly before envoy.filters.http.router, after your authentication. Clients " +
			"that compress their requests need envoy.filters.http.decompressor before it: routers refuse compressed " +
			"bodies with 415."},
		{"http_filters/0/disabled", "Only the routes of part 2 enable the filter. Without this line routers also get " +
			"the requests of your other routes, and answer 404 to paths that they do not know."},
		{filter + "grpc_service", "The routers. The filter opens a stream for each request."},
		s.commentOnFailure(filter),
		{filter + "processing_mode", s.aboutMode()},
		{filter + "message_timeout", "How long a decision may take. The default of Envoy is 200 ms, in which long " +
			"prompts are not read: they would go on without a decision."},
		{filter + "max_message_timeout", "How long a request may wait in the queue of a router (router.queue). Without " +
			"it Envoy ignores that a router asks for more time, and the request goes on without a decision."},
		{filter + "forward_rules", "The headers that leave Envoy: no credentials, no cookies. Without it routers get all of them."},
		{filter + "metadata_options", fmt.Sprintf("Envoy drops metadata of namespaces that are not listed. Without %s "+
			"picks have no effect. Without %s no entry of the access log carries the id of its booking: all requests "+
			"count as \"unpicked\", and stay booked for ever.", envoynames.NamespaceLB, envoynames.Namespace)},
	}
	if s.Version.has(customTagsField) {
		list = append(list, comment{log + "custom_tags", "The time of the first token. Without it the metric " +
			"stator_request_first_token_seconds has no streams of this Envoy."})
	}
	return list
}

// aboutMode explains the mode of the filter.
func (s SnippetSettings) aboutMode() string {
	if s.FullDuplex {
		return "The headers and the pieces of the body go to a router, and responses do not. Envoy keeps nothing of the body, so it " +
			"needs request_trailer_mode, and cannot go on without a router."
	}
	return "The headers and the whole body go to a router in one message, and responses do " +
		"not. Without BUFFERED routers see no prompt, or the request fails with 500 when no router answers. " +
		"Response headers have no use: routers end the stream with their decision, before there are any."
}

// commentOnFailure explains the fate of requests while no router answers.
func (s SnippetSettings) commentOnFailure(filter string) comment {
	if s.FullDuplex {
		return comment{filter + "stat_prefix", "There must be no failure_mode_allow here: Envoy refuses it in this mode. " +
			"Requests fail with 500 while no router answers."}
	}
	if s.FailClosed {
		return comment{filter + "stat_prefix", "There must be no failure_mode_allow here: routers remove members of KV transfers from " +
			"bodies, and salt the prompts of tenants. With it requests would reach workers without that while no router answers."}
	}
	return comment{filter + "failure_mode_allow", "A request without a decision in time goes on without one, to the worker that " +
		"the fallback policy of the pool chooses. Without it every request fails with 500 while no router answers."}
}

// aboutHost is the comment before the routes.
func (s SnippetSettings) aboutHost() string {
	if len(s.Models) == 1 {
		return "the virtual host. Put the route before those that match the same paths, or copy all of it but its " +
			"match into the route that leads to your workers. Routers read the prompts of these paths. Requests to " +
			"further paths, such as /v1/rerank, go to any worker that is not busy; list only paths that clients may " +
			"reach, because engines also have paths that stop them."
	}
	return "the virtual host. Put the routes, in this order, before those that match the same paths. Only a router " +
		"knows the model of a request, so it enters by the last of these routes, the decision selects one of the " +
		"others, and without a decision the answer is 503."
}

// commentsOfHost explain the parts of the routes. The comments of the first route stand for all.
func (s SnippetSettings) commentsOfHost() []comment {
	last := fmt.Sprintf("routes/%d/", len(s.Models))
	if len(s.Models) == 1 {
		last = "routes/0/"
	}
	list := []comment{
		{"routes/0/route/timeout", "Answers may take as long as they need. Without this line Envoy ends them after 15 seconds."},
		{"routes/0/route/hash_policy", "Used where there is no decision: requests with an equal header go to the same " +
			"worker. Without it they are spread."},
		{"routes/0/request_headers_to_remove", "Headers of the decision, and hints of clients. Without it workers get them."},
		{"routes/0/response_headers_to_add", "The client gets the id of the decision, which `stator explain ID` accepts."},
		{last + "typed_per_filter_config", "Enables the filter of part 1 on this route. Without it no router is asked."},
	}

	// Before trailers, Envoy sends the pieces of a body twice if the route has a retry policy.
	if !s.FullDuplex {
		list = append(list, comment{"routes/0/route/retry_policy", "The second attempt goes to the next worker of the " +
			"decision. Without a retry the failure of a worker is that of the request. Do not retry more often: a prompt " +
			"that makes engines crash would stop as many of them."})
	}

	if s.Version.has("envoy.config.route.v3.Route.request_body_buffer_limit") {
		list = append(list, comment{last + "request_body_buffer_limit",
			"The bound of a body, in bytes. Without it that of the listener applies " +
				"(per_connection_buffer_limit_bytes, by default 1 MiB and often 32 KiB), and longer prompts get 413."})
	}
	return list
}

const aboutClusters = "the clusters. Append them to yours. In place of a cluster that you have, add " +
	"load_balancing_policy, common_lb_config, circuit_breakers and outlier_detection to it, remove its lb_policy, and " +
	"name it in the route and in the filter of the access log."

// aboutListener is needed if the bound of the route comes too late.
const aboutListener = "the listener, beside its filter_chains. Envoy 1.36 applies the bound of the route after the " +
	"filter that reads the body, so the listener needs the bound too. Without it bodies above 1 MiB get 413. Other " +
	"routes of the listener may buffer as much then."

// commentsOfClusters explain the parts of the clusters. The comments of the first pool stand for all.
func (s SnippetSettings) commentsOfClusters() []comment {
	routers := len(s.Models)
	control := routers + 1
	if len(s.Models) > 1 {
		control++ // after the cluster without endpoints
	}

	const policy = "clusters/0/load_balancing_policy/policies/0/typed_extension_config/typed_config/"
	list := []comment{
		{"clusters/0", "The workers of a model."},
		{"clusters/0/load_balancing_policy", "Sends a request to the address that a router has picked, and a retry to " +
			"the next one. Without it Envoy chooses by itself: picks have no effect, and requests count as " +
			"\"misdirected\"."},
		{policy + "fallback_policy", "Chooses where there is no pick, or where its address is none of the endpoints."},
		{"clusters/0/common_lb_config/healthy_panic_threshold", "Zero. With the default of Envoy, requests without a " +
			"pick go to unhealthy workers too when more than half are unhealthy."},
		{"clusters/0/circuit_breakers", "Routers bound the load of workers. With the defaults of Envoy requests above " +
			"1,024 at a time get 503."},
		{"clusters/0/outlier_detection", "Requests without a pick avoid a worker that does not answer. Picks are not affected."},
		{"clusters/0/typed_extension_protocol_options", "vLLM's and SGLang's servers close connections that were idle " +
			"for five seconds. Without the shorter idle_timeout some requests meet a connection that is being closed, " +
			"and are retried at a worker without their cache."},
		{fmt.Sprintf("clusters/%d", routers), "The routers: they decide, and receive the access log."},
		{fmt.Sprintf("clusters/%d/circuit_breakers", routers), "Each request that waits for its decision has a stream. " +
			"With the defaults of Envoy those above 1,024 go on without a decision."},
		{fmt.Sprintf("clusters/%d/health_checks", routers), "A router that hangs is left out. Without them its share " +
			"of the requests waits for message_timeout."},
		{fmt.Sprintf("clusters/%d/common_lb_config/update_merge_window", routers), "Zero. With the default of Envoy, a router that " +
			"was killed gets requests for up to a second after a change of health."},
		{fmt.Sprintf("clusters/%d/typed_extension_protocol_options", routers), "gRPC needs HTTP/2. Without it no " +
			"stream opens. The windows let a long body pass at once."},
	}

	if s.XDS == "" {
		return append(list, comment{"clusters/0/load_assignment", "Fill in the addresses of the workers, ip:port, " +
			"exactly as in workers[].address of Stator's configuration. A pick of an address that is not here goes to " +
			"the fallback policy. With --eds-only Stator keeps this list."})
	}
	return append(list,
		comment{"clusters/0/eds_cluster_config", "The endpoints come from `stator xds`, with every change of the " +
			"fleet. A cluster of another name needs service_name here, with this one's name. DELTA_GRPC and GRPC both " +
			"work."},
		comment{fmt.Sprintf("clusters/%d", control), "The control plane, which serves the endpoints."})
}
