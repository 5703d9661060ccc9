package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent"
)

const (
	// scrapeTimeout bounds the time that an engine or Envoy has for its page: half of the usual time-out of Prometheus.
	scrapeTimeout = 5 * time.Second
	// maxScrape bounds the page of an engine, in bytes.
	maxScrape = 8 << 20
)

// addScrapes adds the pages by which Prometheus finds and reads what does not serve its metrics here.
func (s Sources) addScrapes(p *pages) {
	if s.Fleet != nil {
		p.addPage(pathTargets, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("content-type", "application/json")
			_ = json.NewEncoder(w).Encode(targets(s.Fleet(), s.Engines)) // an error means that the client has gone
		})
	}

	if s.Agent != nil {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DialContext: s.Engines.Dial(scrapeTimeout)}}
		p.addPage(pathEngines, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("content-type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
			writeFamilies(w, scrapeEngines(r.Context(), client, s.Agent()))
		})
	}

	if s.EnvoyMetrics != nil {
		p.addPage(pathEnvoy, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
			defer cancel()
			number, err := strconv.Atoi(cmp.Or(r.URL.Query().Get("envoy"), "0"))
			if err != nil {
				http.Error(w, "envoy must be the number of an Envoy, from 0 on", http.StatusBadRequest)
				return
			}
			text, err := s.EnvoyMetrics(ctx, number)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			w.Header().Set("content-type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
			_, _ = io.WriteString(w, text) // an error means that the client has gone
		})
	}
}

// target is an engine in the form of Prometheus' HTTP service discovery.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// targets lists the engines that publish metrics.
func targets(f *fleet.Snapshot, engines *enginetls.Client) []target {
	out := []target{}
	for _, w := range f.Workers {
		path := metricsPath(w.Engine)
		if w.Address == "" || path == "" {
			continue
		}
		labels := map[string]string{
			"__metrics_path__": path, "worker": w.Name, "model": w.Model, "engine": w.Engine, "role": w.Role.String(),
		}
		if engines.Encrypts(w.Address) {
			labels["__scheme__"] = "https"
		}
		out = append(out, target{[]string{w.Address}, labels})
	}
	return out
}

// metricsPath returns the path of an engine's metrics; empty if a kind of engine has none that are known.
func metricsPath(engine string) string {
	kind, ok := engines.Named(engine)
	if !ok || kind.Metrics.Running == "" {
		return ""
	}
	return cmp.Or(kind.Metrics.Path, "/metrics")
}

// scrapeEngines reads the metrics of the engines at once, and gives each sample the labels worker and model. An engine that does not
// answer is left out: stator_agent_workers shows it.
func scrapeEngines(ctx context.Context, client *http.Client, list []workeragent.EngineStatus) []*dto.MetricFamily {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	pages := make([]map[string]*dto.MetricFamily, len(list))
	var all sync.WaitGroup
	for i := range list {
		e := &list[i]
		path := metricsPath(e.Kind)
		if e.Address == "" || path == "" {
			continue
		}
		all.Go(func() {
			pages[i] = scrape(ctx, client, "http://"+e.Address+path)
			label(pages[i], map[string]string{"worker": e.Worker, "model": e.Model})
		})
	}
	all.Wait()
	return merge(pages)
}

// scrape reads a page of metrics; nil if that fails.
func scrape(ctx context.Context, client *http.Client, url string) map[string]*dto.MetricFamily {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(resp.Body, maxScrape))
	if err != nil {
		return nil
	}
	return families
}

// label sets labels of all samples, in place of the engine's own labels of these names.
func label(families map[string]*dto.MetricFamily, labels map[string]string) {
	for _, family := range families {
		for _, m := range family.Metric {
			m.Label = slices.DeleteFunc(m.Label, func(l *dto.LabelPair) bool { _, ours := labels[l.GetName()]; return ours })
			for name, value := range labels {
				m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &value})
			}
			slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		}
	}
}

// merge joins the families of one name, in the order of their names. Of two with different types the first one stays.
func merge(pages []map[string]*dto.MetricFamily) []*dto.MetricFamily {
	byName := map[string]*dto.MetricFamily{}
	for _, page := range pages {
		for name, family := range page {
			switch first := byName[name]; {
			case first == nil:
				byName[name] = family
			case first.GetType() == family.GetType():
				first.Metric = append(first.Metric, family.Metric...)
			}
		}
	}
	out := make([]*dto.MetricFamily, 0, len(byName))
	for _, family := range byName {
		out = append(out, family)
	}
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// writeFamilies writes families as text.
func writeFamilies(w io.Writer, families []*dto.MetricFamily) {
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			fmt.Fprintf(w, "# %s: %v\n", family.GetName(), err)
			return
		}
	}
}
