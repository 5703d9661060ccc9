package scenario

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/dashboards"
)

// TestDashboards asks a real Prometheus, which has the configuration and the rules of examples/prometheus, each query of dashboards and
// recording rules while `stator up` serves. All return data, but those for which the table has the reason why not.
func TestDashboards(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("this machine has no Prometheus")
	}
	g := up(t, "--config", configFile(t, `
index: {driftTokens: 1000}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2}]
  router: {busy: {prefillTokens: 4096}, queue: {maxWait: 20s}}
`))
	p := &prometheus{t: t, at: freeAddress(t)}
	p.start(program, g.admin)

	conversation := strings.Repeat("Each of these many rules holds for the whole conversation.\n", 60)
	g.loadOf(4, func(client, i int) error {
		// A text that changes before one that does not: it keeps prompts from caches.
		dated := []message{{"system", fmt.Sprintf("The time is 20:%02d.\n", i%60) + conversation}, {"user", "go on"}}
		if _, err := g.tryChat(t.Context(), dated, 4); err != nil {
			return err
		}
		return g.completeAnswer("sim", true, client, 10)
	})

	rules, err := dashboards.Rules(prometheusFolder)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if r.Record != "" {
			p.awaitData(r.Record, r.Expr)
		}
	}
	asked, empty := 0, 0
	for _, d := range dashboards.All() {
		for _, panel := range d.Panels {
			for _, q := range panel.Queries {
				asked++
				if q.Empty == "" {
					p.awaitData(d.File+", "+panel.Title, q.Expr)
					continue
				}
				if p.samples(q.Expr) > 0 {
					t.Errorf("%s, %s: the query returns data, so its reason for none (%s) is wrong: %s", d.File, panel.Title, q.Empty, q.Expr)
				}
				empty++
			}
		}
	}
	t.Logf("%d queries of dashboards were asked, and %d of them rightly return nothing", asked, empty)
}

const prometheusFolder = "../../examples/prometheus"

// prometheus is a running Prometheus.
type prometheus struct {
	t  *testing.T
	at string
}

// Parts of examples/prometheus/prometheus.yaml for which a test has others.
var (
	targetsRE  = regexp.MustCompile(`targets: \[[^\]]*\]`)
	listedRE   = regexp.MustCompile(`http://[0-9.:]+/sd`)
	tokenRE    = regexp.MustCompile(`(?m)^ *authorization: .*\n`)
	intervalRE = regexp.MustCompile(`scrape_interval: \w+`)
)

// start runs Prometheus with the files of examples/prometheus. All targets are the one admin port, which asks for no token, and intervals
// are a second.
func (p *prometheus) start(program, admin string) {
	p.t.Helper()
	dir := p.t.TempDir()
	for _, name := range []string{"prometheus.yaml", "alerts.yaml", "recording.yaml"} {
		text, err := os.ReadFile(filepath.Join(prometheusFolder, name))
		if err != nil {
			p.t.Fatal(err)
		}
		text = targetsRE.ReplaceAll(text, []byte(`targets: ["`+admin+`"]`))
		text = listedRE.ReplaceAll(text, []byte("http://"+admin+"/sd"))
		text = tokenRE.ReplaceAll(text, nil)
		text = intervalRE.ReplaceAll(text, []byte("scrape_interval: 1s\n  evaluation_interval: 1s"))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	start := exec.Command(program, "--config.file", filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", p.at, "--log.level", "error")
	startCommand(p.t, start)
	eventually(p.t, "Prometheus is ready", func() error {
		_, err := get("http://" + p.at + "/-/ready")
		return err
	})
}

// variables are what Grafana has in queries when all namespaces and models are selected.
var variables = strings.NewReplacer("$namespace", ".*", "$model", ".*", "$__rate_interval", "10s")

// samples returns how many series a query has that are numbers.
func (p *prometheus) samples(query string) (n int) {
	p.t.Helper()
	text, err := get("http://" + p.at + "/api/v1/query?query=" + url.QueryEscape(variables.Replace(query)))
	if err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	var answer struct {
		Data struct {
			Result []struct{ Value []json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		p.t.Fatal(err)
	}
	for _, r := range answer.Data.Result {
		var value string
		if len(r.Value) != 2 || json.Unmarshal(r.Value[1], &value) != nil {
			p.t.Fatalf("%s: %s", query, text)
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil && !math.IsNaN(v) {
			n++
		}
	}
	return n
}

// awaitData waits until a query returns data.
func (p *prometheus) awaitData(what, query string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s has data: %s", what, query), func() error {
		if p.samples(query) == 0 {
			return errNotYet
		}
		return nil
	})
}
