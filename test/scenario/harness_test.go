package scenario

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// binary is the program under test, built with the race detector, except for measurements.
var binary string

// replicasVariable is the variable that turns TestReplicasUnderLoad on.
const replicasVariable = "STATOR_TEST_REPLICAS"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stator-scenario-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "bin", "stator")
	args := []string{"build", "-race", "-ldflags=-s -w", "-o", binary, "../../cmd/stator"}
	if os.Getenv(replicasVariable) != "" || os.Getenv(shadowVariable) != "" {
		args = slices.Delete(args, 1, 2) // the race detector would be most of the CPU time
	}
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program under test: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// envoyPath is the Envoy that `make test` installs; STATOR_TEST_ENVOY names another.
func envoyPath(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("STATOR_TEST_ENVOY"); path != "" {
		return path
	}
	found, err := filepath.Glob("../../.venv/lib/python*/site-packages/envoy/_bin/envoy")
	if err != nil || len(found) == 0 {
		t.Fatal("there is no Envoy: run `make test`, which installs one")
	}
	path, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// command is a running process of the program.
type command struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *logBuffer
	done chan struct{}
	err  error // valid once done is closed
}

// start runs the program. What it writes is shown when the test fails.
func start(t *testing.T, args ...string) *command {
	t.Helper()
	return startCommand(t, exec.Command(binary, args...))
}

// startIn is start with a folder for temporary files.
func startIn(t *testing.T, tmp string, args ...string) *command {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	return startCommand(t, cmd)
}

// startCommand runs any program, with the environment of this process unless it has its own. What it writes is shown when the
// test fails.
func startCommand(t *testing.T, cmd *exec.Cmd) *command {
	t.Helper()
	c := &command{t: t, cmd: cmd, out: &logBuffer{}, done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.Env = append(c.cmd.Environ(), "GORACE=halt_on_error=1 atexit_sleep_ms=20")
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		c.stop()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", strings.Join(cmd.Args, " "), c.out)
		}
		if strings.Contains(c.out.String(), "DATA RACE") {
			t.Errorf("%s has a data race", strings.Join(cmd.Args, " "))
		}
	})
	return c
}

// stop asks the process to end and waits until it has.
func (c *command) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(30 * time.Second):
		c.t.Errorf("%s did not end within 30 s of SIGTERM", c.cmd.Args)
		_ = c.cmd.Process.Signal(syscall.SIGQUIT) // where does it hang?
		time.Sleep(time.Second)
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

func (c *command) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// logBuffer collects what processes write.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// gateway is a running fleet with Envoy in front.
type gateway struct {
	t     *testing.T
	url   string
	admin string
	up    *command
	http  *http.Client // for requests; nil for the one that all share
	pages *http.Client // for the admin port; nil for the one that all share
}

// do sends a request with the client of the gateway.
func (g *gateway) do(req *http.Request) (*http.Response, error) {
	return cmp.Or(g.http, client).Do(req)
}

// up runs `stator up` and returns when it serves.
func up(t *testing.T, args ...string) *gateway {
	t.Helper()
	return upIn(t, os.TempDir(), args...)
}

// upIn is up with a folder for temporary files.
func upIn(t *testing.T, tmp string, args ...string) *gateway {
	t.Helper()
	g := &gateway{t: t, admin: freeAddress(t)}
	http := freeAddress(t)
	g.url = "http://" + http
	g.up = startIn(t, tmp, append([]string{"up", "--listen-address", http, "--admin-address", g.admin, "--envoy", envoyPath(t)}, args...)...)
	g.await()
	return g
}

func (g *gateway) await() {
	g.t.Helper()
	eventually(g.t, "the gateway is ready", func() error {
		select {
		case <-g.up.done:
			g.t.Fatalf("it ended: %v", g.up.err)
		default:
		}
		if _, err := get("http://" + g.admin + "/readyz"); err != nil {
			return err
		}
		for _, r := range g.fleet() {
			if r.State != "ready" {
				return fmt.Errorf("%s is %s", r.Worker, r.State)
			}
		}
		return nil
	})
}

// quiet is how long something must have stayed as it is before a test takes it as settled.
const quiet = 500 * time.Millisecond

// settles waits until read has returned the same, without an error, for a while.
func settles[T comparable](t *testing.T, what string, read func() (T, error)) {
	t.Helper()
	var last T
	var since time.Time // zero before the first value
	eventually(t, what, func() error {
		now, err := read()
		switch {
		case err != nil:
			since = time.Time{}
		case since.IsZero() || now != last:
			last, since = now, time.Now()
			err = fmt.Errorf("it is %v now", now)
		case time.Since(since) < quiet:
			err = fmt.Errorf("it is %v only since %s", now, time.Since(since))
		}
		return err
	})
}

