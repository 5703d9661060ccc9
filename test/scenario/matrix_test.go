package scenario

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/envoy"
)

// matrixVariable is the variable with which TestMatrix runs all cells. Without it a subset runs, see chosen.
const matrixVariable = "STATOR_TEST_MATRIX"

// matrixConfigs are the configurations that users have: files of testdata/envoy.
var matrixConfigs = []matrixConfig{
	{name: "edge"},
	{name: "gateway", host: "api.example.test", pieces: true},
	{name: "sidecar", http2: true, pieces: true, trailers: true, eds: true},
}

// matrixConfig describes a file of testdata/envoy and its clients.
type matrixConfig struct {
	name     string
	host     string // that clients ask for
	http2    bool   // clients speak it
	pieces   bool   // bodies arrive without their length, with trailers
	trailers bool   // they reach the filter and the engines
	eds      bool   // endpoints come from `stator xds`
}

// matrixModes are the modes of the filter. In those that read no prompts, requests are picked by load, and errors in their bodies
// are found by engines. In the others they are picked by cache.
var matrixModes = []matrixMode{
	{name: "BUFFERED", reads: true},
	{name: "BUFFERED_PARTIAL", reads: true},
	{name: "STREAMED"},
	{name: "FULL_DUPLEX_STREAMED", reads: true},
	{name: "NONE"},
}

// matrixMode is a request_body_mode.
type matrixMode struct {
	name  string
	reads bool
}

// byCache reports whether prompts are read.
func (m *matrixEnvoy) byCache() bool { return m.mode.reads }

// looksCut reports whether a broken body looks like the first part of a whole one: trailers that follow it hide its end.
func (m *matrixEnvoy) looksCut() bool { return m.mode.name == "BUFFERED_PARTIAL" && m.config.trailers }

// retries reports whether the file keeps its retry policy. Before trailers, Envoy 1.40 with a retry policy sends bodies twice in three
// modes, also where nothing is retried. So there it has none.
func (m *matrixEnvoy) retries() bool {
	switch m.mode.name {
	case "STREAMED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED":
		return !m.config.trailers
	}
	return true
}

// matrixCases are what every cell shows, in the order in which they run. Each returns how many requests workers have answered,
// or -1 where that depends on when clients leave.
var matrixCases = []struct {
	name string
	run  func(c *cell) (answered int)
}{
	{"conversation", (*cell).conversation},
	{"refusals", (*cell).refusals},
	{"cancellation", (*cell).cancellation},
	{"queue", (*cell).queue},
	{"large", (*cell).large},
	{"retries", (*cell).failures},
}

// largeAnswers are the statuses of a body of 16 MiB, and of one above the router's bound of 17 MiB. Where the router reads no
// bodies, it knows their length by content-length alone, which only the clients of edge send.
var largeAnswers = map[string][2]int{
	"edge/BUFFERED":                {200, 413},
	"edge/BUFFERED_PARTIAL":        {200, 413},
	"edge/STREAMED":                {200, 413},
	"edge/FULL_DUPLEX_STREAMED":    {200, 413},
	"edge/NONE":                    {200, 413},
	"gateway/BUFFERED":             {200, 413},
	"gateway/BUFFERED_PARTIAL":     {200, 413},
	"gateway/STREAMED":             {200, 200},
	"gateway/FULL_DUPLEX_STREAMED": {200, 413},
	"gateway/NONE":                 {200, 200},
	"sidecar/BUFFERED":             {413, 413}, // Envoy refuses both
	"sidecar/BUFFERED_PARTIAL":     {200, 200}, // the router gets the first MiB, and the request goes by load
	"sidecar/STREAMED":             {200, 200},
	"sidecar/FULL_DUPLEX_STREAMED": {200, 413},
	"sidecar/NONE":                 {200, 200},
}

// chosen reports whether the subset has a cell, by the indices of its configuration, mode and case. Every pair of any two
// of them is in the subset.
func chosen(configuration, mode, what int) bool {
	return (mode+what)%len(matrixConfigs) == configuration
}

