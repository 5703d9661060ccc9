package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
)

// The checks of the filter that asks routers.

// addParts is the remedy if parts are missing that the snippet adds.
const addParts = "add the parts that `stator envoy snippet` prints; docs/your-own-envoy.md has the steps"

func checkFilter(e *envoySeen) (found []Finding) {
	if e.err != nil || e.dumpErr != nil {
		return nil
	}
	for _, p := range e.paths {
		if p.missingRDS != "" {
			found = append(found, Finding{
				Subject: "listener " + p.listener, What: "its route configuration " + p.missingRDS + " is not there",
				Why: "requests get 404 until a control plane sends it", Remedy: "look at the control plane that serves it (RDS)",
			})
		}
		if p.unread != "" {
			found = append(found, Finding{
				Subject: "listener " + p.listener, What: "it has " + p.unread, Note: true,
				Why: "these routes are not checked", Remedy: "compare them with `stator envoy snippet`",
			})
		}
	}

	f := Finding{Subject: "Envoy", Remedy: addParts, Why: "no router is asked: Stator has no effect"}
	switch {
	case len(e.managers) == 0:
		f.What = "no listener has an HTTP connection manager"
	case len(e.paths) == 0:
		f.What = "no HTTP connection manager has an ext_proc filter, so none asks routers"
	case e.chosen != "":
		f.What, f.Note = e.chosen, true
		f.Why = "the other findings are about these"
		f.Remedy = fmt.Sprintf("if another filter asks the routers, name that one %s, and its cluster %s",
			envoynames.Filter, envoynames.Routers)
	default:
		return found
	}
	return append(found, f)
}

// authenticating are the types of filters that decide a client's identity or its permissions.
var authenticating = map[string]bool{
	"JwtAuthentication": true, "ExtAuthz": true, "RBAC": true, "ApiKeyAuth": true, "BasicAuth": true, "OAuth2": true,
}

func checkFilterPlace(e *envoySeen) (found []Finding) {
	for i := range e.paths {
		p := &e.paths[i]
		for at, f := range p.filters {
			_, kind := f.at("typed_config").config()
			switch {
			case kind == "Router" && at < p.at:
				found = append(found, Finding{
					Subject: p.subject, What: "it comes after the router filter",
					Why:    "requests are forwarded before it is reached: no router is asked",
					Remedy: "put it directly before envoy.filters.http.router",
				})
			case authenticating[kind] && at > p.at:
				found = append(found, Finding{
					Subject: p.subject, What: "filter " + f.text("name") + " comes after it",
					Why: "routers do the work of decisions for clients that are then refused, and such headers as the tenant's " +
						"come too late",
					Remedy: "put it after your authentication, directly before envoy.filters.http.router",
				})
			}
		}
	}
	return found
}

func checkFilterRoutes(e *envoySeen) (found []Finding) {
	for i := range e.paths {
		p := &e.paths[i]
		asked, decisions := false, p.decisions()
		for _, d := range decisions {
			asked = asked || e.asks(d)
		}
		if !asked && (p.missingRDS != "" || p.unread != "") {
			continue // checkFilter reports it
		}
		if !asked {
			found = append(found, Finding{
				Subject: p.subject, What: "no route to workers enables it",
				Why:    "no router is asked for requests to workers",
				Remedy: fmt.Sprintf("add typed_per_filter_config with the key %s to the route that leads to your workers", p.name),
			})
			continue
		}

		for _, d := range decisions {
			leads := e.leadsToPool(d.routeSeen)
			switch {
			case leads && !d.enabled && !d.needsModelHeader:
				found = append(found, Finding{
					Subject: d.subject(),
					What:    fmt.Sprintf("it leads to workers (cluster %s), and filter %s is disabled on it", firstOf(d.clusters), p.name),
					Why:     "no router is asked for its requests, so they are not booked, and are spread without regard to caches",
					Remedy: fmt.Sprintf("add typed_per_filter_config with the key %s to it, or remove it if it is not meant to "+
						"reach workers", p.name),
				})
			case d.enabled && !e.asks(d):
				found = append(found, Finding{
					Subject: d.subject(),
					What: fmt.Sprintf("filter %s is enabled on it, and it leads to no workers (cluster %s)",
						p.name, firstOf(d.clusters)),
					Why:    "routers are asked for its requests, and answer 404 to paths that they do not know",
					Remedy: "set `disabled: true` beside the filter's typed_config, and enable it on the routes that lead to workers",
				})
			}
		}
	}
	return found
}

