// Package admin is the operators' HTTP port: metrics, health, and the answers to why.
//
// It prints what others know and changes nothing. It is meant for a trusted network: it has
// no authentication.
//
//	/metrics               Prometheus
//	/healthz  /readyz      the process lives; requests are served
//	/debug/fleet           workers, ranks and their load
//	/debug/decisions       the last decisions; /debug/decisions/ID explains one
//	/debug/plan            the plan
//	/debug/feed            what is known of each rank's cache, and how well
//	/debug/peers           the router's other replicas and what they have booked
//	/debug/speeds          how long prompts take, as learned, per kind of worker
//	/debug/pprof/          Go's profiles
//
// Pages are tables for people, or JSON with ?format=json.
//
// # Concurrency
//
// Handlers only read; all of Sources may be called from any goroutine.
package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/peers"
)

// Sources are what the pages print. A nil source has no page.
type Sources struct {
	Metrics prometheus.Gatherer
	// Ready returns nil when requests are served, else says what is missing. Where it is nil
	// itself they always are.
	Ready  func() error
	Fleet  func() *fleet.Snapshot
	Plan   func() plan.Plan
	Router *route.Router
	Feed   *feed.Feed
	Peers  *peers.Receiver
}

// Handler serves the pages.
func Handler(s Sources) http.Handler {
	p := &pages{mux: http.NewServeMux()}
	if s.Metrics != nil {
		p.add("/metrics", promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{}).ServeHTTP)
	}
	p.add("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	p.add("/readyz", s.readyz)
	if s.Fleet != nil {
		p.add("/debug/fleet", func(w http.ResponseWriter, r *http.Request) {
			snap := s.Fleet()
			show(w, r, snap.String, func() any { return viewFleet(snap) })
		})
	}
	if s.Router != nil {
		p.add("/debug/decisions", s.decisions)
		p.mux.HandleFunc("GET /debug/decisions/{id}", s.decision)
	}
	if s.Router != nil {
		p.add("/debug/speeds", func(w http.ResponseWriter, r *http.Request) {
			show(w, r, func() string { return speedsText(s.Router) }, func() any { return viewSpeeds(s.Router) })
		})
	}
	if s.Peers != nil {
		p.add("/debug/peers", func(w http.ResponseWriter, r *http.Request) {
			show(w, r, s.Peers.String, func() any { return viewPeers(s.Peers.Stats()) })
		})
	}
	if s.Plan != nil {
		p.add("/debug/plan", func(w http.ResponseWriter, r *http.Request) {
			made := s.Plan()
			show(w, r, made.String, func() any { return viewPlan(made) })
		})
	}
	if s.Feed != nil {
		p.add("/debug/feed", func(w http.ResponseWriter, r *http.Request) {
			states := s.Feed.States()
			show(w, r, func() string { return feedTable(states) }, func() any { return viewCaches(states) })
		})
	}
	p.add("/debug/pprof/", pprof.Index)
	p.mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	p.mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	p.mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	p.mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	p.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "stator admin:", strings.Join(p.paths, " "))
	})
	return p.mux
}

// pages collects what there is, for the index.
type pages struct {
	mux   *http.ServeMux
	paths []string
}

func (p *pages) add(path string, h http.HandlerFunc) {
	p.mux.HandleFunc("GET "+path, h)
	p.paths = append(p.paths, path)
}

func (s Sources) readyz(w http.ResponseWriter, _ *http.Request) {
	if s.Ready != nil {
		if err := s.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	fmt.Fprintln(w, "ok")
}

// decisions lists the newest, 50 or as many as ?n= says.
func (s Sources) decisions(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 1 {
		n = 50
	}
	list := s.Router.Recent(min(n, 4096))
	show(w, r, func() string { return decisionTable(list) }, func() any { return viewDecisions(list) })
}

func (s Sources) decision(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	d, ok := s.find(id)
	if !ok {
		http.Error(w, fmt.Sprintf("no decision %q is remembered: only the last few thousand are, by the replica that made them", id), http.StatusNotFound)
		return
	}
	show(w, r, d.String, func() any { return decisionlog.View(d) })
}

// find knows decisions by their id, and the newest as latest.
func (s Sources) find(id string) (*route.Decision, bool) {
	if id != "latest" {
		return s.Router.Explain(id)
	}
	if newest := s.Router.Recent(1); len(newest) > 0 {
		return newest[0], true
	}
	return nil, false
}

// show writes text for people, or JSON where ?format=json asks for it.
func show(w http.ResponseWriter, r *http.Request, text func() string, value func() any) {
	if r.URL.Query().Get("format") != "json" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(w, text())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(value()) // the client has gone: nothing to do
}