// TestMatrixSubset: every configuration with every mode, every mode with every case, and every case with every configuration.
func TestMatrixSubset(t *testing.T) {
	pairs, cells := map[string]bool{}, 0
	for i, config := range matrixConfigs {
		for j, mode := range matrixModes {
			for k, what := range matrixCases {
				if chosen(i, j, k) {
					cells++
					pairs[config.name+" "+mode.name] = true
					pairs[mode.name+" "+what.name] = true
					pairs[what.name+" "+config.name] = true
				}
			}
		}
	}

	configs, modes, cases := len(matrixConfigs), len(matrixModes), len(matrixCases)
	if want := configs*modes + modes*cases + cases*configs; len(pairs) != want {
		t.Errorf("the subset has %d pairs of %d: %v", len(pairs), want, pairs)
	}
	if cells != modes*cases {
		t.Errorf("the subset has %d cells, more than are needed", cells)
	}
}

// TestMatrix: what a router does for an operator's Envoy does not depend on how that Envoy is configured, apart from the
// differences in the tables above. In every cell requests get the same answers, are served as picked, and leave no booking.
func TestMatrix(t *testing.T) {
	t.Parallel()
	all := os.Getenv(matrixVariable) != ""
	answers := &matrixAnswers{byName: map[string]string{}}
	for i, config := range matrixConfigs {
		t.Run(config.name, func(t *testing.T) {
			t.Parallel() // they wait more than they compute
			for j, mode := range matrixModes {
				t.Run(mode.name, func(t *testing.T) {
					m := startMatrixEnvoy(t, config, mode)
					m.answers = answers
					for k, what := range matrixCases {
						if all || chosen(i, j, k) {
							t.Run(what.name, func(t *testing.T) { m.cell(t).check(what.run) })
						}
					}
					if config.name == "edge" && mode.name == "FULL_DUPLEX_STREAMED" {
						t.Run("memory", func(t *testing.T) { m.cell(t).memory() })
					}
				})
			}
		})
	}
}

// matrixAnswers has the answers to bad inputs, which must be the same in all cells.
type matrixAnswers struct {
	mu     sync.Mutex
	byName map[string]string // guarded by mu
}

// first returns the first answer to an input.
func (a *matrixAnswers) first(name, answer string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.byName[name]; !ok {
		a.byName[name] = answer
	}
	return a.byName[name]
}

// matrixEnvoy is one Envoy with its router and engines.
type matrixEnvoy struct {
	*gateway
	config  matrixConfig
	mode    matrixMode
	file    string
	router  *command
	process *envoy.Process
	workers map[string]string // lines of the file, by name
	records *recorder
	resets  *recorder
	answers *matrixAnswers
	listed  string // what the file has
}

// cell is an Envoy while one case uses it.
type cell struct {
	*gateway
	*matrixEnvoy
	t       *testing.T
	mayFail bool // workers of this case may fail
}

// cell returns the cell whose failures go to t.
func (m *matrixEnvoy) cell(t *testing.T) *cell {
	g := *m.gateway
	g.t = t
	return &cell{gateway: &g, matrixEnvoy: m, t: t}
}

