package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/stator-project/stator/xds"
)

// envoyChecks are the checks of an Envoy that this program has not configured, in the order of their findings. finds is the
// text of docs/your-own-envoy.md.
var envoyChecks = []check[*envoySeen]{
	{"envoy-admin", "an admin port that does not answer, or is no Envoy's", checkEnvoyAdmin},
	{"envoy-version", "a version that is too old, does not report who served, or is not known", checkEnvoyVersion},
	{"envoy-rejected", "listeners, clusters and routes of a control plane that Envoy has refused", checkRejected},
	{"envoy-filter", "no `ext_proc` filter that asks routers; which one of several is examined (note)", checkFilter},
	{"envoy-filter-place", "the filter after the router filter, or before authentication", checkFilterPlace},
	{"envoy-filter-routes", "routes to workers on which the filter is disabled, and others on which it is enabled", checkFilterRoutes},
	{"envoy-filter-mode", "modes in which routers do not see headers or bodies, or their replies are ignored; " +
		"`observability_mode`", checkFilterMode},
	{"envoy-failure-mode", "requests that fail without a router, or go to the workers of another model", checkFailureMode},
	{"envoy-decision-time", "less time for a decision, or for the queue of a router, than routers need", checkDecisionTime},
	{"envoy-namespaces", "metadata of routers that Envoy drops: picks, and ids of bookings", checkNamespaces},
	{"envoy-access-log", "no access log to routers, or one that leaves out requests or is late", checkEnvoyAccessLog},
	{"envoy-headers", "headers of routers that clients can set; headers that routers need or must not get", checkEnvoyHeaders},
	{"envoy-body-limit", "a bound of bodies below the routers' bound (413)", checkBodyLimit},
	{"envoy-decompressor", "no decompressor for gzip (note)", checkDecompressor},
	{"envoy-route-timeout", "routes that end answers, or requests that wait, too early", checkRouteTimeout},
	{"envoy-retry", "no retry, one that goes to the worker that failed, or one in the mode `FULL_DUPLEX_STREAMED`", checkRetry},
	{"envoy-router-cluster", "a cluster of routers that is absent, has no HTTP/2, or bounds requests too low", checkRouterCluster},
	{"envoy-pool-policy", "clusters of workers that do not obey picks, or do not report who served", checkPoolPolicy},
	{"envoy-pool-limits", "clusters of workers with bounds and timeouts of Envoy that do not fit engines", checkPoolLimits},
	{"envoy-endpoints", "clusters without a healthy endpoint; addresses that differ from the fleet's", checkEnvoyEndpoints},
	{"envoy-models", "models without a cluster", checkEnvoyModels},
	{"envoy-counters", "streams that failed, timeouts and rejected replies since Envoy started, with their " +
		"likely cause", checkEnvoyCounters},
}

// diagnoseEnvoy runs the checks on the pages of an Envoy.
func diagnoseEnvoy(e *envoySeen) Diagnosis {
	writtenBy := e.writer()
	d := runChecks(envoyChecks, e, func(name string, found []Finding) []Finding { return joinEqual(writtenBy.advise(name, found)) })
	d.looked = "the Envoy at " + e.address
	return d
}

// joinEqual makes one finding of all findings that differ in their subjects alone. Names in a configuration are of any
// length and may have control characters, which it removes.
func joinEqual(found []Finding) (joined []Finding) {
	subjects, place := map[Finding][]string{}, map[Finding]int{}
	for _, f := range found {
		subject := printable(f.Subject)
		f.Subject = ""
		f.What, f.Remedy = printable(f.What), printable(f.Remedy)
		if subjects[f] == nil {
			place[f] = len(joined)
			joined = append(joined, f)
		}
		if !slices.Contains(subjects[f], subject) {
			subjects[f] = append(subjects[f], subject)
		}
	}
	for f, at := range place {
		joined[at].Subject = firstOf(subjects[f])
	}
	return joined
}

// mostPrinted is the greatest number of characters of a part of a finding that are printed.
const mostPrinted = 600

// printable returns a text as one line of bounded length.
func printable(text string) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n == mostPrinted {
			return b.String() + "…"
		}
		if !unicode.IsPrint(r) {
			r = ' '
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}

func checkEnvoyAdmin(e *envoySeen) (found []Finding) {
	if e.err != nil {
		return []Finding{{
			Subject: "Envoy", What: fmt.Sprintf("its admin port %s does not answer as one of Envoy: %v", e.address, e.err),
			Why:    "its configuration cannot be checked",
			Remedy: "start Envoy, or name its admin port (admin.address in its configuration) with --envoy-admin",
		}}
	}
	for _, part := range []struct {
		page string
		err  error
	}{{"/config_dump", e.dumpErr}, {"/clusters", e.endpointsErr}, {"/stats", e.statsErr}} {
		if part.err != nil {
			found = append(found, Finding{
				Subject: "Envoy", What: fmt.Sprintf("%s of its admin port cannot be read: %v", part.page, part.err),
				Why:    "the checks that need it find nothing, or too much",
				Remedy: "allow this page in admin.allow_paths of Envoy, and look at it with curl",
			})
		}
	}
	return found
}

func checkEnvoyVersion(e *envoySeen) []Finding {
	if e.err != nil {
		return nil
	}

	f := Finding{Subject: "Envoy"}
	_, err := xds.ParseVersion(e.version)
	switch {
	case e.version == "":
		f.What, f.Note = "its version cannot be read", true
		f.Why, f.Remedy = "what it supports is not known", fmt.Sprintf("use Envoy %s or later", xds.OldestVersion)
	case err != nil && olderThan(e.version, xds.OldestVersion):
		f.What = fmt.Sprintf("its version is %s, and %s is the oldest that is supported", e.version, xds.OldestVersion)
		f.Why = "it has no request_body_buffer_limit, so long prompts get 413"
		f.Remedy = fmt.Sprintf("use Envoy %s or later", xds.OldestVersion)
	case err != nil:
		f.What, f.Note = fmt.Sprintf("its version is %s, and this program knows %s to %s",
			e.version, xds.OldestVersion, xds.NewestVersion), true
		f.Why, f.Remedy = "defaults and fields may have changed", "look for a newer Stator"
	default:
		return nil
	}
	return []Finding{f}
}

// olderThan reports whether a version such as 1.35.2 is older than another.
func olderThan(version string, than xds.Version) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d.", &major, &minor)
	return err == nil && (major < 1 || major == 1 && minor < int(than))
}

func checkRejected(e *envoySeen) (found []Finding) {
	for _, r := range e.rejected {
		found = append(found, Finding{
			Subject: r.kind + " " + r.name, What: strings.TrimSuffix("Envoy has refused its newest version: "+r.details, ": "),
			Why:    "Envoy goes on with the version before it, or without it, and so do these checks",
			Remedy: "correct it in the control plane that sends it",
		})
	}

	// Envoy keeps the error of a listener, but not the error of a cluster, a route or endpoints.
	for _, name := range slices.Sorted(maps.Keys(e.stats)) {
		if n := e.stats[name]; n > 0 && strings.HasSuffix(name, ".update_rejected") {
			found = append(found, Finding{
				Subject: "Envoy", What: fmt.Sprintf("it has refused %.0f updates since it started (%s)", n, name), Note: true,
				Why:    "it keeps the configuration before them until an update that it accepts",
				Remedy: "look for the reason in its log, and correct it in the control plane",
			})
		}
	}
	return found
}
