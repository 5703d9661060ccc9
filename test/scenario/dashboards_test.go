package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/test/dashboards"
)

// TestDashboards asks a real Prometheus, which has the configuration and the rules of examples/prometheus, each query of dashboards and
// recording rules while `stator up` serves. All return data, but those for which the table has the reason why not.
func TestDashboards(t *testing.T) {
	t.Parallel()
	needPrometheus(t)
	g := up(t, "--config", configFile(t, `
index: {driftTokens: 1000}
tracing: {endpoint: "http://127.0.0.1:1", ratio: 1} # exemplars need no receiver
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2}]
  router: {busy: {prefillTokens: 4096}, queue: {maxWait: 20s}}
`))
	p := startPrometheus(t, g.admin, intervalRE)

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
	p.awaitExemplars("stator_request_duration_seconds_bucket")
	t.Logf("%d queries of dashboards were asked, and %d of them rightly return nothing", asked, empty)
}

// TestAlerts: none of the alerts of examples/prometheus fires while all is well, and each fires after its fault. Their times are seconds
// instead of minutes.
func TestAlerts(t *testing.T) {
	t.Parallel()
	needPrometheus(t)
	fired := map[string]bool{}

	var doors []*door
	var workers []string
	for _, name := range []string{"a", "b", "c"} {
		at := freeAddress(t)
		start(t, "sim", "--name", name, "--listen-address", at, "--log-level", "warn")
		d := openDoor(t, at)
		doors = append(doors, d)
		workers = append(workers, fmt.Sprintf("name: %s, address: %q, healthPath: none", name, d.address))
	}
	g := startListedPartsWith(t, ", hintsFrom: everyone, hints: headers", workers...)
	p := startPrometheus(t, g.admin, intervalRE, windowRE, patienceRE)
	stream := func(pause time.Duration, headers ...string) func(client, i int) error {
		return func(client, i int) error {
			time.Sleep(pause)
			body := fmt.Sprintf(`{"model": "sim", "stream": true, "max_tokens": 4, "messages": [{"role": "user", "content": "%d asks %d"}]}`, client, i)
			_, err := g.send(t.Context(), http.MethodPost, chatPath, []byte(body), headers...)
			return err
		}
	}
	load := g.loadOf(2, stream(50*time.Millisecond))
	p.awaitData("answers", "sum(rate(stator_request_answers_total[15s])) > 1")
	load.more(t, 100)
	p.awaitNone("ALERTS") // with such short times one slow answer on a busy machine is an alert for a while

	doors[2].set("answer late")
	late := g.loadOf(4, stream(0, "x-stator-worker", "c"))
	p.awaitAlert(fired, "StatorSlowFirstToken")
	p.awaitAlert(fired, "StatorSlowWorker")
	late.stop()
	doors[2].set("pass")

	refused := g.loadOf(1, stream(50*time.Millisecond, "x-stator-worker", "d"))
	p.awaitAlert(fired, "StatorRefusals")
	refused.stop()

	for _, d := range doors {
		d.set("answer 503")
	}
	p.awaitAlert(fired, "StatorFailures")
	for _, d := range doors {
		d.set("pass")
	}
	g.awaitPicks()

	g.extproc.kill()
	load.more(t, 100)
	g.startExtProc()
	p.awaitAlert(fired, "StatorNotAsPicked")
	load.stop()

	withBus := startParts(t, 2)
	p = startPrometheus(t, withBus.admin, intervalRE, windowRE, patienceRE)
	p.awaitData("the bus", "min(stator_bus_connected) == 1")
	eventually(t, "the caches are known", withBus.knowledge("exact", 2))
	withBus.bus.kill()
	p.awaitAlert(fired, "StatorBusAway")
	p.awaitAlert(fired, "StatorStaleCaches")

	rules, err := dashboards.Rules(prometheusFolder)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if r.Alert != "" && !fired[r.Alert] {
			t.Errorf("no fault of this test is for the alert %s", r.Alert)
		}
	}
	t.Logf("%d alerts fired, each after its fault", len(fired))
}

