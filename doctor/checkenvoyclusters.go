package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/xds"
)

// The checks of the clusters of workers and routers.

// poolNames returns the clusters of workers.
func (e *envoySeen) poolNames() []string { return slices.Sorted(maps.Keys(e.pools)) }

// defaultBound is Envoy's default of max_requests, max_pending_requests and max_connections of a cluster.
const defaultBound = 1024

// requestBound returns the lowest bound of a cluster's requests, and its name.
func requestBound(cluster node) (lowest float64, name string) {
	bounds := map[string]float64{"max_requests": defaultBound, "max_pending_requests": defaultBound, "max_connections": defaultBound}
	for _, t := range cluster.list("circuit_breakers", "thresholds") {
		if p := t.text("priority"); p != "" && p != "DEFAULT" {
			continue
		}
		for key := range bounds {
			bounds[key] = t.number(defaultBound, key)
		}
	}

	name = "max_requests"
	for _, key := range slices.Sorted(maps.Keys(bounds)) {
		if bounds[key] < bounds[name] {
			name = key
		}
	}
	return bounds[name], name
}

// protocolOptions is the key of a cluster's HTTP settings.
const protocolOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func checkRouterCluster(e *envoySeen) []Finding {
	return e.eachAsked(func(_ *decisionPath, d *decided) (found []Finding) {
		name := routerCluster(d.service)
		if name == "" {
			return nil // google_grpc names an address
		}
		subject := "cluster " + name
		c, isThere := e.clusters[name]
		if !isThere {
			return []Finding{{
				Subject: subject, What: "the filter names it as the cluster of routers, and it does not exist",
				Why:    "no router is asked",
				Remedy: "add the cluster of `stator envoy snippet`, or correct grpc_service.envoy_grpc.cluster_name",
			}}
		}

		options, _ := c.at("typed_extension_protocol_options", protocolOptions).config()
		hasHTTP2 := c.has("http2_protocol_options") || options.has("explicit_http_config", "http2_protocol_options") ||
			options.has("use_downstream_protocol_config", "http2_protocol_options") || options.has("auto_config", "http2_protocol_options")
		if !hasHTTP2 {
			found = append(found, Finding{
				Subject: subject, What: "it has no http2_protocol_options", Why: "gRPC needs HTTP/2: no stream to a router opens",
				Remedy: "add typed_extension_protocol_options of `stator envoy snippet`",
			})
		}
		if bound, key := requestBound(c); bound <= defaultBound && key == "max_requests" || bound < defaultBound {
			found = append(found, Finding{
				Subject: subject, What: fmt.Sprintf("circuit_breakers bound it to %.0f requests (%s)", bound, key),
				Why:    "each request that waits for its decision has a stream: those above the bound go on without a decision, or get 500",
				Remedy: "add circuit_breakers of `stator envoy snippet`",
			})
		}
		return found
	})
}

// eachPool runs a check on every cluster of workers, and sets the subject of findings.
func (e *envoySeen) eachPool(check func(name string, c node) []Finding) (found []Finding) {
	for _, name := range e.poolNames() {
		c, isThere := e.clusters[name]
		if !isThere || len(e.paths) == 0 {
			continue
		}
		for _, f := range check(name, c) {
			f.Subject = "cluster " + name
			found = append(found, f)
		}
	}
	return found
}

func checkPoolPolicy(e *envoySeen) []Finding {
	return e.eachPool(func(_ string, c node) (found []Finding) {
		policy, isThere := overridePolicy(c)
		if !isThere {
			return []Finding{{
				What:   "workers are reached by it, and it has no override_host policy",
				Why:    "Envoy chooses by itself: picks have no effect, and requests count as \"misdirected\"",
				Remedy: "add load_balancing_policy of `stator envoy snippet`, and remove lb_policy",
			}}
		}

		isRead := slices.ContainsFunc(policy.list("override_host_sources"), func(s node) bool {
			const name = envoynames.HeaderDestination
			return isKey(s.at("metadata"), name) || strings.EqualFold(s.text("header"), name)
		})
		if !isRead {
			found = append(found, Finding{
				What: "its override_host policy does not read the pick of routers", Why: "picks have no effect",
				Remedy: fmt.Sprintf("set override_host_sources to the metadata key %s, path %s",
					envoynames.NamespaceLB, envoynames.HeaderDestination),
			})
		}
		if len(policy.list("fallback_policy", "policies")) == 0 {
			found = append(found, Finding{
				What: "its override_host policy has no fallback_policy", Why: "a request without a pick, or whose pick has gone, gets 503",
				Remedy: "add fallback_policy of `stator envoy snippet`",
			})
		}
		return found
	})
}

// isKey reports whether a MetadataKey names a value in the namespace of the load balancer.
func isKey(key node, name string) bool {
	path := key.list("path")
	return key.text("key") == envoynames.NamespaceLB && len(path) == 1 && path[0].text("key") == name
}

