package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/poolmetrics"
	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/kvsource/sources"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/breaks"
	"github.com/stator-project/stator/kvbm/node"
	"github.com/stator-project/stator/planner"
	scale "github.com/stator-project/stator/planner/connectors/kubernetes"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/workeragent/engine"
	"github.com/stator-project/stator/xds"
)

const metricsFile = "../../docs/metrics.md"

// TestMetricsDocs compares docs/metrics.md with the metrics that the parts register. Run it with -rewrite
// to update the file.
func TestMetricsDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\nEvery process serves these on its admin port under `/metrics`; `stator up` serves all of them. Go's own (`go_*`) and\nthe process's (`process_*`) are there too. `--metrics-address` opens a further port for Prometheus, which serves `/metrics` alone\nand asks for no token. Labels name models, workers and Envoys, and never have the text of a request.\n`make golden` makes this page from the metrics that the parts register.\n")
	for _, p := range metricParts(t) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n", p.title, p.about)
		for _, f := range p.families {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), labels(f), f.GetHelp())
		}
	}
	if rewrite() {
		if err := os.WriteFile(metricsFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(metricsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("%s is not what the parts register: run make golden", metricsFile)
	}
}

// TestMetricNames: the names, types and labels of all metrics follow the conventions of Prometheus: base units, by which one name has one
// meaning in every part.
func TestMetricNames(t *testing.T) {
	var (
		snake    = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
		noBase   = regexp.MustCompile(`_(share|percent|fraction|ms|millis|kb|mb|kib|mib|gib)(_|$)|_per_(minute|hour|day|month)(_|$)`)
		ofTime   = regexp.MustCompile(`^(Time|Duration|Age) `)
		inTime   = regexp.MustCompile(`_seconds(_total)?$`)
		ofMemory = regexp.MustCompile(`^(Memory|Size|Bytes|Host memory|Limit of (the|that) memory)[ ,;]`)
		inMemory = regexp.MustCompile(`_bytes(_total)?$`)
		ofTarget = []string{"instance", "job", "namespace", "pod", "le", "quantile"} // the scraper sets them
	)
	type meaning struct{ kind, labels, help string }
	seen := map[string]meaning{}
	for _, part := range metricParts(t) {
		problems, err := promlint.NewWithMetricFamilies(part.families).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if !strings.HasPrefix(p.Metric, "llm_d_") { // llm-d's names are given
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}

		for _, f := range part.families {
			name, m := f.GetName(), meaning{kind: f.GetType().String(), help: f.GetHelp()}
			for _, l := range f.GetMetric()[0].GetLabel() {
				m.labels += l.GetName() + " "
				if !snake.MatchString(l.GetName()) || slices.Contains(ofTarget, l.GetName()) {
					t.Errorf("%s: the label %s is not in snake case, or the scraper sets it", name, l.GetName())
				}
			}
			if !snake.MatchString(name) || noBase.MatchString(name) {
				t.Errorf("%s is not in snake case, or has no base unit: seconds, bytes, ratio", name)
			}
			if inTime.MatchString(name) != ofTime.MatchString(m.help) || inMemory.MatchString(name) != ofMemory.MatchString(m.help) {
				t.Errorf("%s has another unit than its meaning: %s", name, m.help)
			}
			if before, ok := seen[name]; ok && before != m {
				t.Errorf("%s is %v in one part and %v in %s", name, before, m, part.title)
			}
			seen[name] = m
		}
	}
}

type metricPart struct {
	title, about string
	families     []*dto.MetricFamily
}

func metricParts(t *testing.T) []metricPart {
	t.Helper()
	cfg, err := config.Parse(defaultConfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Decisions.Log = filepath.Join(t.TempDir(), "decisions.jsonl")
	cfg.Tracing.Endpoint = "http://127.0.0.1:4318"
	cfg.Models[0].Router.Queue.MaxWait = 1 // a queue that is there has figures
	cfg.Models[0].Emitters = []config.Emitter{{Name: "pool", KVEvents: "tcp://127.0.0.1:5557"}}
	log, members := slog.New(slog.DiscardHandler), fleet.New(fleet.Hooks{})
	every, router, control, plans, agent, onBus := newRecorder(), newRecorder(), newRecorder(), newRecorder(), newRecorder(), newRecorder()
	testkit.JoinBus(t, bus.Config{Embedded: testkit.Server(t), Metrics: onBus})
	every.Registry = newRegistry()
	file := filepath.Join(t.TempDir(), "stator.yaml")
	if err := os.WriteFile(file, defaultConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := configfile.NewFollower(configfile.FollowerConfig{Path: file, Read: configfile.Read, Metrics: every}); err != nil {
		t.Fatal(err)
	}
	if _, err := extproc.New(extproc.Config{Settings: cfg, Log: log, Metrics: router}); err != nil {
		t.Fatal(err)
	}
	router.MustRegister(extproc.NewDriftCollector(comparedWorker()))
	router.MustRegister(extproc.NewBreaksCollector(func(time.Time) []breaks.Place { return []breaks.Place{{Kind: breaks.Date}} }))
	expected := map[bus.PartKind]int{bus.PartRouter: 1, bus.PartControl: 1, bus.PartPlanner: 1, bus.PartStore: 1}
	router.MustRegister(extproc.NewPartsCollector(
		func(bus.PartKind, time.Time) ([]string, bool) { return nil, true },
		func() map[bus.PartKind]int { return expected },
	))
	router.MustRegister(extproc.NewBudgetCollector(func() ([]quota.Usage, int64) {
		return []quota.Usage{{Tenant: "red", Period: quota.Day}, {Tenant: "red", Period: quota.Month}}, 0
	}))
	router.MustRegister(accesslog.NewEnvoyCollector(func() []accesslog.Envoy { return []accesslog.Envoy{{Name: "edge"}} }))
	xds.NewServer(xdsSettings(cfg, []string{"127.0.0.1:9002"}), members, log, control)
	probeNone(t, router)
	probeNone(t, control)
	pods := newRecorder()
	kubernetes.New(kubernetes.Config{Log: log, Metrics: pods})
	discovery.NewPlans(discovery.PlansConfig{Fleet: members, Log: log, Metrics: control})
	planner.New(planner.Config{Fleet: members, Log: log, Metrics: plans})
	scale.New(scale.Config{Metrics: plans})
	launch := engine.Launch{Kind: "exec", Name: "w", Command: []string{"engine"}}
	_, err = workeragent.New(workeragent.Config{
		Launches: []engine.Launch{launch}, Site: engine.Site{Host: "127.0.0.1"}, Log: log, Metrics: agent,
	})
	if err != nil {
		t.Fatal(err)
	}
	names := newRecorder()
	names.MustRegister(poolmetrics.New(func() []poolmetrics.Pool { return []poolmetrics.Pool{{Name: "qwen"}} }, members.Snapshot, func() []route.QueueStats { return []route.QueueStats{{Pool: "m"}} }))
	store := newRecorder()
	if _, err := node.New(node.Config{Model: "m", HostBytes: 1 << 20, Log: log, Metrics: store}); err != nil {
		t.Fatal(err)
	}
	return []metricPart{
		{"Every process", "The program itself.", every.families(t)},
		{"Bus", "Every process that joins the bus.", onBus.families(t)},
		{"Router", "`stator extproc`: decisions, how they were obeyed, the index they are made from, and what feeds it.", router.families(t)},
		{"Kubernetes", "`stator extproc`, `stator xds` and `stator planner` with `--inference-pool` or `--pod-selector`.", pods.families(t)},
		{"Names of the inference extension", "`stator extproc` with `--inference-pool`: figures under the names of the Gateway API inference " +
			"extension, and of llm-d. Manifests of autoscalers that name these need no change.", names.families(t)},
		{"Control plane", "`stator xds`: what Envoys received.", control.families(t)},
		{"Planner", "`stator planner`. Figures of scaling are there with `planner.connector: kubernetes`.", plans.families(t)},
		{"Agent", "`stator agent`: the engines of a node.", agent.families(t)},
		{"Store of KV blocks", "`stator agent`, for each model with `models[].kv`.", store.described()},
	}
}

// comparedWorker returns a detector with a whole window of one worker. A detector without a window has no metrics.
func comparedWorker() *drift.Detector {
	d := drift.New(drift.Config{})
	d.Counted(drift.Counters{}, time.Unix(1, 0))
	d.Served(drift.Request{Decided: time.Unix(1, 0), PromptTokens: 2_000_000, BlockSize: 16})
	for range 2 {
		d.Counted(drift.Counters{Queries: 2_000_000}, time.Unix(2, 0))
	}
	return d
}

// recorder is a registry that keeps the collectors that were registered.
type recorder struct {
	*prometheus.Registry
	collectors []prometheus.Collector
}

func newRecorder() *recorder { return &recorder{Registry: prometheus.NewRegistry()} }

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	r.collectors = append(r.collectors, cs...)
	r.Registry.MustRegister(cs...)
}

// families gathers the registered metrics. Vectors without children and sets without sources get one, because
// they would be missing.
func (r *recorder) families(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	for _, c := range r.collectors {
		var err error
		switch v := c.(type) {
		case *prometheus.CounterVec:
			_, err = v.GetMetricWithLabelValues(blanks(c)...)
		case *prometheus.GaugeVec:
			_, err = v.GetMetricWithLabelValues(blanks(c)...)
		case *prometheus.SummaryVec:
			_, err = v.GetMetricWithLabelValues(blanks(c)...)
		case *prometheus.HistogramVec:
			_, err = v.GetMetricWithLabelValues(blanks(c)...)
		case *sources.Set:
			v.Add("", 0, &kvsource.Source{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	problems, err := testutil.GatherAndLint(r.Registry)
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "stator_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	others := regexp.MustCompile(`^(go|process|promhttp)_`) // of the program's libraries
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return others.MatchString(f.GetName()) })
}

// described returns the registered metrics by their descriptions alone: a store has most of its figures while it runs.
func (r *recorder) described() (all []*dto.MetricFamily) {
	descs := make(chan *prometheus.Desc)
	go func() {
		for _, c := range r.collectors {
			c.Describe(descs)
		}
		close(descs)
	}()
	for d := range descs {
		// The text is Desc{fqName: "name", help: "help", constLabels: {}, variableLabels: {a,b}}.
		parts := strings.Split(d.String(), `"`)
		kind := dto.MetricType_GAUGE
		if strings.HasSuffix(parts[1], "_total") {
			kind = dto.MetricType_COUNTER
		}
		m := new(dto.Metric)
		for _, name := range namesOf(d) {
			m.Label = append(m.Label, &dto.LabelPair{Name: &name})
		}
		all = append(all, &dto.MetricFamily{Name: &parts[1], Help: &parts[3], Type: &kind, Metric: []*dto.Metric{m}})
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

// blanks returns an empty value for each label of a vector.
func blanks(c prometheus.Collector) []string {
	descs := make(chan *prometheus.Desc, 1)
	c.Describe(descs)
	return make([]string, len(namesOf(<-descs)))
}

// namesOf returns the names of the labels of a metric. Only the text of a description has them.
func namesOf(d *prometheus.Desc) []string {
	_, names, _ := strings.Cut(d.String(), "variableLabels: {")
	names, _, _ = strings.Cut(names, "}")
	return strings.Split(names, ",")
}

// labels returns the names of a family's labels, with their values if there are several.
func labels(f *dto.MetricFamily) string {
	var names []string
	values := map[string][]string{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			name := l.GetName()
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
			if v := l.GetValue(); v != "" && !slices.Contains(values[name], v) {
				values[name] = append(values[name], v)
			}
		}
	}
	for i, name := range names {
		names[i] = "`" + name + "`"
		if len(values[name]) > 1 {
			slices.Sort(values[name])
			names[i] += ": " + strings.Join(values[name], ", ")
		}
	}
	return strings.Join(names, "; ")
}

// probeNone registers the metrics of the probes of an empty fleet.
func probeNone(t *testing.T, metrics *recorder) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	discovery.Probe(ctx, discovery.ProbeConfig{Fleet: fleet.New(fleet.Hooks{}), Log: slog.New(slog.DiscardHandler), Metrics: metrics})
}
