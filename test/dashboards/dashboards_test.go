package dashboards

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite examples/grafana instead of comparing with it")

const (
	grafana    = "../../examples/grafana"
	prometheus = "../../examples/prometheus"
)

// TestGrafanaFiles compares examples/grafana with the table. Run it with -rewrite to update the files.
func TestGrafanaFiles(t *testing.T) {
	var names []string
	for _, d := range All() {
		want, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(grafana, d.File+".json")
		names = append(names, path)
		if *rewrite {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
			t.Errorf("%s is not made from the table: run make golden (%v)", path, err)
		}
	}
	found, err := filepath.Glob(filepath.Join(grafana, "*"))
	slices.Sort(names)
	if err != nil || !slices.Equal(found, names) {
		t.Errorf("%s has %q, want %q (%v)", grafana, found, names, err)
	}
}

// TestPanels: a dashboard is small, and each of its panels is explained.
func TestPanels(t *testing.T) {
	titles := map[string]bool{}
	for _, d := range All() {
		if len(d.Panels) == 0 || len(d.Panels) > 8 {
			t.Errorf("%s has %d panels, want 1 to 8", d.File, len(d.Panels))
		}
		for _, p := range d.Panels {
			if titles[p.Title] || p.Unit == "" || p.Why == "" || len(p.Queries) == 0 {
				t.Errorf("%s: the panel %q is there twice, or lacks a unit, an explanation or a query", d.File, p.Title)
			}
			titles[p.Title] = true
		}
	}
}

// TestQueries: the queries of dashboards, recording rules and alerts use metrics, labels and values of labels that the program has, and
// each recording rule is for a dashboard.
func TestQueries(t *testing.T) {
	metrics := documented(t)
	rules, err := Rules(prometheus)
	if err != nil {
		t.Fatal(err)
	}
	unused := map[string]bool{}
	for _, r := range rules {
		for _, fault := range faults(r.Expr, "", metrics) {
			t.Errorf("%s%s: %s", r.Alert, r.Record, fault)
		}
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(r.Annotations["summary"], -1) {
			if !slices.Contains(grouped(r.Expr), m[1]) {
				t.Errorf("%s: its result has no label %s", r.Alert, m[1])
			}
		}
		if r.Record != "" {
			unused[r.Record] = true
		}
	}
	for _, r := range rules { // after all rules: a record is made from the program's metrics, and not from another
		if r.Record != "" {
			metrics[r.Record] = metric{}
			for _, label := range grouped(r.Expr) {
				metrics[r.Record][label] = nil
			}
		}
	}

	for _, fault := range append(faults(namespaceSeries, "", metrics), faults(modelSeries, "{{model}}", metrics)...) {
		t.Errorf("variables: %s", fault)
	}
	for _, d := range All() {
		for _, p := range d.Panels {
			for _, q := range p.Queries {
				for _, fault := range faults(q.Expr, q.Legend, metrics) {
					t.Errorf("%s, %s: %s\n%s", d.File, p.Title, fault, q.Expr)
				}
				for _, name := range metricRE.FindAllString(q.Expr, -1) {
					delete(unused, name)
				}
			}
		}
	}
	for name := range unused {
		t.Errorf("no dashboard uses %s", name)
	}
}

