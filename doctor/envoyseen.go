package doctor

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
)

// envoySeen holds the pages of an Envoy's admin server, and the settings of the routers that it is compared with.
type envoySeen struct {
	address string
	err     error // the port does not answer, or is no Envoy

	version      string // such as 1.40.0; empty if it cannot be read
	managers     []managerSeen
	clusters     map[string]node
	rejected     []rejectedSeen
	endpoints    map[string][]endpointSeen // of each cluster
	stats        map[string]float64
	dumpErr      error
	endpointsErr error
	statsErr     error

	paths  []decisionPath
	chosen string          // why these are the paths
	pools  map[string]bool // clusters of workers

	want wanted
}

// wanted are the settings of the routers. Settings that no configuration file sets have their defaults.
type wanted struct {
	maxBody        float64 // bytes
	decision, idle time.Duration
	queueWait      time.Duration // 0 if no request waits
	hintHeaders    bool          // hints in the headers of all clients count
	// The models of the routers, and the workers of each; none if only Envoy is looked at.
	models  []string
	workers map[string][]workerAddress
}

type workerAddress struct {
	name    string
	address netip.AddrPort
}

// rejectedSeen is a resource of a control plane that Envoy has refused.
type rejectedSeen struct{ kind, name, details string }

// endpointSeen is a host of a cluster.
type endpointSeen struct {
	address netip.AddrPort // the zero value for one that is no IP
	healthy bool
}

// managerSeen is an HTTP connection manager.
type managerSeen struct {
	listener   string
	buffer     float64 // per_connection_buffer_limit_bytes
	config     node
	filters    []node
	routes     []routeSeen
	missingRDS string // the name of a route configuration that the dump does not have
	unread     string // routes that are not read
}

// routeSeen is a route with the levels above it, whose settings it has unless it sets them.
type routeSeen struct {
	name             string
	route, host, all node
	clusters         []string
	needsModelHeader bool // it matches a router's decision
	listener         string
}

var envoyVersionRE = regexp.MustCompile(`(?:^|/)v?(\d{1,3}\.\d{1,3}\.\d{1,3})(?:[-/]|$)`)

// readVersion returns the version in /server_info, such as 1.40.0.
func readVersion(info node) string {
	m := envoyVersionRE.FindStringSubmatch(info.text("version"))
	if m == nil {
		return ""
	}
	return m[1]
}

// readDump reads /config_dump. Parts that this program does not know are skipped.
func (e *envoySeen) readDump(dump node) {
	e.clusters = map[string]node{}
	routes, extensions := map[string]node{}, map[string]node{}
	var listeners []node

	for _, section := range dump.list("configs") {
		_, kind := section.config()
		for _, d := range readResources(section, kind) {
			if d.rejected.has("details") || d.rejected.has("failed_configuration") {
				e.rejected = append(e.rejected, rejectedSeen{d.kind, d.name, d.rejected.text("details")})
			}
			if d.content.value == nil {
				continue // it has been refused from the beginning
			}
			switch d.kind {
			case "listener":
				listeners = append(listeners, d.content)
			case "cluster":
				e.clusters[d.name] = d.content
			case "route configuration":
				routes[d.name] = d.content
			case "extension":
				extensions[d.name] = d.content
			}
		}
	}

	for _, l := range listeners {
		e.managers = append(e.managers, readManagers(l, routes, extensions)...)
	}
}

// resource is an entry of a dump. content is empty where Envoy has refused the first version of it.
type resource struct {
	kind, name string
	content    node
	rejected   node // error_state
}

// dumpLists are the lists of a dump's sections, with the keys that lead from an element to the resource.
var dumpLists = map[string][]struct {
	list, kind string
	content    []string
}{
	"ListenersConfigDump": {
		{"static_listeners", "listener", []string{"listener"}},
		{"dynamic_listeners", "listener", []string{"active_state", "listener"}},
	},
	"ClustersConfigDump": {
		{"static_clusters", "cluster", []string{"cluster"}},
		{"dynamic_warming_clusters", "cluster", []string{"cluster"}},
		{"dynamic_active_clusters", "cluster", []string{"cluster"}},
	},
	"RoutesConfigDump": {
		{"static_route_configs", "route configuration", []string{"route_config"}},
		{"dynamic_route_configs", "route configuration", []string{"route_config"}},
	},
	"EcdsConfigDump": {{"ecds_filters", "extension", []string{"ecds_filter"}}},
}