const prometheusFolder = "../../examples/prometheus"

// prometheus is a running Prometheus.
type prometheus struct {
	t  *testing.T
	at string
}

// Parts of the files of examples/prometheus for which a test has others.
var (
	targetsRE  = regexp.MustCompile(`targets: \[[^\]]*\]`)
	listedRE   = regexp.MustCompile(`http://[0-9.:]+/sd`)
	tokenRE    = regexp.MustCompile(`(?m)^ *authorization: .*\n`)
	intervalRE = regexp.MustCompile(`scrape_interval: \w+`)
	windowRE   = regexp.MustCompile(`\[\d+m\]`)    // of rates
	patienceRE = regexp.MustCompile(`for: \d+m\b`) // of alerts
)

// shortened has the replacements of times.
var shortened = map[*regexp.Regexp]string{
	intervalRE: "scrape_interval: 1s\n  evaluation_interval: 1s", windowRE: "[15s]", patienceRE: "for: 0s",
}

// needPrometheus skips a test on a machine without Prometheus.
func needPrometheus(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("this machine has no Prometheus")
	}
}

// startPrometheus runs Prometheus with the files of examples/prometheus. All targets are the one admin port, which asks for no token, and
// these times are shortened.
func startPrometheus(t *testing.T, admin string, times ...*regexp.Regexp) *prometheus {
	t.Helper()
	p := &prometheus{t: t, at: freeAddress(t)}
	dir := t.TempDir()
	for _, name := range []string{"prometheus.yaml", "alerts.yaml", "recording.yaml"} {
		text, err := os.ReadFile(filepath.Join(prometheusFolder, name))
		if err != nil {
			t.Fatal(err)
		}
		text = targetsRE.ReplaceAll(text, []byte(`targets: ["`+admin+`"]`))
		text = listedRE.ReplaceAll(text, []byte("http://"+admin+"/sd"))
		text = tokenRE.ReplaceAll(text, nil)
		for _, re := range times {
			text = re.ReplaceAll(text, []byte(shortened[re]))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	program := exec.Command("prometheus", "--config.file", filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", p.at, "--log.level", "error", "--enable-feature", "exemplar-storage")
	startCommand(t, program)
	eventually(t, "Prometheus is ready", func() error {
		_, err := get("http://" + p.at + "/-/ready")
		return err
	})
	return p
}

// awaitNone waits until a query returns nothing.
func (p *prometheus) awaitNone(query string) {
	p.t.Helper()
	eventually(p.t, query+" is empty", func() error {
		if n := p.samples(query); n > 0 {
			return fmt.Errorf("%d series", n)
		}
		return nil
	})
}

// awaitExemplars waits until a query returns exemplars, each with the id of a trace.
func (p *prometheus) awaitExemplars(query string) {
	p.t.Helper()
	eventually(p.t, "Prometheus has exemplars", func() error {
		text, err := get("http://" + p.at + "/api/v1/query_exemplars?query=" + url.QueryEscape(query) + fmt.Sprintf("&start=0&end=%d", time.Now().Unix()))
		if err != nil {
			return err
		}
		var answer struct {
			Data []struct {
				Exemplars []struct{ Labels map[string]string }
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return err
		}
		if len(answer.Data) == 0 || len(answer.Data[0].Exemplars) == 0 {
			return errors.New("there is none")
		}
		if id := answer.Data[0].Exemplars[0].Labels["trace_id"]; len(id) != 32 {
			p.t.Errorf("an exemplar has the trace %q", id)
		}
		return nil
	})
}

// awaitAlert waits until an alert fires, and notes it.
func (p *prometheus) awaitAlert(fired map[string]bool, name string) {
	p.t.Helper()
	p.awaitData("the alert", fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing"}`, name))
	fired[name] = true
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