// startMatrixEnvoy starts two engines with caches, workers that misbehave and are not listed yet, a router, and Envoy.
func startMatrixEnvoy(t *testing.T, config matrixConfig, mode matrixMode) *matrixEnvoy {
	t.Helper()
	m := &matrixEnvoy{config: config, mode: mode, workers: map[string]string{}}
	m.records, m.resets = startRecorder(t, false), startRecorder(t, true)
	at := map[string]string{"records": m.records.address, "resets": m.resets.address, "refuses": freeAddress(t)}
	for name, address := range at {
		m.workers[name] = fmt.Sprintf("{name: %s, address: %q, healthPath: none}", name, address)
	}
	for _, name := range []string{"a", "b"} {
		at[name] = freeAddress(t)
		events := "ipc://" + filepath.Join(t.TempDir(), "e")
		start(t, "sim", "--name", name, "--listen-address", at[name], "--kv-events", events, "--blocks", "4096", "--log-level", "warn")
		m.workers[name] = fmt.Sprintf("{name: %s, address: %q, kvEvents: %q}", name, at[name], events)
	}

	listen, routerAt, xdsAt := freeAddress(t), freeAddress(t), freeAddress(t)
	m.gateway = &gateway{t: t, url: "http://" + listen, admin: freeAddress(t), http: config.client()}
	m.listed = m.fleetOf("", "a", "b")
	m.file = configFile(t, m.listed)
	m.router = start(t, "extproc", "--config", m.file, "--listen-address", routerAt, "--admin-address", m.admin)
	if config.eds {
		start(t, "xds", "--config", m.file, "--listen-address", xdsAt, "--admin-address", "127.0.0.1:0")
	}
	m.awaitFleet(t, "a", "b")

	trailers := "SKIP"
	if mode.name == "FULL_DUPLEX_STREAMED" {
		trailers = "SEND" // Envoy refuses this mode without it
	}
	m.startEnvoy(strings.NewReplacer(
		"port_value: LISTEN", port(listen), "port_value: ROUTER", port(routerAt), "port_value: XDS", port(xdsAt),
		"port_value: ENGINE_A", port(at["a"]), "port_value: ENGINE_B", port(at["b"]), "port_value: ENGINE_RECORDS", port(at["records"]),
		"port_value: ENGINE_REFUSES", port(at["refuses"]), "port_value: ENGINE_RESETS", port(at["resets"]),
		"request_body_mode: MODE", "request_body_mode: "+mode.name, "request_trailer_mode: TRAILERS", "request_trailer_mode: "+trailers))
	m.awaitEndpoints(t, 2)
	return m
}

// port returns the port of an address, as a line of a file has it.
func port(address string) string {
	return "port_value: " + address[strings.LastIndex(address, ":")+1:]
}

// startEnvoy starts Envoy with its file, and returns when it serves.
func (m *matrixEnvoy) startEnvoy(words *strings.Replacer) {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "envoy", m.config.name+".yaml"))
	if err != nil {
		m.t.Fatal(err)
	}
	text = []byte(words.Replace(string(text)))
	if !m.retries() {
		text = withoutRetries(m.t, text)
	}
	m.process, err = envoy.Start(envoy.Config{
		Path: envoyPath(m.t), Bootstrap: text, Dir: m.t.TempDir(), Concurrency: 2,
		Log: slog.New(slog.NewTextHandler(m.t.Output(), nil)),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { m.process.Stop(context.Background()) })

	eventually(m.t, "Envoy serves, and asks the router", func() error {
		r, err := m.send(m.t.Context(), http.MethodGet, "/v1/models", nil)
		if err == nil && r.status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", r.status, r.body)
		}
		return err
	})
}