// eachAsked runs a check on every route on which routers are asked, and sets the subject of findings that have none.
func (e *envoySeen) eachAsked(check func(p *decisionPath, d *decided) []Finding) (found []Finding) {
	for i := range e.paths {
		p := &e.paths[i]
		for _, d := range p.decisions() {
			if !e.asks(d) {
				continue
			}
			for _, f := range check(p, &d) {
				if f.Subject == "" {
					f.Subject = p.subject
				}
				found = append(found, f)
			}
		}
	}
	return found
}

// bodyMode returns the mode in which bodies are sent to routers.
func (d *decided) bodyMode() string {
	if mode := d.mode.text("request_body_mode"); mode != "" {
		return mode
	}
	return "NONE"
}

const fullDuplex = "FULL_DUPLEX_STREAMED"

func checkFilterMode(e *envoySeen) []Finding {
	return e.eachAsked(func(p *decisionPath, d *decided) (found []Finding) {
		if p.config.isTrue("observability_mode") {
			found = append(found, Finding{
				What:   "observability_mode is on",
				Why:    "Envoy ignores all decisions: requests are spread without regard to caches",
				Remedy: "remove observability_mode",
			})
		}
		if p.config.isTrue("disable_immediate_response") {
			found = append(found, Finding{
				What: "disable_immediate_response is on",
				Why: "refusals of routers are errors of the filter: wrong requests, and those for which there is no room, reach " +
					"engines or get 500",
				Remedy: "remove disable_immediate_response",
			})
		}
		if d.mode.text("request_header_mode") == "SKIP" {
			found = append(found, Finding{
				What:   "request_header_mode is SKIP",
				Why:    "without the headers Envoy ignores all picks",
				Remedy: "set processing_mode.request_header_mode to SEND",
			})
		}
		// Without an access log routers find the end of a request in its response.
		if mode := d.mode.text("response_header_mode"); mode != "SKIP" && len(e.logsOf(p)) > 0 {
			found = append(found, Finding{
				What: "response headers are meant for routers (response_header_mode is not SKIP)", Note: true,
				Why:    "routers end a stream with its decision, so they are never sent",
				Remedy: "set processing_mode.response_header_mode to SKIP",
			})
		}
		return append(found, bodyModeFindings(d)...)
	})
}

// bodyModeFindings returns the findings about the mode of bodies.
func bodyModeFindings(d *decided) []Finding {
	mode := d.bodyMode()
	f := Finding{What: "request_body_mode is " + mode, Remedy: "set processing_mode.request_body_mode to BUFFERED"}
	switch mode {
	case "BUFFERED":
		return nil
	case fullDuplex:
		f.Note = true
		f.Why = "Envoy keeps nothing of the body, so without a router requests get 500, whatever failure_mode_allow is"
		if d.mode.text("request_trailer_mode") != "SEND" {
			return append([]Finding{f}, Finding{
				What: "request_body_mode is " + mode + ", and request_trailer_mode is not SEND",
				Why:  "Envoy needs both, and refuses one without the other", Remedy: "set request_trailer_mode to SEND",
			})
		}
	case "BUFFERED_PARTIAL":
		f.Why = "prompts that are longer than the buffer are not read: their requests go by load"
	default:
		f.Why = "prompts are not read: requests go to the least loaded worker, and with several models they are refused with 503"
	}
	return []Finding{f}
}

func checkFailureMode(e *envoySeen) []Finding {
	found := e.eachAsked(func(_ *decisionPath, d *decided) []Finding {
		if d.allowFail || d.bodyMode() == fullDuplex {
			return nil
		}
		return []Finding{{
			What:   "failure_mode_allow is false",
			Why:    "while no router answers, every request fails with 500",
			Remedy: "set failure_mode_allow to true: requests then go on without a decision, by the fallback policy of their cluster",
		}}
	})

	for i := range e.paths {
		found = append(found, e.severalModels(&e.paths[i])...)
	}
	return found
}

