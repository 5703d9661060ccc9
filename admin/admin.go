// Package admin serves the HTTP pages for operators: metrics, health, and the state behind decisions.
//
// [Pages] lists the pages. Most of them only read: each one is text for people, or JSON with ?format=json. Those under /kv/ change the
// stores of KV blocks with POST. [Guard] asks for a token, except of health checks.
//
// # Concurrency
//
// Handlers run concurrently, so all functions of [Sources] must be safe for concurrent use.
package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stator-project/stator/admin/console"
	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/xds"
)

// Sources are the parts of a process whose state the pages show. A part that is nil has no page.
type Sources struct {
	Metrics prometheus.Gatherer
	// Ready returns nil when the process serves requests, and otherwise the reason why it does not. A
	// process without Ready always serves.
	Ready func() error
	// Degraded returns the reason why the process serves with less than it should have, such as the bus; nil if
	// it has all. It is shown if Ready returns nil. Nil is never called.
	Degraded func() error
	Fleet    func() *fleet.Snapshot
	Plan     func() plan.Plan
	RouterSources
	// XDS returns the status of this process's control plane: the resources that it has sent to Envoys.
	XDS func() xds.Status
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
	// Agent returns the engines of the agent of this process.
	Agent func() []workeragent.EngineStatus
	// Drains are operators' drains of the fleet's workers. OnBus means that other processes have the same.
	Drains *discovery.Drains
	OnBus  bool
	// Config returns the state of the configuration file.
	Config func() configfile.Status
	// EnvoyMetrics returns the metrics of an Envoy of this process, as text. They are numbered from 0 on.
	EnvoyMetrics func(ctx context.Context, number int) (string, error)
	// History is the last hour of this process; nil in a process without a router.
	History *history.History
	// KV are the stores of KV blocks of this node; empty if no model has one.
	KV []KVStore
}

// Page is one page of the admin port.
type Page struct {
	Path  string
	Shows string
	// JSON reports whether the page has a form for programs.
	JSON bool
}

// The pages.
const (
	pathMetrics   = "/metrics"
	pathEngines   = "/metrics/engines"
	pathEnvoy     = "/metrics/envoy"
	pathTargets   = "/sd"
	pathHealth    = "/healthz"
	pathReady     = "/readyz"
	pathFleet     = "/debug/fleet"
	pathDecisions = "/debug/decisions"
	pathDecision  = "/debug/decisions/{id}"
	pathSpeeds    = "/debug/speeds"
	pathPeers     = "/debug/peers"
	pathEnvoys    = "/debug/envoys"
	pathXDS       = "/debug/xds"
	pathPlan      = "/debug/plan"
	pathFeed      = "/debug/feed"
	pathAgent     = "/debug/agent"
	pathKV        = "/debug/kv"
	pathConfig    = "/debug/config"
	pathDrains    = "/debug/drains"
	pathHistory   = "/debug/history"
	pathQueue     = "/debug/queue"
	pathConsole   = console.Path
	pathProfiles  = "/debug/pprof/"

	pathDryRun     = "/dry-run"
	pathDrain      = "/drain"
	pathKVPin      = "/kv/pin"
	pathKVPrefetch = "/kv/prefetch"
	pathKVFlush    = "/kv/flush"
)