func readResources(section node, kind string) (all []resource) {
	for _, l := range dumpLists[kind] {
		for _, element := range section.list(l.list) {
			r := resource{kind: l.kind, content: element.at(l.content...), rejected: element.at("error_state")}
			r.name = r.content.text("name")
			if r.name == "" {
				r.name = element.text("name")
			}
			if r.name == "" {
				r.name = r.rejected.text("failed_configuration", "name")
			}
			all = append(all, r)
		}
	}
	return all
}

// readManagers returns the HTTP connection managers of a listener.
func readManagers(listener node, routes, extensions map[string]node) (all []managerSeen) {
	chains := listener.list("filter_chains")
	if listener.has("default_filter_chain") {
		chains = append(chains, listener.at("default_filter_chain"))
	}

	for _, chain := range chains {
		for _, f := range chain.list("filters") {
			config, kind := f.at("typed_config").config()
			if kind != "HttpConnectionManager" {
				continue
			}
			m := managerSeen{listener: listener.text("name"), config: config, filters: config.list("http_filters")}
			m.buffer = listener.number(1<<20, "per_connection_buffer_limit_bytes")
			for i, filter := range m.filters {
				if filter.has("config_discovery") {
					found := extensions[filter.text("name")]
					m.filters[i] = node{map[string]any{"name": filter.text("name"), "disabled": filter.isTrue("disabled"),
						"typed_config": found.at("typed_config").value}}
				}
			}
			m.readRoutes(routes)
			all = append(all, m)
		}
	}
	return all
}

func (m *managerSeen) readRoutes(tables map[string]node) {
	table := m.config.at("route_config")
	if name := m.config.text("rds", "route_config_name"); name != "" {
		table = tables[name]
		if table.value == nil {
			m.missingRDS = name
		}
	}
	if m.config.has("scoped_routes") {
		m.unread = "scoped routes"
	}

	for _, host := range table.list("virtual_hosts") {
		if host.has("matcher") {
			m.unread = "a virtual host with a matcher"
		}
		for _, r := range host.list("routes") {
			if !r.has("route") {
				continue // a redirect or a direct response
			}
			seen := routeSeen{name: r.text("name"), route: r, host: host, all: table, listener: m.listener}
			if name := r.text("route", "cluster"); name != "" {
				seen.clusters = append(seen.clusters, name)
			}
			for _, c := range r.list("route", "weighted_clusters", "clusters") {
				seen.clusters = append(seen.clusters, c.text("name"))
			}
			seen.needsModelHeader = slices.ContainsFunc(r.list("match", "headers"), func(h node) bool {
				return strings.EqualFold(h.text("name"), envoynames.HeaderModel)
			})
			m.routes = append(m.routes, seen)
		}
	}
}

// subject names a route for a finding.
func (r *routeSeen) subject() string {
	name := r.name
	if name == "" {
		match := r.route.at("match")
		for _, key := range []string{"prefix", "path", "path_separated_prefix"} {
			if s := match.text(key); s != "" {
				name = s
			}
		}
		if s := match.text("safe_regex", "regex"); s != "" {
			name = s
		}
	}
	return "route " + name + " of listener " + r.listener
}

// readEndpoints reads /clusters?format=json.
func (e *envoySeen) readEndpoints(page node) {
	e.endpoints = map[string][]endpointSeen{}
	for _, c := range page.list("cluster_statuses") {
		name := c.text("name")
		for _, h := range c.list("host_statuses") {
			var seen endpointSeen
			if ip, err := netip.ParseAddr(h.text("address", "socket_address", "address")); err == nil {
				port := h.number(0, "address", "socket_address", "port_value")
				if port > 0 && port <= 65535 {
					seen.address = netip.AddrPortFrom(ip.Unmap(), uint16(port))
				}
			}
			seen.healthy = isHealthy(h.at("health_status"))
			e.endpoints[name] = append(e.endpoints[name], seen)
		}
	}
}

// isHealthy reports whether no kind of health check has failed.
func isHealthy(status node) bool {
	names, values := status.each()
	for i, name := range names {
		if strings.HasPrefix(name, "failed_") && values[i].isTrue() {
			return false
		}
	}
	eds := status.text("eds_health_status")
	return eds == "" || eds == "UNKNOWN" || eds == "HEALTHY" || eds == "DEGRADED"
}

// overridePolicy returns the override_host policy of a cluster.
func overridePolicy(cluster node) (node, bool) {
	for _, p := range cluster.list("load_balancing_policy", "policies") {
		config, kind := p.at("typed_extension_config", "typed_config").config()
		if kind == "OverrideHost" {
			return config, true
		}
	}
	return node{}, false
}

// routerCluster returns the cluster of the filter's gRPC service; empty where Envoy's own client is not used.
func routerCluster(service node) string { return service.text("envoy_grpc", "cluster_name") }
