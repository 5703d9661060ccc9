package doctor

import (
	"fmt"
	"strings"
)

// envoyCounter is a counter of the filter that should not grow, with its likely cause.
type envoyCounter struct{ name, what, why, remedy string }

var envoyCounters = []envoyCounter{
	{"streams_failed", "%.0f streams to routers failed",
		"their requests went on without a decision, or got 500",
		"look whether routers run and are reached, and at their log, which names settings of the filter that cannot work"},
	{"message_timeouts", "%.0f decisions took longer than message_timeout",
		"their requests went on without a decision, or got 504",
		"raise message_timeout, and look whether routers have enough CPU time: their metric stator_extproc_decision_duration_seconds"},
	{"failure_mode_allowed", "%.0f requests went on without a decision",
		"they were spread without regard to caches and load",
		"look whether routers were away, and at the findings about failed streams and timeouts"},
	{"rejected_header_mutations", "%.0f headers of routers were rejected",
		"workers and routes do not get what routers set: the model, the rank, the length of the body",
		"remove mutation_rules from the filter"},
	{"spurious_msgs_received", "%.0f replies of routers did not fit the mode of the filter",
		"Envoy ends the stream, and the request goes on without a decision or gets 500",
		"compare processing_mode with `stator envoy snippet`, and remove allow_mode_override"},
	{"override_message_timeout_ignored", "Envoy ignored %.0f times that a router asked for more time",
		"requests that wait in the queue of a router go on without a decision",
		"set max_message_timeout at least as long as router.queue.maxWait"},
	{"clear_route_cache_disabled", "Envoy ignored %.0f times that a router asked for another route",
		"with several models, requests stay on the route by which they entered",
		"remove route_cache_action and disable_clear_route_cache from the filter"},
}

// rareFailures is the share of a path's streams up to which a counter is a note: a router that is replaced costs some.
const rareFailures = 0.01

func checkEnvoyCounters(e *envoySeen) (found []Finding) {
	for i := range e.paths {
		found = append(found, e.filterCounters(&e.paths[i])...)
	}

	if dropped := e.stats["access_logs.grpc_access_log.logs_dropped"]; dropped > 0 {
		found = append(found, Finding{
			Subject: "Envoy", What: fmt.Sprintf("%.0f entries of gRPC access logs were dropped since it started", dropped),
			Why:    "bookings of their requests do not end until engines report that they are idle",
			Remedy: "look whether routers are reached, and set buffer_size_bytes to 0",
		})
	}
	return found
}

// filterCounters finds counters of a filter that should be 0.
func (e *envoySeen) filterCounters(p *decisionPath) (found []Finding) {
	prefix := "http." + p.manager().text("stat_prefix") + ".ext_proc."
	if own := p.config.text("stat_prefix"); own != "" {
		prefix += own + "."
	}
	started, isKnown := e.stats[prefix+"streams_started"]
	for _, c := range envoyCounters {
		value := e.stats[prefix+c.name]
		if value == 0 {
			continue
		}
		found = append(found, Finding{
			Subject: p.subject,
			What:    fmt.Sprintf(c.what, value) + " since Envoy started" + ofStreams(started),
			Why:     c.why,
			Remedy:  c.remedy,
			Note:    value <= rareFailures*started,
		})
	}

	requests := 0.0
	for _, name := range e.poolNames() {
		requests += e.stats["cluster."+strings.ReplaceAll(name, ":", "_")+".upstream_rq_total"]
	}
	if isKnown && started == 0 && e.stats[prefix+"streams_failed"] == 0 && requests > 0 {
		found = append(found, Finding{
			Subject: p.subject, What: fmt.Sprintf("it opened no stream since Envoy started, and workers got %.0f requests", requests),
			Why:    "no router was asked for these requests",
			Remedy: "enable the filter on the routes that lead to workers, and put these before others that match the same paths",
		})
	}
	return found
}

// ofStreams names how many streams there were, for comparison.
func ofStreams(started float64) string {
	if started == 0 {
		return ", and none was opened"
	}
	return fmt.Sprintf(", of %.0f streams", started)
}