func checkPoolLimits(e *envoySeen) []Finding {
	return e.eachPool(func(_ string, c node) (found []Finding) {
		if bound, key := requestBound(c); bound <= defaultBound {
			found = append(found, Finding{
				What:   fmt.Sprintf("circuit_breakers bound it to %.0f requests (%s)", bound, key),
				Why:    "requests above the bound get 503; routers bound the load of workers",
				Remedy: "add circuit_breakers of `stator envoy snippet`",
			})
		}
		const group, threshold = "common_lb_config", "healthy_panic_threshold"
		if c.number(50, group, threshold, "value") > 0 && !hasEmpty(c, group, threshold) {
			found = append(found, Finding{
				What: "healthy_panic_threshold is not 0", Note: true,
				Why:    "requests without a pick go to unhealthy workers too when more than half are unhealthy",
				Remedy: "set common_lb_config.healthy_panic_threshold to 0",
			})
		}
		options, _ := c.at("typed_extension_protocol_options", protocolOptions).config()
		if idle := options.duration(time.Hour, "common_http_protocol_options", "idle_timeout"); idle <= 0 || idle > 5*time.Second {
			found = append(found, Finding{
				What: "idle connections to workers stay open for longer than 5 seconds", Note: true,
				Why: "vLLM's and SGLang's servers close them after 5 seconds; requests that meet that moment are retried at a worker " +
					"without their cache",
				Remedy: "set common_http_protocol_options.idle_timeout to 4s",
			})
		}
		return found
	})
}

// hasEmpty reports whether the keys lead to an object without values, which stands for zeros.
func hasEmpty(n node, keys ...string) bool {
	object, isObject := n.at(keys...).value.(map[string]any)
	return isObject && len(object) == 0
}

func checkEnvoyEndpoints(e *envoySeen) (found []Finding) {
	if e.endpointsErr != nil || len(e.paths) == 0 {
		return nil
	}
	routers := map[string]bool{}
	for i := range e.paths {
		maps.Copy(routers, e.paths[i].routerClusters())
	}
	for _, name := range append(slices.Sorted(maps.Keys(routers)), e.poolNames()...) {
		if _, isThere := e.clusters[name]; isThere {
			found = append(found, e.health(name, routers[name])...)
		}
	}

	for _, model := range e.want.models {
		name := e.poolOf(model)
		if name == "" {
			continue
		}
		found = append(found, e.compareAddresses(name, model)...)
	}
	return found
}

// health finds a cluster without a healthy endpoint.
func (e *envoySeen) health(name string, isOfRouters bool) []Finding {
	hosts := e.endpoints[name]
	if slices.ContainsFunc(hosts, func(h endpointSeen) bool { return h.healthy }) {
		return nil
	}
	f := Finding{Subject: "cluster " + name, What: fmt.Sprintf("none of its endpoints is healthy (there are %d)", len(hosts))}
	if len(hosts) == 0 {
		f.What = "it has no endpoint"
	}
	f.Why, f.Remedy = "its requests get 503", "start the workers, and list them there; with --eds-only look at the log of `stator xds`"
	if isOfRouters {
		f.Why, f.Remedy = "no router is asked", "start `stator extproc` at the address of the cluster, or correct the address"
	}
	return []Finding{f}
}

// poolOf returns the cluster of a model's workers: the cluster with its name, or one that has an address of its workers.
func (e *envoySeen) poolOf(model string) string {
	if _, isThere := e.clusters[xds.PoolName(model)]; isThere {
		return xds.PoolName(model)
	}
	wanted := map[netip.AddrPort]bool{}
	for _, w := range e.want.workers[model] {
		wanted[w.address] = true
	}
	for _, name := range e.poolNames() {
		if slices.ContainsFunc(e.endpoints[name], func(h endpointSeen) bool { return wanted[h.address] }) {
			return name
		}
	}
	return ""
}

// compareAddresses compares a cluster with the workers of a model.
func (e *envoySeen) compareAddresses(name, model string) (found []Finding) {
	known, listed := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
	for _, h := range e.endpoints[name] {
		listed[h.address] = true
	}
	var missing, unknown []string
	for _, w := range e.want.workers[model] {
		known[w.address] = true
		if !listed[w.address] {
			missing = append(missing, fmt.Sprintf("%s (%s)", w.name, w.address))
		}
	}
	for _, h := range e.endpoints[name] {
		// Relays of routers are unhealthy endpoints, as workers are that have just left: they get the requests that routers send there.
		if h.healthy && h.address.IsValid() && !known[h.address] {
			unknown = append(unknown, h.address.String())
		}
	}

	subject := "cluster " + name
	if len(missing) > 0 {
		found = append(found, Finding{
			Subject: subject, What: fmt.Sprintf("it lacks %s of model %s: %s", count(len(missing), "worker"), model, firstOf(missing)),
			Why:    "picks of these workers go to the fallback policy, and count as \"misdirected\"",
			Remedy: "add their addresses, exactly as Stator has them",
		})
	}
	if len(unknown) > 0 && len(known) > 0 {
		found = append(found, Finding{
			Subject: subject, What: fmt.Sprintf("it has %s that Stator does not: %s", count(len(unknown), "endpoint"), firstOf(unknown)),
			Why:    "requests without a pick go there, and routers never pick them",
			Remedy: "add them under workers of the model, or remove them",
		})
	}
	return found
}

func checkEnvoyModels(e *envoySeen) (found []Finding) {
	if len(e.paths) == 0 {
		return nil
	}
	for _, model := range e.want.models {
		if e.poolOf(model) == "" {
			found = append(found, Finding{
				Subject: "model " + model,
				What:    fmt.Sprintf("no cluster is named %s, or has an address of its workers", xds.PoolName(model)),
				Why:     "its requests do not reach its workers by this Envoy",
				Remedy:  "add the cluster and the route that `stator envoy snippet --config FILE` prints",
			})
		}
	}
	return found
}