// withoutRetries removes the retry policies of a configuration.
func withoutRetries(t *testing.T, text []byte) []byte {
	t.Helper()
	var parsed any
	err := yaml.Unmarshal(text, &parsed)
	var remove func(v any)
	remove = func(v any) {
		switch v := v.(type) {
		case yamlMap:
			delete(v, "retry_policy")
			for _, member := range v {
				remove(member)
			}
		case []any:
			for _, element := range v {
				remove(element)
			}
		}
	}
	remove(parsed)

	if err == nil {
		text, err = yaml.Marshal(parsed)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fleetOf returns the file's text with these workers, and with a setting of their model.
func (m *matrixEnvoy) fleetOf(setting string, names ...string) string {
	var list []string
	for _, name := range names {
		list = append(list, m.workers[name])
	}
	return fmt.Sprintf("gateway: {maxBodyBytes: %d}\nmodels:\n- {name: sim, path: \"builtin:sim\", workers: [%s], %s}\n",
		17<<20, strings.Join(list, ", "), setting)
}

// useFleet changes the file if it has other workers, and returns when the router and Envoy follow it.
func (c *cell) useFleet(setting string, names ...string) {
	c.t.Helper()
	listed := c.fleetOf(setting, names...)
	if listed == c.listed {
		return
	}
	c.listed = listed
	text := "apiVersion: stator.dev/v1alpha1\nkind: Stator\n" + listed
	if err := os.WriteFile(c.file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.awaitFleet(c.t, names...)
	c.awaitEndpoints(c.t, len(names))
}

// awaitFleet waits until the router has these workers, and all are ready.
func (m *matrixEnvoy) awaitFleet(t *testing.T, names ...string) {
	t.Helper()
	slices.Sort(names)
	eventually(t, fmt.Sprintf("the workers %v are ready", names), func() error {
		if _, err := get("http://" + m.admin + "/readyz"); err != nil {
			return err
		}
		var have []string
		for _, r := range m.fleet() {
			if r.State != "ready" {
				return fmt.Errorf("%s is %s", r.Worker, r.State)
			}
			have = append(have, r.Worker)
		}
		slices.Sort(have)
		if !slices.Equal(have, names) {
			return fmt.Errorf("the router has %v", have)
		}
		return nil
	})
}

// awaitEndpoints waits until Envoy has n endpoints from `stator xds`.
func (m *matrixEnvoy) awaitEndpoints(t *testing.T, n int) {
	t.Helper()
	if !m.config.eds {
		return
	}
	eventually(t, fmt.Sprintf("Envoy has %d endpoints", n), func() error {
		got, err := m.process.Stat(t.Context(), "cluster.outbound|8000||engines.membership_healthy")
		if err == nil && got != n {
			err = fmt.Errorf("it has %d", got)
		}
		return err
	})
}

// check runs a case, and demands that workers answered as many requests as it returns, each the picked one, or, where it failed
// and Envoy retries, the next one.
func (c *cell) check(run func(c *cell) int) {
	c.t.Helper()
	c.awaitReports()
	before := map[string]int{}
	for _, o := range []string{"as_picked", "retried", "misdirected", "unpicked", "unserved", "failed"} {
		before[o] = c.served(o)
	}
	nets := c.nets()
	answered := run(c)

	since := func(o string) int { return c.served(o) - before[o] }
	bad := []string{"misdirected", "unpicked"}
	if answered >= 0 {
		eventually(c.t, fmt.Sprintf("%d requests are reported", answered), func() error {
			if n := since("as_picked") + since("retried"); n != answered {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
	}
	if answered >= 0 && !c.mayFail {
		bad = append(bad, "unserved", "failed", "retried")
	}
	for _, o := range bad {
		if n := since(o); n != 0 {
			c.t.Errorf("%d requests were %s", n, o)
		}
	}
	c.assertNothingBooked()
	if n := c.nets() - nets; n > 2 { // few: a busy machine delays entries
		c.t.Errorf("%g bookings ended by the safety nets, not by their access-log entries", n)
	}
}

// awaitReports waits until no more requests of earlier cases are reported. Some have no booking whose end could be awaited: their clients
// left before the decision.
func (c *cell) awaitReports() {
	c.t.Helper()
	settles(c.t, "the number of reports", func() (float64, error) { return c.metric("stator_accesslog_requests_total"), nil })
}

// nets returns how many bookings were ended by anything but their entries.
func (c *cell) nets() float64 {
	c.t.Helper()
	return c.metric("stator_route_bookings_ended_total", `reason="reconciled"`) + c.metric("stator_accesslog_abandoned_bookings_total")
}

// client returns an HTTP client of the kind that this configuration has.
func (c matrixConfig) client() *http.Client {
	base := &http.Transport{MaxIdleConnsPerHost: 64}
	if c.http2 {
		base.Protocols = new(http.Protocols)
		base.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Timeout: patience, Transport: shaped{base, c}}
}

// shaped sends requests in the shape in which the clients of a configuration send them.
type shaped struct {
	base   http.RoundTripper
	config matrixConfig
}

// trailer is the name of the trailer that clients send.
const trailer = "X-Checksum"

func (s shaped) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if s.config.host != "" {
		r.Host = s.config.host
	}
	if s.config.pieces && r.ContentLength > 0 {
		r.ContentLength = -1
		r.Trailer = http.Header{trailer: {"1"}}
	}
	return s.base.RoundTrip(r)
}
