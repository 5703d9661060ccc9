package admin_test

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/emitters"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/xds"
)

// TestPages runs testdata/*.txt, which show the pages as operators see them. Verbs:
//
//	worker NAME [state=S] [unleased=true] [blocks=N]
//	                            its address is 10.0.0.1:8000 for a, and so on
//	report NAME RUNNING WAITING KV-USAGE
//	event NAME SEQ              the input is text whose blocks the worker stored, one token a byte
//	decide [id=ID] [model=M]    the input is a prompt; decisions are made at 12:00:00 and a second later each
//	missing                     the input is the reason why the process is not ready
//	ready                       the process is ready again
//	METHOD PATH                 print a page; METHOD is GET and so on
func TestPages(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		w := newWorld(t)
		datadriven.RunTest(t, file, w.act)
	})
}

type world struct {
	handler http.Handler
	fleet   *fleet.Fleet
	feed    *feed.Feed
	router  *route.Router
	now     time.Time
	missing error
}

// exampleEngines are a ready engine, one that does not start, and one that the plan does not want.
var exampleEngines = []workeragent.EngineStatus{
	{
		Worker: "node.a", Kind: "vllm", PID: 4711, Epoch: 7, Address: "10.0.0.1:20000", State: fleet.Ready, InState: time.Hour,
		Ranks: []workeragent.RankStatus{{
			State: feed.Stale, Reason: feed.GapGivenUp, Next: 120, Blocks: 900, PastBatches: 120, PastBytes: 30_000,
			Source: &kvsource.Stats{Connected: true, Received: 118, Gaps: 1, Unrecovered: 1, Connects: 2, LastError: "replay: it broke off"},
		}},
	},
	{
		Worker: "node.b", Kind: "vllm", State: fleet.Down, InState: time.Second, Unready: time.Minute, Failures: 3,
		LastError: "exit status 1", LastLine: "out of memory\x1b", SinceFailure: time.Second,
		Remedy: "lower args.max-model-len", LastLines: []string{"loading\x1b", "out of memory"}, Phase: "loading weights, 45 %",
	},
	{Worker: "node.c", Kind: "vllm", State: fleet.Down, Stopped: true, InState: time.Minute},
}

// exampleXDS has an Envoy that has refused clusters, and endpoints that cannot be built.
var exampleXDS = xds.Status{
	Failures: []xds.Failure{{Part: "pool/sim", Error: "endpoints of pool/sim are invalid", Since: exampleTime}},
	Envoys: []xds.EnvoyStatus{{
		Node: "edge-1", Version: "1.40.0", Since: exampleTime, Streams: 1, Types: []xds.TypeStatus{
			{
				Type: "cluster", Pushes: 2, Sent: "7", SentAt: exampleTime.Add(time.Second), Accepted: "6", AcceptedAt: exampleTime,
				Refusal: &xds.Refusal{Version: "7", Message: "unknown \x1b policy", At: exampleTime.Add(time.Second)},
			},
			{Type: "endpoint", Pushes: 1, Sent: "dmn-1", SentAt: exampleTime},
		},
	}},
	Unlisted: 3,
}

var exampleTime = time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC)

type letters struct{}

func (letters) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	dst.Tokens = tokens(dst.Tokens, req.Prompts[0].Text)
	dst.Total = len(dst.Tokens)
	return nil
}

func tokens(ids []uint32, text string) []uint32 {
	for _, c := range []byte(text) {
		ids = append(ids, uint32(c))
	}
	return ids
}

