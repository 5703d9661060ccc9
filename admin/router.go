package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/emitters"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/peers"
)

// RouterSources are the parts of a process with a router.
type RouterSources struct {
	Router *route.Router
	// DryRun returns the decision that a request with that body would get at a path, and changes nothing.
	DryRun func(path, tenant string, body []byte) (*decision.Decision, error)
	Feed   *feed.Feed
	// Emitters returns the caches outside engines whose events the router reads. Nil is never called.
	Emitters func() []emitters.State
	Peers    *peers.Receiver
	// Envoys returns the Envoys that are connected to the router.
	Envoys func() []accesslog.Envoy
	// Coverage returns how much of the fleet's caches the router's index has room for.
	Coverage func() kvindex.Coverage
	// Promises returns the cached tokens that were promised of each worker, and the tokens that its engine has found. Nil is
	// never called.
	Promises func() []drift.WorkerStats
}

// addRouter adds the pages about decisions and caches.
func (s Sources) addRouter(p *pages) {
	if s.Router != nil {
		p.addPage(pathDecisions, s.decisions)
		p.addPage(pathDecision, s.decision)
		p.addPage(pathQueue, func(w http.ResponseWriter, r *http.Request) {
			list := s.Router.Queues()
			show(w, r, func() string { return queueTable(list) }, func() any { return viewQueues(list) })
		})
		p.addPage(pathSpeeds, func(w http.ResponseWriter, r *http.Request) {
			show(w, r, func() string { return speedsText(s.Router) }, func() any { return viewSpeeds(s.Router) })
		})
	}

	if s.History != nil {
		p.addPage(pathHistory, func(w http.ResponseWriter, r *http.Request) {
			points := s.History.Points()
			show(w, r, func() string { return historyTable(points) }, func() any { return points })
		})
	}
	if s.Peers != nil {
		p.addPage(pathPeers, func(w http.ResponseWriter, r *http.Request) {
			show(w, r, s.Peers.String, func() any { return viewPeers(s.Peers.Stats()) })
		})
	}
	if s.Envoys != nil {
		p.addPage(pathEnvoys, func(w http.ResponseWriter, r *http.Request) {
			list := s.Envoys()
			show(w, r, func() string { return envoyTable(list) }, func() any { return list })
		})
	}
	if s.Feed != nil {
		p.addPage(pathFeed, func(w http.ResponseWriter, r *http.Request) {
			states := s.Feed.States()
			show(w, r, func() string { return feedTable(states) }, func() any { return viewCaches(states) })
		})
	}
}

const (
	defaultDecisions = 50
	maxDecisions     = 4096
)

// decisions shows the newest decisions.
func (s Sources) decisions(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 1 {
		n = defaultDecisions
	}
	n = min(n, maxDecisions)
	list := s.Router.Recent(n)
	if outcome := r.URL.Query().Get("outcome"); outcome != "" {
		list = slices.DeleteFunc(s.Router.Recent(maxDecisions), func(d *decision.Decision) bool { return d.Outcome.String() != outcome })
		list = list[:min(n, len(list))]
	}
	show(w, r, func() string { return decisionTable(list) }, func() any { return viewDecisions(list) })
}

// decision shows one decision.
func (s Sources) decision(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	d, ok := s.findDecision(id)
	if !ok && id == latest {
		http.Error(w, "there are no decisions yet: no request has come to this router since its start", http.StatusNotFound)
		return
	}
	if !ok {
		http.Error(w, fmt.Sprintf("there is no decision %q: a replica keeps its own last few thousand decisions", id), http.StatusNotFound)
		return
	}
	show(w, r, func() string { return d.String() + s.promises(d) + s.unready(d) }, func() any { return decisionlog.View(d) })
}

// promises is a line about the cached tokens that were promised of the picked worker until now, and the tokens that its
// engine has found. It is empty until a window of them is complete.
func (s Sources) promises(d *decision.Decision) string {
	if s.Promises == nil {
		return ""
	}
	for _, w := range s.Promises() {
		if w.Worker != d.Worker {
			continue
		}
		return fmt.Sprintf("cached tokens on %s until now: %d promised, %d found by its engine.\n", w.Worker, w.Promised, w.Found)
	}
	return ""
}

// unready is a line about the workers of a decision's model that are not ready when it is shown, and why: they may be
// missing among its candidates. It is empty if there are none.
func (s Sources) unready(d *decision.Decision) string {
	if s.Fleet == nil {
		return ""
	}
	text := s.Fleet().Unready(d.Model)
	if text == "" || d.Model == "" {
		return ""
	}
	return "now " + text + ".\n"
}

// latest is the id of the newest decision.
const latest = "latest"

// findDecision returns the decision of that id, or the newest one for the id latest.
func (s Sources) findDecision(id string) (*decision.Decision, bool) {
	if id != latest {
		return s.Router.Explain(id)
	}
	if newest := s.Router.Recent(1); len(newest) > 0 {
		return newest[0], true
	}
	return nil, false
}