// Pages returns all pages. A process has the pages whose parts it runs.
func Pages() []Page {
	return []Page{
		{pathConsole, "a page for browsers that shows all of this", false},
		{pathMetrics, "metrics in the format of Prometheus; see metrics.md", false},
		{pathEngines, "the metrics of the agent's engines, with the labels worker and model", false},
		{pathEnvoy, "the metrics of the Envoy that this process runs; ?envoy=1 of the second one", false},
		{pathTargets, "the engines of the fleet, for Prometheus' http_sd_configs", true},
		{pathHealth, "200 while the process runs", false},
		{pathReady, "200 while the process serves requests, with its faults if it is degraded, and otherwise 503 with the reason", false},
		{pathFleet, "workers and their ranks, with leases, cache states, and booked and reported load; the room of the index", true},
		{pathDecisions, "the newest decisions: 50, or ?n=NUMBER; with &outcome=refused those alone", true},
		{pathDecision, "one decision with all candidates and their costs; the id latest is the newest", true},
		{pathQueue, "the requests that wait in the router's queue, by class", true},
		{pathHistory, "the last hour in steps of 15 s: rates of requests and tokens, times, requests in the fleet", true},
		{pathSpeeds, "the learned speed of each kind of worker", true},
		{pathPeers, "the other replicas of the router and their bookings", true},
		{pathEnvoys, "the Envoys of the router, and by which source their bookings end", true},
		{pathXDS, "the Envoys of the control plane, and which versions of resources they were sent, accepted and refused", true},
		{pathPlan, "the planner's plan: replicas of each pool", true},
		{pathFeed, "the cache state of each rank, and counts of its KV events", true},
		{pathAgent, "the agent's engines, with its mirrors of their caches and its readers of their events", true},
		{pathConfig, "the configuration file: whether its content is in force, and which keys wait for a restart of this process", true},
		{pathDrains, "the workers and nodes that operators have drained, and the requests that are left there", true},
		{pathKV, "the stores of KV blocks: their tiers, their blocks and the engines that use them; see kv.md", true},
		{pathDryRun, "with POST of a request's body, ?path=/v1/chat/completions and &tenant=NAME: the decision that it would get", false},
		{pathDrain, `with POST: drains a worker or a node, {"name": NAME}, or ends the drain, {"name": NAME, "undo": true}`, false},
		{pathKVPin, `with POST: pins blocks for a time, {"model": NAME, "hashes": [HASH], "keys": [KEY], "ttl": "1h"}; 0 ends pins`, false},
		{pathKVPrefetch, `with POST: loads blocks into host memory, {"model": NAME, "hashes": [HASH], "keys": [KEY]}`, false},
		{pathKVFlush, `with POST: drops all blocks of a store, {"model": NAME}, or only its blocks in "tier": "host" or "disk"`, false},
		{pathProfiles, "profiles of the Go runtime: one at a time, of at most 60 s", false},
	}
}

// Handler returns the handler of the pages.
func Handler(s Sources) http.Handler {
	p := &pages{mux: http.NewServeMux(), served: map[string]bool{}}
	p.addPage(pathHealth, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	p.addPage(pathReady, s.readyz)
	if s.Metrics != nil {
		p.addPage(pathMetrics, promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP)
	}
	s.addScrapes(p)
	if s.Config != nil {
		p.addPage(pathConfig, func(w http.ResponseWriter, r *http.Request) {
			v := viewConfig(s.Config())
			show(w, r, v.String, func() any { return v })
		})
	}
	p.mux.Handle("GET "+pathConsole, console.Handler())
	p.served[pathConsole] = true
	s.addFleet(p)
	s.addDrains(p)
	s.addRouter(p)
	s.addDryRun(p)
	if s.XDS != nil {
		p.addPage(pathXDS, func(w http.ResponseWriter, r *http.Request) {
			status := s.XDS()
			show(w, r, func() string { return xdsTables(status) }, func() any { return viewXDS(status) })
		})
	}
	if s.Agent != nil {
		p.addPage(pathAgent, func(w http.ResponseWriter, r *http.Request) {
			engines := s.Agent()
			show(w, r, func() string { return engineTables(engines) }, func() any { return viewEngines(engines) })
		})
	}

	s.addKV(p)
	addProfiles(p)
	p.mux.HandleFunc("GET /{$}", p.index)
	return p.mux
}

// addFleet adds the pages about workers and the plan.
func (s Sources) addFleet(p *pages) {
	if s.Fleet != nil {
		p.addPage(pathFleet, s.fleet)
	}
	if s.Plan != nil {
		p.addPage(pathPlan, func(w http.ResponseWriter, r *http.Request) {
			made := s.Plan()
			show(w, r, made.String, func() any { return viewPlan(made) })
		})
	}
}

// pages registers pages and lists them.
type pages struct {
	mux    *http.ServeMux
	served map[string]bool // by path
}

func (p *pages) addPage(path string, h http.HandlerFunc) {
	p.mux.HandleFunc("GET "+path, h)
	p.served[path] = true
}

// wantsPage reports whether a browser shows the answer.
func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// index lists the pages of this process, and sends browsers to the console.
func (p *pages) index(w http.ResponseWriter, r *http.Request) {
	if wantsPage(r) {
		http.Redirect(w, r, pathConsole, http.StatusFound)
		return
	}
	fmt.Fprint(w, table("PAGE\tSHOWS", func(row func(...any)) {
		for _, page := range Pages() {
			if p.served[page.Path] {
				row(page.Path, page.Shows)
			}
		}
	}))
}

func (s Sources) readyz(w http.ResponseWriter, _ *http.Request) {
	if s.Ready != nil {
		if err := s.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	fmt.Fprintln(w, "ok")
	if s.Degraded != nil {
		if err := s.Degraded(); err != nil {
			fmt.Fprintln(w, "degraded:", err)
		}
	}
}

// show writes text, or JSON where ?format=json is given.
func show(w http.ResponseWriter, r *http.Request, text func() string, value func() any) {
	if r.URL.Query().Get("format") != "json" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(w, text())
		return
	}

	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(value()) // an error means that the client is gone
}