// TestFaultsOfQueries: the check finds what it is for.
func TestFaultsOfQueries(t *testing.T) {
	metrics := map[string]metric{"stator_a_total": {"result": {"good", "bad"}, "model": nil}, "stator_b_seconds_bucket": {"le": nil}}
	for expr, want := range map[string]string{
		`sum by (model) (rate(stator_a_total{result="bad", instance=~"a"}[5m]))`: "",
		`sum(stator_c_total)`:                                 "no metric stator_c_total",
		`stator_a_total{results="bad"}`:                       "stator_a_total has no label results",
		`stator_a_total{result=~"good|worse"}`:                "stator_a_total has no result worse",
		`sum by (worker) (stator_a_total)`:                    "stator_a_total has no label worker",
		`sum by (le) (rate(stator_b_seconds_bucket[1m]))`:     "",
		`sum by (le) (stator_a_total)`:                        "stator_a_total has no label le",
		`stator_a_total / on (model) stator_b_seconds_bucket`: "stator_b_seconds_bucket has no label model",
		`1 + 1`: "it uses no metric",
	} {
		if got := strings.Join(faults(expr, "", metrics), "; "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
	if got := faults("sum(stator_a_total)", "{{model}}", metrics); len(got) != 1 {
		t.Errorf("a label of the legend that the result lacks: %q", got)
	}
}

// TestPromtool has Prometheus' own program check the rules, where it is installed.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	files, err := filepath.Glob(filepath.Join(prometheus, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		what := "rules"
		if filepath.Base(file) == "prometheus.yaml" {
			what = "config"
		}
		args := []string{"check", what, file}
		if what == "config" {
			args = []string{"check", what, "--syntax-only", file}
		}
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
}

// metric has the labels of a metric, with their values where the documentation lists them.
type metric map[string][]string

// targetLabels are added by Prometheus, from the targets.
var targetLabels = []string{"instance", "job", "namespace"}

var (
	rowRE       = regexp.MustCompile("(?m)^\\| `(stator_\\w+)` \\| (\\w+) \\| ([^|]*) \\|")
	labelRE     = regexp.MustCompile("`(\\w+)`(?:: ([^;]*))?")
	metricRE    = regexp.MustCompile(`\bstator_\w+|\b[a-z_]+:\w+:\w+`)
	selectorRE  = regexp.MustCompile(`(stator_\w+|\b[a-z_]+:\w+:\w+)\{([^}]*)\}`)
	matcherRE   = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	groupRE     = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)\s*`)
	aggregateRE = regexp.MustCompile(`\b(?:sum|min|max)\b`)
	legendRE    = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// documented returns the metrics of docs/metrics.md, which a test in cmd/stator compares with the registered ones. A histogram has three.
func documented(t *testing.T) map[string]metric {
	t.Helper()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{}
	add := func(name string, labels metric) {
		if all[name] == nil {
			all[name] = metric{}
		}
		for label, values := range labels { // routers and control planes have some metrics alike
			all[name][label] = append(all[name][label], values...)
		}
	}
	for _, row := range rowRE.FindAllStringSubmatch(string(page), -1) {
		labels := metric{}
		for _, m := range labelRE.FindAllStringSubmatch(row[3], -1) {
			labels[m[1]] = nil
			if m[2] != "" {
				labels[m[1]] = strings.Split(m[2], ", ")
			}
		}
		name := row[1]
		switch row[2] {
		case "histogram":
			add(name+"_sum", labels)
			add(name+"_count", labels)
			add(name+"_bucket", labels)
			add(name+"_bucket", metric{"le": nil})
		case "summary":
			add(name+"_sum", labels)
			add(name+"_count", labels)
			add(name, labels)
			add(name, metric{"quantile": nil})
		default:
			add(name, labels)
		}
	}
	if len(all) == 0 {
		t.Fatal("docs/metrics.md has no rows")
	}
	return all
}

// faults returns what is wrong with the names in a query and its legend. It reads no PromQL: it finds names, selectors, and lists of
// labels with the expression in parentheses after them.
func faults(expr, legend string, metrics map[string]metric) (found []string) {
	names := metricRE.FindAllString(expr, -1)
	if len(names) == 0 {
		return []string{"it uses no metric"}
	}
	has := func(name, label string) bool {
		_, ok := metrics[name][label]
		return ok || slices.Contains(targetLabels, label)
	}
	for _, name := range names {
		if metrics[name] == nil {
			found = append(found, "no metric "+name)
		}
	}
	if len(found) > 0 {
		return found
	}

	for _, selector := range selectorRE.FindAllStringSubmatch(expr, -1) {
		for _, m := range matcherRE.FindAllStringSubmatch(selector[2], -1) {
			if !has(selector[1], m[1]) {
				found = append(found, selector[1]+" has no label "+m[1])
			}
			values := metrics[selector[1]][m[1]]
			for _, value := range strings.Split(m[2], "|") {
				if values != nil && !strings.HasPrefix(value, "$") && !slices.Contains(values, value) {
					found = append(found, selector[1]+" has no "+m[1]+" "+value)
				}
			}
		}
	}
	for _, at := range groupRE.FindAllStringSubmatchIndex(expr, -1) {
		within := expr // on and its like join two sides of the query
		if expr[at[2]:at[3]] == "by" {
			within = parenthesized(expr[at[1]:])
		}
		for _, label := range list(expr[at[4]:at[5]]) {
			for _, name := range metricRE.FindAllString(within, -1) {
				if !has(name, label) {
					found = append(found, name+" has no label "+label)
				}
			}
		}
	}

	for _, m := range legendRE.FindAllStringSubmatch(legend, -1) {
		aggregated := aggregateRE.MatchString(expr)
		if aggregated && !slices.Contains(grouped(expr), m[1]) || !aggregated && !has(names[0], m[1]) {
			found = append(found, "its result has no label "+m[1])
		}
	}
	return found
}

// grouped returns the labels that the aggregations of a query keep.
func grouped(expr string) (labels []string) {
	for _, m := range groupRE.FindAllStringSubmatch(expr, -1) {
		if m[1] == "by" {
			labels = append(labels, list(m[2])...)
		}
	}
	return labels
}

func list(text string) (names []string) {
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// parenthesized returns the expression in the parentheses with which text begins.
func parenthesized(text string) string {
	depth := 0
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			return text[:i+1]
		}
	}
	return text
}