func newWorld(t *testing.T) *world {
	w := &world{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	index := kvindex.New(kvindex.Config{})
	w.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { w.feed.RankGone(id); w.router.RankGone(id) }})
	w.feed = feed.New(feed.Config{}, w.fleet, index)
	w.router = route.New(route.Config{Seed: 1}, w.fleet, index)
	if err := w.router.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}, BlockSize: 4, Cost: cost.Dynamo()}}); err != nil {
		t.Fatal(err)
	}
	receiver := peers.NewReceiver("self", w.fleet, nil)
	receiver.Apply(&peers.Update{Replica: "other", Seq: 3, Ranks: []peers.RankAmount{{Worker: "z", Amount: fleet.Amount{Requests: 2, PrefillTokens: 300}}}}, w.now)
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "stator_example", Help: "An example."}, func() float64 { return 1 }))
	w.handler = admin.Handler(admin.Sources{
		Metrics: reg, Ready: func() error { return w.missing }, Fleet: w.fleet.Snapshot,
		RouterSources: admin.RouterSources{
			Router: w.router, Feed: w.feed, Peers: receiver,
			Coverage: func() kvindex.Coverage { return index.Coverage(w.fleet.Snapshot()) },
			Envoys: func() []accesslog.Envoy {
				return []accesslog.Envoy{{Name: "edge-1", Ends: "stream_end", Followed: 2, ByResponse: 1, ByStreamEnd: 7}}
			},
			Emitters: func() []emitters.State {
				return []emitters.State{{
					Name: "pool", Model: "sim", Address: "tcp://pool:5557", Place: "cluster", Connected: true, Messages: 12,
					RankState: feed.RankState{State: feed.Exact, Blocks: 640, LastEvent: w.now},
				}}
			},
			Promises: func() []drift.WorkerStats {
				return []drift.WorkerStats{{Worker: "a", Promised: 1200, Found: 1150, Windows: 1}}
			},
		},
		XDS:    func() xds.Status { return exampleXDS },
		Drains: discovery.NewDrains(w.fleet, slog.New(slog.DiscardHandler)),
		Config: func() configfile.Status {
			return configfile.Status{
				Path: "/etc/stator/stator.yaml", Digest: "5b1d9c70b2f0a4e1", Applied: w.now, Pending: []string{"prompts.memoryBytes"},
				Err: errors.New("router.policy: nope is not a policy"),
			}
		},
		Agent:   func() []workeragent.EngineStatus { return exampleEngines },
		KV:      exampleStores,
		History: exampleHistory(),
		Plan: func() plan.Plan {
			settings := &plan.Settings{Models: []plan.Model{
				{Name: "sim", Pools: []plan.Configured{{Replicas: 2}, {Role: fleet.Decode, Replicas: 1}}},
			}}
			p, _ := plan.Next(plan.State{}, plan.Observation{Settings: settings, Workers: plan.WorkersOf(w.fleet.Snapshot())})
			return p
		},
	})
	return w
}

// exampleHistory has one step of 15 s, in which 30 requests were picked.
func exampleHistory() *history.History {
	picked := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "stator_extproc_requests_total"}, []string{"outcome"})
	reg := prometheus.NewRegistry()
	reg.MustRegister(picked)
	h := history.New(reg)
	for i := range 2 {
		picked.WithLabelValues("picked").Add(float64(30 * i))
		families, _ := reg.Gather() // a registry of one counter has no errors
		h.Add(exampleTime.Add(time.Duration(i)*history.Step), families)
	}
	return h
}

func (w *world) act(t *testing.T, d *datadriven.TestData) string {
	words := make([]string, len(d.CmdArgs))
	value := map[string]string{}
	for i, a := range d.CmdArgs {
		words[i] = a.Key
		if len(a.Vals) > 0 {
			value[a.Key] = a.Vals[0]
		}
	}
	switch d.Cmd {
	case "worker":
		worker := fleet.Worker{Name: words[0], Model: "sim", Address: fmt.Sprintf("10.0.0.%d:8000", words[0][0]-'a'+1), Ranks: 1,
			Engine: "vllm", Epoch: 7, Leased: true, KVEvents: "tcp://10.0.0.1:5557", State: fleet.Ready, BlockSize: 4}
		if value["state"] == "down" {
			worker.State = fleet.Down
		}
		if value["unleased"] != "" {
			worker.Unleased = w.now
		}
		worker.Taints = fleet.Taints(strings.ReplaceAll(value["taints"], "/", ","))
		worker.Adapters = fleet.Adapters(strings.ReplaceAll(value["adapters"], "/", "\n"))
		if value["blocks"] != "" {
			worker.Blocks, _ = strconv.Atoi(value["blocks"])
		}
		if _, err := w.fleet.Put(worker); err != nil {
			t.Fatal(err)
		}
	case "report":
		var r fleet.Report
		if _, err := fmt.Sscan(strings.Join(words[1:], " "), &r.Running, &r.Waiting, &r.KVUsage); err != nil {
			t.Fatal(err)
		}
		rank, _ := w.fleet.Snapshot().Rank(words[0], 0)
		rank.Load.SetReport(r, rank.Worker)
	case "event":
		w.event(t, words, strings.TrimSpace(d.Input))
	case "decide":
		w.decide(value, strings.TrimSpace(d.Input))
	case "ready":
		w.missing = nil
	case "missing":
		w.missing = errors.New(strings.TrimSpace(d.Input))
	default:
		return w.page(d.Cmd, words, value)
	}
	return ""
}

