package doctor

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/xds"
)

// Which filters of an Envoy ask routers, and which of its clusters have workers.

// choose finds the filters that ask routers, and the clusters of workers.
func (e *envoySeen) choose() {
	var all []decisionPath
	most, filters := 0, 0
	for i := range e.managers {
		p, n := e.managers[i].candidate()
		if n > 0 {
			all = append(all, p)
		}
		most, filters = max(most, p.marks), filters+n
	}

	for _, p := range all {
		if most == 0 || p.marks > 0 {
			e.paths = append(e.paths, p)
		}
	}
	switch {
	case len(e.paths) == 0:
	case most == 0:
		e.chosen = "no ext_proc filter has a name of Stator, so the first one of each listener is examined: " + namesOf(e.paths)
	case filters > len(e.paths):
		e.chosen = "of " + count(filters, "ext_proc filter") + ", those with most names of Stator are examined: " + namesOf(e.paths)
	}
	e.choosePools()
}

// candidate returns the ext_proc filter with most names of Stator, and how many ext_proc filters there are.
func (m *managerSeen) candidate() (best decisionPath, filters int) {
	for at, f := range m.filters {
		config, kind := f.at("typed_config").config()
		if kind != "ExternalProcessor" {
			continue
		}
		filters++
		if marks := marksOf(f, config); filters == 1 || marks > best.marks {
			name := f.text("name")
			best = decisionPath{managerSeen: m, at: at, marks: marks, filter: f, config: config, name: name,
				subject: "filter " + name + " of listener " + m.listener}
		}
	}
	return best, filters
}

// namesOf lists the filters of paths.
func namesOf(paths []decisionPath) string {
	var names []string
	for _, p := range paths {
		names = append(names, p.name+" of listener "+p.listener)
	}
	return firstOf(names)
}

// marksOf counts the names in a filter's configuration by which it is recognised as Stator's.
func marksOf(filter, config node) (marks int) {
	if filter.text("name") == envoynames.Filter {
		marks++
	}
	service := config.at("grpc_service", "envoy_grpc")
	if service.text("cluster_name") == envoynames.Routers {
		marks++
	}
	if a := service.text("authority"); a == envoynames.Authority || a == envoynames.SnippetAuthority {
		marks++
	}
	if writerOf(filter, config) != anyone {
		marks++
	}
	if slices.Contains(config.texts("metadata_options", "receiving_namespaces", "untyped"), envoynames.Namespace) {
		marks++
	}
	return marks
}

// choosePools finds the clusters of workers: by their policy, their name and their addresses. If there is none, they are the
// targets of the routes on which the filter is enabled: of routes that enable it themselves, or of chats, or else of all.
func (e *envoySeen) choosePools() {
	e.pools = map[string]bool{}
	workers := map[netip.AddrPort]bool{}
	for _, list := range e.want.workers {
		for _, w := range list {
			workers[w.address] = true
		}
	}

	for name, c := range e.clusters {
		_, isOverride := overridePolicy(c)
		hasWorker := slices.ContainsFunc(e.endpoints[name], func(at endpointSeen) bool { return workers[at.address] })
		if isOverride || hasWorker || strings.HasPrefix(name, xds.PoolName("")) {
			e.pools[name] = true
		}
	}
	for _, counts := range []func(d *decided) bool{
		func(d *decided) bool { return d.explicit }, (*decided).isFirstForChats, func(*decided) bool { return true },
	} {
		if len(e.pools) == 0 {
			e.addTargets(counts)
		}
	}
}

// addTargets adds the targets of the routes that count to the clusters of workers.
func (e *envoySeen) addTargets(counts func(d *decided) bool) {
	for i := range e.paths {
		for _, d := range e.paths[i].decisions() {
			if !d.enabled || !counts(&d) {
				continue
			}
			for _, name := range d.clusters {
				if name != envoynames.Undecided {
					e.pools[name] = true
				}
			}
		}
	}
}

// isFirstForChats reports whether a route is the first one of its virtual host that takes chats.
func (d *decided) isFirstForChats() bool {
	for _, r := range d.host.list("routes") {
		if takesChats(r.at("match")) {
			return r.at("match").equals(d.route.at("match"))
		}
	}
	return false
}

// longestExpression bounds the expressions of routes that are compiled. Envoy's default is shorter.
const longestExpression = 1000

// takesChats reports whether a route's match takes the path of chats. Headers and other conditions are not read.
func takesChats(match node) bool {
	const path = "/v1/chat/completions"
	if prefix := match.text("prefix"); prefix != "" {
		return strings.HasPrefix(path, prefix)
	}
	if prefix := match.text("path_separated_prefix"); prefix != "" {
		return path == prefix || strings.HasPrefix(path, prefix+"/")
	}
	if expression := match.text("safe_regex", "regex"); expression != "" && len(expression) < longestExpression {
		re, err := regexp.Compile("^(?:" + expression + ")$")
		return err == nil && re.MatchString(path)
	}
	return match.text("path") == path
}

// leadsToPool reports whether a route leads to workers.
func (e *envoySeen) leadsToPool(r routeSeen) bool {
	return slices.ContainsFunc(r.clusters, func(name string) bool { return e.pools[name] })
}

// asks reports whether routers are asked for the requests of a route, and those go to workers or to no worker.
func (e *envoySeen) asks(d decided) bool {
	return d.enabled && (e.leadsToPool(d.routeSeen) || slices.Contains(d.clusters, envoynames.Undecided))
}