// severalModels finds mistakes if the decision selects the pool: a route by which the requests of all models enter and that leads
// to the workers of one, and a filter that does not let Envoy choose the route again.
func (e *envoySeen) severalModels(p *decisionPath) (found []Finding) {
	decisions := p.decisions()
	pools := map[string]bool{}
	for _, d := range decisions {
		for _, name := range d.clusters {
			if d.needsModelHeader && e.pools[name] {
				pools[name] = true
			}
		}
	}
	if len(pools) < 2 {
		return nil
	}
	if p.config.isTrue("disable_clear_route_cache") || p.config.text("route_cache_action") == "RETAIN" {
		found = append(found, Finding{
			Subject: p.subject, What: "route_cache_action is RETAIN, or disable_clear_route_cache is on",
			Why:    "the decision selects the pool of a request's model by a header, and Envoy does not choose the route again",
			Remedy: "remove route_cache_action and disable_clear_route_cache",
		})
	}

	for _, d := range decisions {
		if d.needsModelHeader || !d.allowFail || !d.enabled || !e.leadsToPool(d.routeSeen) {
			continue
		}
		found = append(found, Finding{
			Subject: d.subject(),
			What: fmt.Sprintf("requests of all models enter by it, and it leads to the workers of one (cluster %s)",
				firstOf(d.clusters)),
			Why: "with failure_mode_allow, requests of other models go there while no router answers: they get 404, or the answer " +
				"of the wrong model",
			Remedy: fmt.Sprintf("have it lead to a cluster without endpoints, as %s of the snippet, so that they get 503",
				envoynames.Undecided),
		})
	}
	return found
}

func checkDecisionTime(e *envoySeen) []Finding {
	return e.eachAsked(func(p *decisionPath, d *decided) (found []Finding) {
		if bound := d.service.duration(0, "timeout"); bound > 0 && bound < e.want.queueWait+e.want.decision {
			found = append(found, Finding{
				What:   fmt.Sprintf("grpc_service.timeout is %s, for the whole stream of a request", bound),
				Why:    "it ends decisions that take longer, whatever message_timeout is",
				Remedy: "remove grpc_service.timeout",
			})
		}
		if d.bodyMode() == fullDuplex {
			return found // no timeout applies
		}

		timeout := p.config.duration(200*time.Millisecond, "message_timeout")
		if timeout < e.want.decision {
			found = append(found, Finding{
				What: fmt.Sprintf("message_timeout is %s, and the time for a decision (gateway.decisionTimeout) is %s",
					timeout, e.want.decision),
				Why:    "long prompts are not read in less, and their requests go on without a decision",
				Remedy: fmt.Sprintf("set message_timeout to %s", seconds(e.want.decision)),
			})
		}
		longest := p.config.duration(0, "max_message_timeout")
		f := Finding{
			What: fmt.Sprintf("max_message_timeout is %s, and requests may wait for %s in the queue of a router",
				longest, e.want.queueWait),
			Why:    "Envoy ignores that a router asks for more time: requests that wait go on without a decision",
			Remedy: fmt.Sprintf("set max_message_timeout to %s", seconds(e.want.idle)),
		}
		if longest == 0 {
			f.What = "max_message_timeout is not set"
			f.Note = e.want.queueWait == 0 // nothing waits, by the configuration or by default
		}
		isCovered := writerOf(p.filter, p.config) == envoyGateway && timeout >= e.want.decision+e.want.queueWait
		if (longest == 0 || longest < e.want.queueWait) && !isCovered {
			found = append(found, f)
		}
		return found
	})
}

// seconds writes a duration as Envoy's configuration does.
func seconds(d time.Duration) string { return fmt.Sprintf("%gs", d.Seconds()) }

func checkNamespaces(e *envoySeen) []Finding {
	return e.eachAsked(func(_ *decisionPath, d *decided) (found []Finding) {
		received := d.metadata.texts("receiving_namespaces", "untyped")
		// Routers repeat the ids in the other namespace, unless the filter is one of their own.
		authority := d.service.text("envoy_grpc", "authority")
		isOwn := authority == envoynames.Authority || authority == envoynames.SnippetAuthority
		if !isOwn && slices.Contains(received, envoynames.NamespaceLB) {
			return nil
		}
		for _, missing := range []struct{ namespace, why string }{
			{envoynames.NamespaceLB, "Envoy drops the picks of routers: they have no effect, and requests count as \"misdirected\""},
			{envoynames.Namespace, "no entry of the access log has the id of its booking: requests count as \"unpicked\", and stay " +
				"booked for ever"},
		} {
			if !slices.Contains(received, missing.namespace) {
				found = append(found, Finding{
					What: "metadata_options.receiving_namespaces.untyped lacks " + missing.namespace, Why: missing.why,
					Remedy: fmt.Sprintf("set it to [%s, %s]", envoynames.NamespaceLB, envoynames.Namespace),
				})
			}
		}
		return found
	})
}