func (w *world) event(t *testing.T, words []string, text string) {
	var seq uint64
	if _, err := fmt.Sscan(words[1], &seq); err != nil {
		t.Fatal(err)
	}
	blocks := blockhash.Append(nil, tokens(nil, text), 4, blockhash.Seed("", ""))
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 4, Blocks: blocks}
	for i := range blocks {
		e.Hashes = append(e.Hashes, kvevent.EngineHash(i+1))
	}
	w.feed.Apply(&feed.Message{Worker: words[0], Epoch: 7, Seq: seq, Batch: &kvevent.Batch{Events: []kvevent.Event{e}}}, w.now)
}

func (w *world) decide(value map[string]string, text string) {
	model := "sim"
	if value["model"] != "" {
		model = value["model"]
	}
	w.router.Decide(&request.Request{ID: value["id"], Endpoint: prompt.Completions, Known: true,
		Body: fmt.Appendf(nil, `{"model": %q, "prompt": %q}`, model, text)}, w.now)
	w.now = w.now.Add(time.Second)
}

// page requests a path. datadriven splits the query of a path at "=", so it is joined again.
func (w *world) page(method string, words []string, value map[string]string) string {
	path := words[0]
	if v := value[path]; v != "" {
		path += "=" + v
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, httptest.NewRequest(method, path, nil))
	return fmt.Sprintf("%d %s\n%s", rec.Code, rec.Header().Get("Content-Type"), rec.Body)
}

// TestPartsWithoutPages serves a process without parts: it has the pages of every process alone.
func TestPartsWithoutPages(t *testing.T) {
	h := admin.Handler(admin.Sources{})
	for path, want := range map[string]int{
		"/": 200, "/console/": 200, "/healthz": 200, "/readyz": 200, "/debug/pprof/": 200,
		"/metrics": 404, "/debug/fleet": 404, "/debug/plan": 404, "/debug/decisions": 404, "/debug/decisions/latest": 404, "/debug/feed": 404, "/debug/queue": 404,
		"/debug/history": 404,
		"/debug/agent":   404, "/debug/xds": 404, "/debug/kv": 404, "/kv/flush": 404,
	} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
		if rec.Code != want {
			t.Errorf("%s: %d, want %d", path, rec.Code, want)
		}
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
	if want := []string{"/console/", "/healthz", "/readyz", "/debug/pprof/"}; !slices.Equal(paths(rec.Body.String()), want) {
		t.Errorf("the index is %q", rec.Body)
	}
}

// paths returns the paths in the index of pages.
func paths(index string) (all []string) {
	for line := range strings.Lines(index) {
		if path := strings.Fields(line)[0]; strings.HasPrefix(path, "/") {
			all = append(all, path)
		}
	}
	return all
}

// TestAdminDocs compares docs/admin.md with the pages. Run it with -rewrite to write the file.
func TestAdminDocs(t *testing.T) {
	w := newWorld(t)
	for _, step := range []string{"worker a", "report a 3 1 0.25", "event a 0", "decide id=5b1d9c70b2f0a4e1"} {
		cmd, args, _ := strings.Cut(step, " ")
		d := &datadriven.TestData{Cmd: cmd, Input: "one two three four"}
		for _, word := range strings.Fields(args) {
			key, value, found := strings.Cut(word, "=")
			arg := datadriven.CmdArg{Key: key}
			if found {
				arg.Vals = []string{value}
			}
			d.CmdArgs = append(d.CmdArgs, arg)
		}
		w.act(t, d)
	}

	var b strings.Builder
	b.WriteString("# Admin pages\n\nEvery process serves these pages on its admin port (`--admin-address`), as far as it runs the part that a page is\n" +
		"about. A page is text for people, or JSON with `?format=json`. JSON keys are stable. Browsers may not use those with POST.\n" +
		"With `--admin-token-file`, which is needed beyond loopback, all pages except `/healthz`, `/readyz` and the files of the console need `Authorization: Bearer TOKEN`.\n\n| Page | Shows |\n|---|---|\n")
	for _, p := range admin.Pages() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", p.Path, p.Shows)
	}
	for _, p := range admin.Pages() {
		if !p.JSON {
			continue
		}
		rec := httptest.NewRecorder()
		path := strings.Replace(p.Path, "{id}", "latest", 1)
		w.handler.ServeHTTP(rec, httptest.NewRequest("GET", path+"?format=json", nil))
		if rec.Code != http.StatusOK {
			t.Fatalf("%s: %d", path, rec.Code)
		}
		fmt.Fprintf(&b, "\n## %s\n\nShows %s.\n\n```json\n%s```\n", p.Path, p.Shows, rec.Body)
	}

	const file = "../docs/admin.md"
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != b.String() {
		t.Errorf("%s differs from the pages (%v): run go test ./admin -args -rewrite", file, err)
	}
}
