package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/envoynames"
)

// The checks of a connection manager besides the filter: its access log, and the headers that it removes and forwards.

func checkEnvoyAccessLog(e *envoySeen) (found []Finding) {
	for i := range e.paths {
		p := &e.paths[i]
		ours := e.logsOf(p)
		subject := "listener " + p.listener
		if len(ours) == 0 {
			f := Finding{
				Subject: subject, What: "it has no gRPC access log to routers",
				Why: "the entry of a request ends its booking: without it every request stays booked for ever, and all workers " +
					"seem busy",
				Remedy: "add access_log of `stator envoy snippet` to its connection manager",
			}
			if others := p.logClusters(); len(others) > 0 {
				f.What += ": its gRPC access logs go to cluster " + firstOf(others)
			}
			passes := func(d decided) bool { return e.asks(d) && d.mode.text("response_body_mode") == fullDuplex }
			if slices.ContainsFunc(p.decisions(), passes) {
				f.Why = "all bytes of answers pass through routers, which end bookings by them, and a router that dies cuts its answers off"
			}
			found = append(found, f)
		}
		for _, log := range ours {
			found = append(found, e.logFindings(p, subject, log)...)
		}
	}
	return found
}

// logsOf returns the gRPC access logs of a connection manager to routers.
func (e *envoySeen) logsOf(p *decisionPath) (ours []node) {
	routers := p.routerClusters()
	for _, log := range p.manager().list("access_log") {
		if name := logCluster(log); name != "" && e.reachesRouters(name, routers) {
			ours = append(ours, log)
		}
	}
	return ours
}