// awaitPool waits until Envoy has so many healthy workers of the model sim. Until then it cannot serve a request where it is picked.
func (g *gateway) awaitPool(n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("Envoy has %d workers", n), func() error {
		page, err := g.read("/metrics/envoy")
		if got := sample(page, "envoy_cluster_membership_healthy", `envoy_cluster_name="pool/sim"`); err == nil && got != float64(n) {
			err = fmt.Errorf("it has %g", got)
		}
		return err
	})
}

// patience bounds every wait: long enough for a busy machine under the race detector.
const patience = 60 * time.Second

// eventually waits until ok has no error. It polls every 20 ms at first, and every 100 ms later: many polls read large pages.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	for began := time.Now(); ; {
		err := ok()
		if err == nil {
			return
		}
		waited := time.Since(began)
		if waited > patience {
			t.Fatalf("not within %s: %s: %v", patience, what, err)
		}
		time.Sleep(min(20*time.Millisecond+waited/20, 100*time.Millisecond))
	}
}

var client = &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func get(url string) (string, error) { return getBy(client, url) }

// getBy is get with a client.
func getBy(c *http.Client, url string) (string, error) {
	resp, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// reply is a response as a client sees it.
type reply struct {
	status   int
	header   http.Header
	body     string
	decision string
	usage    struct {
		PromptTokens int `json:"prompt_tokens"`
		Details      struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	text  string
	error struct{ Message, Type, Param, Code string }
}

// send makes a request and reads its response; headers come in pairs.
func (g *gateway) send(ctx context.Context, method, path string, body []byte, headers ...string) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, g.url+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("content-type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := g.do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	r := reply{status: resp.StatusCode, header: resp.Header, body: string(raw), decision: resp.Header.Get("x-stator-decision")}
	r.read(raw)
	return r, err
}

func (r *reply) read(raw []byte) {
	var v struct {
		Usage   json.RawMessage
		Choices []struct {
			Message struct{ Content string }
			Text    string
		}
		Error json.RawMessage
	}
	if json.Unmarshal(raw, &v) != nil {
		return
	}
	_ = json.Unmarshal(v.Usage, &r.usage)
	_ = json.Unmarshal(v.Error, &r.error)
	if len(v.Choices) > 0 {
		r.text = v.Choices[0].Message.Content + v.Choices[0].Text
	}
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chat sends a chat that must succeed.
func (g *gateway) chat(messages []message, maxTokens int) reply {
	g.t.Helper()
	r, err := g.tryChat(g.t.Context(), messages, maxTokens)
	if err != nil {
		g.t.Fatal(err)
	}
	return r
}

func (g *gateway) tryChat(ctx context.Context, messages []message, maxTokens int, headers ...string) (reply, error) {
	body, err := json.Marshal(map[string]any{"model": "sim", "messages": messages, "max_tokens": maxTokens})
	if err != nil {
		return reply{}, err
	}
	r, err := g.send(ctx, http.MethodPost, "/v1/chat/completions", body, headers...)
	if err == nil && r.status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", r.status, r.body)
	}
	return r, err
}

// decision is the router's record of one request.
type decision struct {
	ID           string
	Worker       string
	Address      string
	PromptTokens int `json:"prompt_tokens"`
	BlockSize    int `json:"block_size"`
	Blocks       int
	Overlap      int `json:"overlap_blocks"`
	Pull         struct {
		Worker string
		Tokens int
	}
	Candidates []struct {
		Picked     bool
		Held       struct{ Device, Host, Disk, External int } `json:"overlap_blocks"`
		NodeBlocks int                                        `json:"node_blocks"`
		PeerBlocks int                                        `json:"peer_blocks"`
	}
}

// mostHeld returns the most blocks of the prompt that any worker holds, by what the router knew.
func (d *decision) mostHeld() (most int) {
	for _, c := range d.Candidates {
		most = max(most, c.Held.Device+c.Held.Host+c.Held.Disk+c.Held.External)
	}
	return most
}

func (g *gateway) decision(id string) decision {
	g.t.Helper()
	var d decision
	g.page("/debug/decisions/"+id, &d)
	return d
}

// read reads the text of one of the admin port's pages.
func (g *gateway) read(path string) (string, error) {
	return getBy(cmp.Or(g.pages, client), "http://"+g.admin+path)
}

// page reads one of the admin port's pages.
func (g *gateway) page(path string, v any) {
	g.t.Helper()
	text, err := g.read(path + "?format=json")
	if err == nil {
		err = json.Unmarshal([]byte(text), v)
	}
	if err != nil {
		g.t.Fatalf("read %s: %v", path, err)
	}
}

type rank struct {
	Worker, State, Address string
	Asleep                 bool
	Booked                 int `json:"booked_requests"`
	Prefill                int `json:"booked_prefill_tokens"`
	Blocks                 int `json:"booked_decode_blocks"`
	Running                int `json:"reported_running"`
	Waiting                int `json:"reported_waiting"`
}

func (g *gateway) fleet() []rank {
	g.t.Helper()
	var out struct{ Ranks []rank }
	g.page("/debug/fleet", &out)
	return out.Ranks
}

// metricsPage reads the page once, because tests poll metrics.
var metricsPage = sync.OnceValues(func() ([]byte, error) { return os.ReadFile("../../docs/metrics.md") })

// metric sums the samples of a metric whose labels contain all of labels. All metrics must be documented.
func (g *gateway) metric(name string, labels ...string) float64 {
	g.t.Helper()
	text, err := g.read("/metrics")
	if err != nil {
		g.t.Fatal(err)
	}
	page, err := metricsPage()
	if err != nil {
		g.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "# TYPE stator_")
		known, _, _ := strings.Cut(rest, " ")
		if ok && !strings.Contains(string(page), "`stator_"+known+"`") {
			g.t.Errorf("docs/metrics.md lacks stator_%s: have metricParts in cmd/stator make the part that registers it", known)
		}
	}
	return sample(text, name, labels...)
}

func sample(text, name string, labels ...string) (sum float64) {
lines:
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue lines
			}
		}
		fields := strings.Fields(rest)
		v, _ := strconv.ParseFloat(fields[len(fields)-1], 64)
		sum += v
	}
	return sum
}

