package scenario

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// envoysVariable lists the paths of the Envoys of TestVersions. Without it the Envoy of envoyPath runs what no other test runs.
const envoysVariable = "STATOR_TEST_ENVOYS"

var versionsReport = flag.String("versions.report", "", "`file` of the repository whose table of versions and scenarios TestVersions writes again")

// trial is a scenario that is run with each version of Envoy.
type trial struct {
	name  string
	short bool // it runs in make test, too
	run   func(*testing.T)
}

// versionTrials are the ways in which an Envoy is used. In the first ones it has its whole configuration from `stator xds`.
var versionTrials = []trial{
	{"configured by Stator: conversations", false, conversationsOfWhole},
	{"configured by Stator: bodies of 1 and 16 MiB, and too long ones", true, bodiesOfWhole},
	{"configured by Stator: decompression bombs, with and without a router", false, decompressionBombsAreRefused},
	{"configured by Stator: a retry at another worker", false, retryOfWhole},
	{"configured by Stator: several models", false, modelsOfWhole},
	{"configured by Stator: the queue of a router", false, queueOfWhole},
	{"configured by Stator: state of the world", true, wholeStateOfWhole},
	{"configured by Stator: the doctor finds no more than an old version", false, doctorReadsTheGateway},
	{"snippets are valid", false, snippetsAreValid},
	{"snippet: conversations, with and without a router", false, snippetInAnOrdinaryEnvoy},
	{"snippet: bodies of 1 and 16 MiB", true, bodiesOfSnippet},
	{"snippet: headers and trailers of responses sent to routers", true, phasesOfSnippet},
	{"snippet: several models", false, snippetOfSeveralModels},
	{"endpoints alone: delta", false, func(t *testing.T) { endpointsOfAnOrdinaryEnvoy(t, "DELTA_GRPC") }},
	{"endpoints alone: state of the world", false, func(t *testing.T) { endpointsOfAnOrdinaryEnvoy(t, "GRPC") }},
}

// TestVersions uses each version of Envoy in each way. `make test-versions` runs all of it.
func TestVersions(t *testing.T) {
	paths := strings.Fields(os.Getenv(envoysVariable))
	isWhole := len(paths) > 0
	if !isWhole {
		t.Parallel()
		paths = []string{envoyPath(t)}
	}

	var versions []string
	results := map[string]string{} // by version and trial
	for _, path := range paths {
		version := versionAt(t, path)
		versions = append(versions, version)
		t.Run(version, func(t *testing.T) {
			if isWhole {
				t.Setenv("STATOR_TEST_ENVOY", path)
			}
			for _, c := range versionTrials {
				if !isWhole && !c.short {
					continue
				}
				results[version+c.name] = "not run" // where -run leaves it out
				t.Run(c.name, func(t *testing.T) {
					results[version+c.name] = "**failed**"
					c.run(t)
					if !t.Failed() {
						results[version+c.name] = "passed"
					}
				})
			}
		})
	}
	if !isWhole {
		return
	}

	var table strings.Builder
	fmt.Fprintf(&table, "| Scenario | %s |\n|---|%s\n", strings.Join(versions, " | "), strings.Repeat("---|", len(versions)))
	for _, c := range versionTrials {
		fmt.Fprintf(&table, "| %s |", c.name)
		for _, v := range versions {
			fmt.Fprintf(&table, " %s |", results[v+c.name])
		}
		table.WriteString("\n")
	}
	t.Logf("\n%s", &table)
	if *versionsReport != "" {
		writeReport(t, filepath.Join("../..", *versionsReport), table.String())
	}
}

// versionAt returns the version of an Envoy, such as 1.38.3.
func versionAt(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command(path, "--version").Output()
	m := regexp.MustCompile(`/(1\.\d+\.\d+)/`).FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%s: no version in %q, %v", path, out, err)
	}
	return string(m[1])
}