// logClusters returns the clusters to which gRPC access logs go.
func (p *decisionPath) logClusters() (names []string) {
	for _, log := range p.manager().list("access_log") {
		if name := logCluster(log); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// logCluster returns the cluster of a gRPC access log; empty for another log.
func logCluster(log node) string {
	config, kind := log.at("typed_config").config()
	if kind != "HttpGrpcAccessLogConfig" {
		return ""
	}
	return routerCluster(config.at("common_config", "grpc_service"))
}

// manager returns the configuration of the connection manager.
func (p *decisionPath) manager() node { return p.managerSeen.config }

// routerClusters returns the clusters of the filter's gRPC service, on all routes.
func (p *decisionPath) routerClusters() map[string]bool {
	clusters := map[string]bool{}
	services := []node{p.config.at("grpc_service")}
	for _, d := range p.decisions() {
		services = append(services, d.service)
	}
	for _, s := range services {
		name := routerCluster(s)
		if isPlaceholder := name == istiodPlaceholder && writerOf(p.filter, p.config) == istiod; name != "" && !isPlaceholder {
			clusters[name] = true
		}
	}
	return clusters
}

// logFindings returns the findings about an access log to routers.
func (e *envoySeen) logFindings(p *decisionPath, subject string, log node) (found []Finding) {
	filter := log.at("filter")
	// The filter of the snippet has the requests with a booking, wherever they went, and requests to pools.
	takesBooked := filter.mentions(`"`+envoynames.Namespace+`" in metadata`) || filter.mentions("'"+envoynames.Namespace+"' in metadata")
	namesPool := slices.ContainsFunc(e.poolNames(), filter.mentions)
	reportsOthers := slices.ContainsFunc(p.decisions(), func(d decided) bool { return !e.asks(d) })
	switch {
	case filter.value == nil && reportsOthers:
		found = append(found, Finding{
			Subject: subject, What: "its access log to routers has no filter", Note: true,
			Why:    `requests of other routes are reported too, and count as "unpicked"`,
			Remedy: "add the filter of `stator envoy snippet`",
		})
	case filter.value != nil && !takesBooked && !namesPool:
		found = append(found, Finding{
			Subject: subject,
			What:    "the filter of its access log to routers names neither the metadata of routers nor a cluster of workers",
			Why:     "requests that it leaves out stay booked for ever",
			Remedy:  "use the filter of `stator envoy snippet`",
		})
	}

	config, _ := log.at("typed_config").config()
	if config.number(16384, "common_config", "buffer_size_bytes") > 0 {
		found = append(found, Finding{
			Subject: subject, What: "its access log to routers gathers entries (buffer_size_bytes is not 0)",
			Why: "an entry waits up to a second, and the next request of a conversation avoids its worker, because the last one is " +
				"still booked there",
			Remedy: "set buffer_size_bytes to 0",
		})
	}
	return found
}

// forged returns the headers that only routers, Envoy and trusted clients may set.
func (p *decisionPath) forged(w *wanted) []string {
	names := envoynames.RouterHeaders()
	isForTrusted := slices.ContainsFunc(p.config.list("grpc_service", "initial_metadata"), func(m node) bool {
		return m.text("key") == envoynames.MetadataTrusted
	})
	if !w.hintHeaders && !isForTrusted {
		names = append(names, envoynames.HintHeaders()...)
	}
	return names
}

func checkEnvoyHeaders(e *envoySeen) (found []Finding) {
	for i := range e.paths {
		p := &e.paths[i]
		var kept []string
		for _, name := range p.forged(&e.want) {
			if !removesEarly(p.manager(), name) {
				kept = append(kept, name)
			}
		}
		if len(kept) > 0 {
			found = append(found, Finding{
				Subject: "listener " + p.listener,
				What:    fmt.Sprintf("it does not remove %s of clients early: %s", count(len(kept), "header"), strings.Join(kept, ", ")),
				Why: "where no router decides, a client can choose the worker, its data-parallel rank or the pool of another model, " +
					"and workers get these headers",
				Remedy: "add early_header_mutation_extensions of `stator envoy snippet`, unless a proxy before this one removes them",
			})
		}
	}

	return append(found, e.eachAsked(forwardFindings)...)
}

// removesEarly reports whether a connection manager removes a header before it chooses the route.
func removesEarly(manager node, header string) bool {
	for _, extension := range manager.list("early_header_mutation_extensions") {
		config, _ := extension.at("typed_config").config()
		for _, m := range config.list("mutations") {
			if strings.EqualFold(m.text("remove"), header) || matches(m.at("remove_on_match", "key_matcher"), header) {
				return true
			}
		}
	}
	return false
}

// matches reports whether a StringMatcher matches. Expressions count as no match.
func matches(matcher node, text string) bool {
	if matcher.isTrue("ignore_case") {
		text = strings.ToLower(text)
	}
	for key, isMatch := range map[string]func(s, part string) bool{
		"exact": func(s, part string) bool { return s == part }, "prefix": strings.HasPrefix, "suffix": strings.HasSuffix,
		"contains": strings.Contains,
	} {
		if part := matcher.text(key); part != "" && isMatch(text, strings.ToLower(part)) {
			return true
		}
	}
	return false
}

// forwardFindings returns the findings about the headers that routers get.
func forwardFindings(p *decisionPath, d *decided) (found []Finding) {
	rules := p.config.at("forward_rules")
	allowed, refused := rules.list("allowed_headers", "patterns"), rules.list("disallowed_headers", "patterns")
	isSent := func(name string) bool {
		in := func(list []node) bool {
			return slices.ContainsFunc(list, func(m node) bool { return matches(m, name) })
		}
		return (len(allowed) == 0 || in(allowed)) && !in(refused)
	}

	needed := []string{":method", ":path", "content-encoding"}
	if d.bodyMode() == fullDuplex {
		needed = append(needed, "x-request-id")
	}
	var missing []string
	for _, name := range needed {
		if !isSent(name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		found = append(found, Finding{
			What:   "forward_rules leave out " + strings.Join(missing, ", "),
			Why:    "routers need them to find out what a request is, or when it has ended",
			Remedy: "add them to forward_rules.allowed_headers",
		})
	}
	if isSent("authorization") {
		found = append(found, Finding{
			What: "routers get credentials: no forward_rules leave out the header authorization", Note: true,
			Why:    "routers do not need them",
			Remedy: "add forward_rules of `stator envoy snippet`",
		})
	}
	return found
}

func checkDecompressor(e *envoySeen) (found []Finding) {
	for i := range e.paths {
		p := &e.paths[i]
		isThere := slices.ContainsFunc(p.filters[:p.at], func(f node) bool {
			_, kind := f.at("typed_config").config()
			return kind == "Decompressor"
		})
		if !isThere {
			found = append(found, Finding{
				Subject: "listener " + p.listener, What: "no decompressor comes before filter " + p.name, Note: true,
				Why: "clients that compress their requests get 415",
				Remedy: "add envoy.filters.http.decompressor before it if you have such clients; docs/your-own-envoy.md names the " +
					"bound it needs",
			})
		}
	}
	return found
}