// served reads how finished requests were served.
func (g *gateway) served(outcome string) int {
	g.t.Helper()
	return int(g.metric("stator_accesslog_requests_total", `outcome="`+outcome+`"`))
}

// assertServed waits until Envoy has reported all requests, then demands that none was served
// by anyone but the worker picked for it, and that nothing is booked any more.
func (g *gateway) assertServed(asPicked int) {
	g.t.Helper()
	eventually(g.t, "all requests are reported", func() error {
		if n := g.served("as_picked"); n < asPicked {
			return fmt.Errorf("%d of %d as picked, %d retried, %d misdirected, %d unpicked, %d unserved, %d answered", n, asPicked,
				g.served("retried"), g.served("misdirected"), g.served("unpicked"), g.served("unserved"), g.served("answered"))
		}
		return nil
	})
	for _, bad := range []string{"misdirected", "unpicked", "unserved"} {
		if n := g.served(bad); n != 0 {
			g.t.Errorf("%d requests were %s", n, bad)
		}
	}
	g.assertNothingBooked()
}

func (g *gateway) assertNothingBooked() {
	g.t.Helper()
	eventually(g.t, "no booking is left", func() error {
		for _, r := range g.fleet() {
			if r.Booked != 0 || r.Prefill != 0 || r.Blocks != 0 {
				return fmt.Errorf("%+v", r)
			}
		}
		if n := g.metric("stator_route_bookings"); n != 0 {
			return fmt.Errorf("%g bookings", n)
		}
		return nil
	})
}

// awaitIdle waits until no booking is left, and no engine has reported a request that runs or waits: both count as load.
func (g *gateway) awaitIdle() {
	g.t.Helper()
	g.assertNothingBooked()
	eventually(g.t, "the engines report that they are idle", func() error {
		for _, r := range g.fleet() {
			if r.Running+r.Waiting != 0 {
				return fmt.Errorf("%+v", r)
			}
		}
		return nil
	})
}

// processes lists the children of a process, by name.
func children(t *testing.T, pid int) map[int]string {
	t.Helper()
	out := map[int]string{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		m := statRE.FindSubmatch(raw)
		if m == nil || string(m[3]) != strconv.Itoa(pid) || string(m[2]) == "Z" {
			continue
		}
		id, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		out[id] = string(m[1])
	}
	return out
}

var statRE = regexp.MustCompile(`\((.*)\) (\S) (\d+) `)

// portOwner finds the child of pid that listens on address, by its command line.
func childWith(t *testing.T, pid int, argument string) int {
	t.Helper()
	for id := range children(t, pid) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		if err == nil && strings.Contains(string(raw), argument) {
			return id
		}
	}
	t.Fatalf("no child of %d has %q in its command line", pid, argument)
	return 0
}

var errNotYet = errors.New("not yet")
