package doctor

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/config"
)

// maxEnvoyAnswer bounds how many bytes of an answer of Envoy's admin port are read. A configuration of thousands of services
// has tens of megabytes.
const maxEnvoyAnswer = 64 << 20

// EnvoyTimeout bounds a request to Envoy's admin port, which builds its configuration for the answer.
const EnvoyTimeout = 20 * time.Second

// EnvoyPort is the admin port of an Envoy that was configured by hand, or by another control plane.
type EnvoyPort struct {
	Address string // for texts
	Admin   *adminclient.Client
}

// statsOfInterest are the counters that checks look at.
const statsOfInterest = "ext_proc|grpc_access_log|upstream_rq_total$|update_rejected$"

// askEnvoy asks the admin port for everything that the checks look at.
func askEnvoy(ctx context.Context, port *EnvoyPort, want wanted) *envoySeen {
	e := &envoySeen{address: port.Address, want: want}
	client := *port.Admin.HTTP()
	page := func(path string) ([]byte, error) {
		body, _, err := requestWithin(ctx, &client, http.MethodGet, port.Admin.URL(path), nil, maxEnvoyAnswer)
		return body, err
	}

	info, err := parsedPage(page("/server_info"))
	if err == nil && !info.has("version") {
		err = errors.New("its /server_info has no version, so it is no Envoy")
	}
	if err != nil {
		e.err = err
		return e
	}
	dump, err := parsedPage(page("/config_dump"))
	e.dumpErr = err
	hosts, err := parsedPage(page("/clusters?format=json"))
	e.endpointsErr = err
	stats, err := page("/stats?filter=" + url.QueryEscape(statsOfInterest))
	e.statsErr = err
	e.readPages(info, dump, hosts, stats)
	return e
}

// readPages reads the pages of the admin port.
func (e *envoySeen) readPages(info, dump, hosts node, stats []byte) {
	e.version = readVersion(info)
	e.readDump(dump)
	e.readEndpoints(hosts)
	e.stats = readStats(stats)
	e.choose()
}

func parsedPage(body []byte, err error) (node, error) {
	if err != nil {
		return node{}, err
	}
	return parseNode(body)
}

// readStats reads the lines of /stats, such as "http.front.ext_proc.streams_started: 7".
func readStats(page []byte) map[string]float64 {
	stats := map[string]float64{}
	for line := range strings.Lines(string(page)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if value, err := strconv.ParseUint(text, 10, 63); err == nil {
			stats[name] = float64(value)
		}
	}
	return stats
}

// wantedOf returns the settings of routers that an Envoy is compared with.
func wantedOf(cfg *config.Config) wanted {
	g := &cfg.Gateway
	w := wanted{
		maxBody: float64(g.MaxBodyBytes), decision: g.DecisionTimeout.Std(), idle: g.IdleTimeout.Std(),
		hintHeaders: g.Hints == "headers" && g.TrustsEveryone(),
	}
	for i := range cfg.Models {
		w.queueWait = max(w.queueWait, cfg.Models[i].Router.Queue.MaxWait.Std(), cfg.Models[i].Holds().Std())
	}
	return w
}

// compareFleet adds the models and workers to the settings. Workers whose address is a name are left out, because picks are IPs.
func (w *wanted) compareFleet(o *observation) {
	w.workers = map[string][]workerAddress{}
	for _, m := range o.models {
		w.models = append(w.models, m.name)
	}
	for _, seen := range o.workers {
		at, err := netip.ParseAddrPort(seen.address)
		if err == nil {
			at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
			w.workers[seen.model] = append(w.workers[seen.model], workerAddress{seen.name, at})
		}
	}
}