// writeReport replaces what is between the marks in a file.
func writeReport(t *testing.T, path, table string) {
	t.Helper()
	const begin, end = "<!-- versions:begin -->\n", "<!-- versions:end -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, hasBegin := strings.Cut(string(text), begin)
	_, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s lacks %sor %s", path, begin, end)
	}
	if err := os.WriteFile(path, []byte(before+begin+table+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reported returns how many requests the access log has reported as served where they were picked, or at the next worker.
func reported(g *gateway) int { return g.served("as_picked") + g.served("retried") }

// settled waits until the first requests of an edge have ended, and returns how many they were.
func settled(e *edge) int {
	e.t.Helper()
	eventually(e.t, "the first requests have ended", func() error {
		if reported(e.gateway) == 0 || e.metric("stator_accesslog_streams") == 0 {
			return errNotYet
		}
		return nil
	})
	e.assertNothingBooked()
	return reported(e.gateway)
}

// assertReported demands that so many requests are reported as served where they were picked, or at the next worker.
func assertReported(g *gateway, want int) {
	g.t.Helper()
	eventually(g.t, "all requests are reported", func() error {
		if n := reported(g); n != want {
			return fmt.Errorf("%d of %d", n, want)
		}
		return nil
	})
	for _, outcome := range []string{"unpicked", "unserved", "failed", "misdirected"} {
		if n := g.served(outcome); n > 0 {
			g.t.Errorf("%d requests were %s", n, outcome)
		}
	}
	g.assertNothingBooked()
}

// assertKnown demands that Envoy knew and accepted all that it got.
func assertKnown(e *edge) {
	e.t.Helper()
	for _, stat := range []string{
		"server.static_unknown_fields", "server.dynamic_unknown_fields", "listener_manager.lds.update_rejected",
		"cluster_manager.cds.update_rejected", "http.gateway.rds.gateway.update_rejected", "cluster.pool/sim.update_rejected",
	} {
		if n, err := e.process.Stat(e.t.Context(), stat); err != nil || n != 0 {
			e.t.Errorf("%s is %d, %v", stat, n, err)
		}
	}
}

// conversationsOfWhole: chats with several turns stay where their caches are.
func conversationsOfWhole(t *testing.T) {
	g := up(t, "--workers", "2")
	const talks, turns = 4, 4
	for i := range talks {
		c := newTalk(fmt.Sprintf("the lighthouse of number %d", i), 60)
		for turn := range turns {
			if err := c.turn(g, turn); err != nil {
				t.Fatal(err)
			}
		}
		if len(c.workers) != 1 || c.cached == 0 {
			t.Errorf("a conversation was picked to %v, with %d cached tokens", c.workers, c.cached)
		}
	}
	assertReported(g, talks*turns)
}

// longBody returns a chat whose body has this length.
func longBody(model string, length int) string {
	const format = `{"model":%q,"messages":[{"role":"user","content":"hello"}],"x_filler":%q}`
	return fmt.Sprintf(format, model, strings.Repeat("x", length-len(fmt.Sprintf(format, model, ""))))
}

// assertBodiesArrive sends bodies of these lengths, of which each must reach the worker as it is.
func assertBodiesArrive(g *gateway, w *backend, model string, lengths ...int) {
	g.t.Helper()
	for _, length := range lengths {
		body, before := longBody(model, length), len(w.got())
		r, err := g.send(g.t.Context(), http.MethodPost, chatPath, []byte(body))
		got := w.got()
		if err != nil || r.status != http.StatusOK || r.decision == "" || len(got) != before+1 {
			g.t.Errorf("%d bytes: status %d, decision %q, %d requests, %v: %.300s", length, r.status, r.decision, len(got)-before, err, r.body)
			continue
		}
		if last := got[before].body; sha256.Sum256([]byte(last)) != sha256.Sum256([]byte(body)) {
			g.t.Errorf("%d bytes: the worker got %d others", length, len(last))
		}
	}
}

// bodiesOfWhole: long bodies reach workers unchanged, up to the bound. Longer ones are refused, also compressed ones.
func bodiesOfWhole(t *testing.T) {
	w := startBackend(t, nil)
	// A busy machine with the race detector needs more than five seconds for the longest body.
	e := startEdge(t, true, "maxBodyBytes: 16777216, decisionTimeout: 60s", simModel("sim", w))
	before := settled(e)
	assertBodiesArrive(e.gateway, w, "sim", 64<<10, 1<<20, 1<<20+1, 16<<20)

	arrived := len(w.got())
	long := longBody("sim", 16<<20+1)
	for encoding, body := range map[string][]byte{"": []byte(long), "gzip": zipped(t, strings.NewReader(long))} {
		r, err := e.send(t.Context(), http.MethodPost, chatPath, body, "content-encoding", encoding)
		if err != nil || r.status != http.StatusRequestEntityTooLarge || r.error.Code != "request_too_large" {
			t.Errorf("a byte too many, %q: status %d, %v: %.300s", encoding, r.status, err, r.body)
		}
	}
	if n := len(w.got()) - arrived; n > 0 {
		t.Errorf("%d requests that are too long reached the worker", n)
	}
	assertKnown(e)
	assertReported(e.gateway, before+4)
}

// retryOfWhole: requests that a worker does not take are served by the other one, with their whole body.
func retryOfWhole(t *testing.T) {
	gone, alive := startBackend(t, nil), startBackend(t, nil)
	_ = gone.Close()
	e := startEdge(t, true, "", simModel("sim", gone, alive))
	before := settled(e)
	for i := range 12 {
		r, err := e.send(t.Context(), http.MethodPost, chatPath, []byte(longBody("sim", 256<<10+i)))
		if err != nil || r.status != http.StatusOK {
			t.Errorf("request %d: status %d, %v: %s", i, r.status, err, r.body)
		}
	}
	retries, err := e.process.Stat(t.Context(), "cluster.pool/sim.upstream_rq_retry_success")
	if err != nil || retries == 0 {
		t.Errorf("%d retries, %v", retries, err)
	}
	assertKnown(e)
	assertReported(e.gateway, before+12)
}

// modelsOfWhole: the decision selects the pool of a request's model, also for long bodies.
func modelsOfWhole(t *testing.T) {
	sim, other := startBackend(t, nil), startBackend(t, nil)
	e := startEdge(t, true, "", simModel("sim", sim)+", "+simModel("other", other))
	before := settled(e)
	assertBodiesArrive(e.gateway, sim, "sim", 100, 1<<20)
	assertBodiesArrive(e.gateway, other, "other", 100, 2<<20)
	assertKnown(e)
	assertReported(e.gateway, before+4)
}

// queueOfWhole: a request waits for its worker longer than Envoy waits for a decision.
func queueOfWhole(t *testing.T) {
	const timeout = time.Second
	g := up(t, "--config", configFile(t, fmt.Sprintf(`
gateway: {decisionTimeout: %s}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 1, args: {blocks: 4096}}]
  router: {busy: {kvUsage: 0.002}, queue: {maxWait: 20s}}
`, timeout)))
	release := g.hold()
	defer release()

	served := make(chan error, 1)
	go func() {
		r, err := g.tryChat(t.Context(), []message{{"user", "who waits, is served"}}, 1)
		if err == nil && r.decision == "" {
			err = errors.New("it was served without a decision")
		}
		served <- err
	}()
	g.waiting(1)
	time.Sleep(2 * timeout) // it is time that is under test
	g.waiting(1)
	release()
	if err := <-served; err != nil {
		t.Error(err)
	}
	g.assertNothingBooked()
}

// wholeStateOfWhole: an Envoy that asks for the state of the world instead of differences gets its configuration, and all changes
// of workers and models.
func wholeStateOfWhole(t *testing.T) {
	a, b, other := startBackend(t, nil), startBackend(t, nil), startBackend(t, nil)
	e := startEdgeWith(t, true, "", simModel("sim", a), func(bootstrap string) string {
		changed := regexp.MustCompile(`"api_type":\s*"DELTA_GRPC"`).ReplaceAllString(bootstrap, `"api_type": "GRPC"`)
		if changed == bootstrap {
			t.Fatalf("no variant of the protocol in %s", bootstrap)
		}
		return changed
	})
	before := settled(e)
	assertBodiesArrive(e.gateway, a, "sim", 100, 2<<20)

	change := func(from, to string) {
		text, err := os.ReadFile(e.file)
		if err == nil {
			err = os.WriteFile(e.file, []byte(strings.Replace(string(text), from, to, 1)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	change(simModel("sim", a), simModel("sim", a, b))
	eventually(t, "Envoy has the new worker", func() error {
		n, err := e.process.Stat(t.Context(), "cluster.pool/sim.membership_healthy")
		if err == nil && n != 2 {
			err = errNotYet
		}
		return err
	})
	sent := 2
	eventually(t, "the new worker is used", func() error {
		sent++
		if r := e.ask("sim", fmt.Sprintf("Question %d", sent)); r.status != http.StatusOK {
			t.Fatalf("status %d: %s", r.status, r.body)
		}
		if len(b.got()) == 0 {
			return errNotYet
		}
		return nil
	})

	change(simModel("sim", a, b), simModel("sim", a, b)+", "+simModel("other", other))
	eventually(t, "the new model is served", func() error {
		r := e.ask("other", "hello")
		if r.status != http.StatusOK {
			return fmt.Errorf("status %d: %s", r.status, r.body)
		}
		return nil
	})
	if n := len(other.got()); n != 1 || slices.ContainsFunc(append(a.got(), b.got()...), func(r received) bool {
		return strings.Contains(r.body, `"other"`)
	}) {
		t.Errorf("the new model's worker got %d requests", n)
	}
	assertKnown(e)
	assertReported(e.gateway, before+sent+1)
}

// bodiesOfSnippet: long bodies reach the workers of an ordinary Envoy unchanged.
func bodiesOfSnippet(t *testing.T) {
	w := startBackend(t, nil)
	o := startOwn(t, "models: ["+simModel("sim", w)+"]\n", nil)
	assertBodiesArrive(o.gateway, w, "sim", 64<<10, 1<<20, 1<<20+1, 16<<20)
	o.assertServed(4)
}

// phasesOfSnippet: a filter that also sends the headers of responses to routers works as one that does not.
func phasesOfSnippet(t *testing.T) {
	w := startBackend(t, nil)
	o := startOwn(t, "models: ["+simModel("sim", w)+"]\n", func(_ *own, config string) string {
		changed := strings.NewReplacer("response_header_mode: SKIP", "response_header_mode: SEND",
			"response_trailer_mode: SKIP", "response_trailer_mode: SEND").Replace(config)
		if strings.Count(changed, "SEND") != strings.Count(config, "SEND")+2 {
			t.Fatalf("the modes of responses are not in %s", config)
		}
		return changed
	})
	assertBodiesArrive(o.gateway, w, "sim", 100, 200, 1<<20)
	for _, counter := range []string{"streams_failed", "failure_mode_allowed", "message_timeouts"} {
		if n, err := o.process.Stat(t.Context(), "http.front.ext_proc.stator."+counter); err != nil || n > 0 {
			t.Errorf("%s is %d, %v", counter, n, err)
		}
	}
	o.assertServed(3)
}
