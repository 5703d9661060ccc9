package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/xds"
)

// The checks of routes to workers.

// eachPoolRoute runs a check on every route to workers of the listeners on which routers are asked.
func (e *envoySeen) eachPoolRoute(check func(r *decided, manager node) []Finding) (found []Finding) {
	for i := range e.paths {
		p := &e.paths[i]
		for _, d := range p.decisions() {
			if !e.leadsToPool(d.routeSeen) {
				continue
			}
			for _, f := range check(&d, p.manager()) {
				f.Subject = d.subject()
				found = append(found, f)
			}
		}
	}
	return found
}

func checkBodyLimit(e *envoySeen) []Finding {
	version, err := xds.ParseVersion(e.version)
	listenerToo := err == nil && !version.BoundsBodiesByRoute()
	return e.eachAsked(func(p *decisionPath, d *decided) []Finding {
		const limit = "request_body_buffer_limit"
		bound, where := p.buffer, "per_connection_buffer_limit_bytes of the listener"
		for _, level := range []node{d.host, d.route} {
			if level.has(limit) {
				bound, where = level.number(0, limit), limit+" of the route"
			}
		}
		if early := p.earlyBound(); listenerToo && early < bound {
			bound, where = early, "per_connection_buffer_limit_bytes of the listener, which Envoy 1.36 applies too"
		}
		if d.bodyMode() == fullDuplex || bound >= e.want.maxBody {
			return nil
		}
		return []Finding{{
			Subject: d.subject(),
			What:    fmt.Sprintf("bodies may have %.0f bytes (%s), and %.0f by gateway.maxBodyBytes", bound, where, e.want.maxBody),
			Why:     "longer prompts get 413 from Envoy",
			Remedy:  fmt.Sprintf("set %s of the route to %.0f, or lower gateway.maxBodyBytes", limit, e.want.maxBody),
		}}
	})
}

// earlyBound returns the bound of bodies before the route's applies: the bound of the listener, or of a filter that keeps bodies
// before routers are asked.
func (p *decisionPath) earlyBound() float64 {
	bound := p.buffer
	for _, f := range p.filters[:p.at] {
		config, kind := f.at("typed_config").config()
		if kind == "Buffer" && !f.isTrue("disabled") {
			bound = config.number(0, "max_request_bytes")
		}
	}
	return bound
}

func checkRouteTimeout(e *envoySeen) []Finding {
	return e.eachPoolRoute(func(d *decided, manager node) (found []Finding) {
		action := d.route.at("route")
		if timeout := action.duration(15*time.Second, "timeout"); timeout > 0 {
			what := fmt.Sprintf("its timeout is %s", timeout)
			if !action.has("timeout") {
				what += ", the default of Envoy"
			}
			found = append(found, Finding{
				What: what, Why: "answers that take longer are cut off, and count as failures of the worker",
				Remedy: "set `timeout: 0s`, and bound the time without data by idle_timeout",
			})
		}

		idle := manager.duration(5*time.Minute, "stream_idle_timeout")
		idle = action.duration(idle, "idle_timeout")
		if idle > 0 && idle < e.want.idle {
			found = append(found, Finding{
				What:   fmt.Sprintf("a request without data for %s is ended, and gateway.idleTimeout is %s", idle, e.want.idle),
				Why:    "requests that wait in a queue, or whose long prompt is computed, are ended before their first token",
				Remedy: fmt.Sprintf("set idle_timeout to %s", seconds(e.want.idle)),
			})
		}
		longest := manager.duration(0, "common_http_protocol_options", "max_stream_duration")
		longest = action.duration(longest, "max_stream_duration", "max_stream_duration")
		if longest > 0 {
			found = append(found, Finding{
				What: fmt.Sprintf("max_stream_duration is %s", longest), Why: "answers that take longer are cut off",
				Remedy: "remove max_stream_duration, or set it to 0s on the route",
			})
		}
		return found
	})
}

func checkRetry(e *envoySeen) []Finding {
	return e.eachPoolRoute(func(d *decided, _ node) (found []Finding) {
		policy := d.route.at("route", "retry_policy")
		if policy.value == nil {
			policy = d.host.at("retry_policy")
		}
		isFullDuplex := d.enabled && d.bodyMode() == fullDuplex
		switch {
		case policy.value == nil && isFullDuplex:
			return nil
		case policy.value == nil:
			return []Finding{{
				What:   "it has no retry_policy",
				Why:    "the failure of a worker is that of the request, although the decision names further workers",
				Remedy: "add retry_policy of `stator envoy snippet`",
			}}
		}

		excludes := slices.ContainsFunc(policy.list("retry_host_predicate"), func(n node) bool {
			return strings.Contains(n.text("name"), "previous_hosts") || n.at("typed_config").mentions("PreviousHostsPredicate")
		})
		if !excludes {
			found = append(found, Finding{
				What:   "its retry_policy does not exclude hosts that failed before",
				Why:    "a retry without a further pick may go to the worker that has just failed",
				Remedy: "add envoy.retry_host_predicates.previous_hosts to retry_host_predicate, and host_selection_retry_max_attempts",
			})
		}
		if bound := policy.duration(0, "per_try_timeout"); bound > 0 {
			found = append(found, Finding{
				What: fmt.Sprintf("per_try_timeout is %s", bound), Why: "answers that take longer are cut off",
				Remedy: "use per_try_idle_timeout",
			})
		}
		if n := policy.number(1, "num_retries"); n > 1 {
			found = append(found, Finding{
				What:   fmt.Sprintf("it retries up to %.0f times", n),
				Note:   true,
				Why:    "a prompt that makes engines crash stops as many of them",
				Remedy: "set num_retries to 1",
			})
		}
		if isFullDuplex {
			found = append(found, Finding{
				What:   "it retries, and the filter's mode is " + fullDuplex,
				Why:    "some versions of Envoy then send the body twice (issue 45470 of Envoy)",
				Remedy: "set request_body_mode to BUFFERED, or remove retry_policy, also that of the virtual host",
			})
		}
		return found
	})
}
