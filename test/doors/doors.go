// Package doors builds a router with the settings, models and workers of a scenario file, for the tests of both doors: Envoy's
// messages, and the relay. The scenarios are in extproc/stream/testdata/exchange.
package doors

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/internal/route/sessionid"
	"github.com/stator-project/stator/test/testkit"
)

// World is a router over a small fleet. Verbs change it:
//
//	settings [body=BYTES] [pass=PATH] [affinity=HEADER] [hints=off|nvext|headers] [from=everyone] [role=HEADER:VALUE]
//	         [tenant=HEADER]
//	model NAME [pool=NAME] [policy=P] [limit=TOKENS] [adapter]
//	                                                     the first is the default one
//	worker NAME [model=POOL] [ranks=N] [state=S]         a, b, c are 10.0.0.1:8000, .2, .3
type World struct {
	Fleet    *fleet.Fleet
	Router   *route.Router
	Requests *exchange.Service
	Registry *prometheus.Registry
	Log      testkit.Log
	Logger   *slog.Logger
	Settings exchange.Settings
	models   map[string]*serving.Config
}

// Start is the time at which a world begins.
var Start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// New returns a world without models and workers. relay is the address of its relay, or empty, and tracer exports its spans, or is nil.
func New(relay string, tracer *spans.Tracer) *World {
	w := &World{
		Registry: prometheus.NewRegistry(), models: map[string]*serving.Config{},
		Settings: exchange.Settings{
			BodyBytes: 1 << 20, BodiesBytes: 4 << 20, Sessions: sessionid.ParseAll(sessionid.Defaults()), PassPaths: []string{"/*"},
		},
	}
	index := kvindex.New(kvindex.Config{})
	w.Fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { index.Drop(id); w.Router.RankGone(id) }})
	w.Router = route.New(route.Config{Seed: 1, Relayed: relay != ""}, w.Fleet, index)
	w.Logger = slog.New(slog.NewTextHandler(&w.Log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.Requests = exchange.New(w.Settings, exchange.Config{
		Prefills: prefill.New(prefill.Config{Router: w.Router, Log: w.Logger, Metrics: w.Registry}),
		Router:   w.Router, Started: Start, TenantKey: FixedKey, Log: w.Logger, Metrics: w.Registry, Relay: relay,
		Tracer: tracer,
	})
	return w
}

// FixedKey returns the key of tenants' salts.
func FixedKey() []byte { return []byte("a key of tests") }

// Act carries a verb out, and reports whether it knows it.
func (w *World) Act(t *testing.T, d *datadriven.TestData) bool {
	switch d.Cmd {
	case "settings":
		w.configure(t, d)
	case "model":
		w.model(t, d)
	case "worker":
		w.worker(t, d)
	default:
		return false
	}
	return true
}

// Path returns the path of the verb "request", its second argument. datadriven takes the "=" of a query for its own.
func Path(d *datadriven.TestData) string {
	path := d.CmdArgs[1]
	if len(path.Vals) > 0 {
		return path.Key + "=" + path.Vals[0]
	}
	return path.Key
}

// Body returns the text of the verb "body": the whole body, repeat=N times; with go as a Go string has it.
func Body(t *testing.T, d *datadriven.TestData) []byte {
	text := strings.TrimSuffix(d.Input, "\n")
	if d.HasArg("go") {
		var err error
		text, err = strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	return []byte(strings.Repeat(text, Number(t, d, "repeat", 1)))
}

// Value returns the value of a command's argument, or absent.
func Value(d *datadriven.TestData, key, absent string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return absent
}

// Number returns the number of a command's argument, or absent.
func Number(t *testing.T, d *datadriven.TestData, key string, absent int) int {
	n, err := strconv.Atoi(Value(d, key, strconv.Itoa(absent)))
	if err != nil {
		d.Fatalf(t, "%s: %v", key, err)
	}
	return n
}

func (w *World) configure(t *testing.T, d *datadriven.TestData) {
	w.Settings.BodyBytes = int64(Number(t, d, "body", 1<<20))
	w.Settings.PassPaths = []string{Value(d, "pass", "/*")}
	w.Settings.Hints = exchange.Hints(Value(d, "hints", ""))
	w.Settings.TrustEveryone = Value(d, "from", "") == "everyone"
	w.Settings.TenantHeader = Value(d, "tenant", "")
	header, role, _ := strings.Cut(Value(d, "role", ""), ":")
	w.Settings.RoleHeader = header
	w.Settings.TrustedRoles = []string{role}
	w.Requests.Reload(w.Settings)
}

func (w *World) model(t *testing.T, d *datadriven.TestData) {
	name := d.CmdArgs[0].Key
	pool := Value(d, "pool", name)
	limit := Number(t, d, "limit", 0)
	w.models[name] = &serving.Config{
		Prompt: Letters{limit}, Pool: pool, BlockSize: 4, Policy: Value(d, "policy", "kv"), ContextLength: limit,
	}
	if d.HasArg("adapter") {
		w.models[name].Adapter = name
		w.models[name].Parent = pool
		w.models[name].Found = true
	}
	if err := w.Router.SetModels(w.models); err != nil {
		t.Fatal(err)
	}
	if w.Settings.DefaultModel == "" {
		w.Settings.DefaultModel = name
	}
	w.Settings.SeveralPools = w.Settings.SeveralPools || pool != w.Settings.DefaultModel
	w.Requests.Reload(w.Settings)
}

func (w *World) worker(t *testing.T, d *datadriven.TestData) {
	name := d.CmdArgs[0].Key
	worker := fleet.Worker{
		Name: name, Model: Value(d, "model", "sim"), Address: fmt.Sprintf("10.0.0.%d:8000", name[0]-'a'+1),
		Ranks: Number(t, d, "ranks", 1), State: fleet.Ready,
	}
	for s := fleet.Starting; s <= fleet.Down; s++ {
		if s.String() == Value(d, "state", "") {
			worker.State = s
		}
	}
	if _, err := w.Fleet.Put(worker); err != nil {
		t.Fatal(err)
	}
}

// Letters is a model whose tokens are the bytes of a prompt, of which it takes at most Limit; 0 is any number.
type Letters struct{ Limit int }

// Prepare makes a token of each byte of the texts.
func (m Letters) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	for i := range req.Messages {
		dst.Tokens = appendTokens(dst.Tokens, req.Messages[i].Content)
	}
	for i := range req.Prompts {
		dst.Tokens = appendTokens(dst.Tokens, req.Prompts[i].Text)
	}
	dst.Total = len(dst.Tokens)
	if m.Limit > 0 && dst.Total > m.Limit {
		return openai.Invalid("messages", "context_length_exceeded",
			"This model's maximum context length is %d tokens. However, your request has %d input tokens.", m.Limit, dst.Total)
	}
	return nil
}

func appendTokens(ids []uint32, text string) []uint32 {
	for i := range len(text) {
		ids = append(ids, uint32(text[i]))
	}
	return ids
}
