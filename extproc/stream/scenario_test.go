package stream

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/testkit"
)

// TestExchange runs testdata/exchange/*.txt: Envoy's messages and the replies. Each byte of a chat's contents or
// of a prompt is a token, and a block has four. Verbs:
//
//	settings [body=BYTES] [pass=PATH] [affinity=HEADER] [hints=off|nvext|headers] [from=everyone] [role=HEADER:VALUE]
//	         [tenant=HEADER]
//	model NAME [pool=NAME] [policy=P] [limit=TOKENS] [adapter]
//	                                                     the first is the default one
//	worker NAME [model=POOL] [ranks=N] [state=S]         a, b, c are 10.0.0.1:8000, .2, .3
//	request METHOD PATH [end] [trusted] [ours] [HEADER=VALUE]...
//	                                                     headers; end: there is no body; trusted: on the listener of
//	                                                     trusted clients; ours: Envoy has its configuration from xds
//	body [repeat=N] [go]                                 text: the whole body, N times; go: as a Go string has it
//	end                                                  the access-log entry ends the booking
//
// A line in brackets shows the phase of the exchange and the number of bookings.
func TestExchange(t *testing.T) {
	datadriven.Walk(t, "testdata/exchange", func(t *testing.T, file string) {
		w := newWorld(t)
		datadriven.RunTest(t, file, w.act)
	})
}

// world is a server with a real router over a small fleet.
type world struct {
	fleet    *fleet.Fleet
	router   *route.Router
	requests *exchange.Service
	server   *Server
	registry *prometheus.Registry
	log      testkit.Log
	settings exchange.Settings
	models   map[string]*serving.Config
	door     *door
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newWorld(t testing.TB) *world {
	w := &world{
		registry: prometheus.NewRegistry(), models: map[string]*serving.Config{},
		settings: exchange.Settings{
			BodyBytes: 1 << 20, BodiesBytes: 4 << 20, SessionHeader: "x-session-id", PassPaths: []string{"/*"},
		},
	}
	index := kvindex.New(kvindex.Config{})
	w.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { index.Drop(id); w.router.RankGone(id) }})
	w.router = route.New(route.Config{Seed: 1}, w.fleet, index)
	log := slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.requests = exchange.New(w.settings, exchange.Config{
		Prefills: prefill.New(prefill.Config{Router: w.router, Log: log, Metrics: w.registry}),
		Router:   w.router, Started: start, TenantKey: fixedKey, Log: log, Metrics: w.registry,
	})
	w.server = NewServer(w.requests, log, w.registry)
	return w
}

// letters is a model whose tokens are the bytes of a prompt.
type letters struct{ limit int }

func (m letters) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	for i := range req.Messages {
		dst.Tokens = appendTokens(dst.Tokens, req.Messages[i].Content)
	}
	for i := range req.Prompts {
		dst.Tokens = appendTokens(dst.Tokens, req.Prompts[i].Text)
	}
	dst.Total = len(dst.Tokens)
	if m.limit > 0 && dst.Total > m.limit {
		return openai.Invalid("messages", "context_length_exceeded",
			"This model's maximum context length is %d tokens. However, your request has %d input tokens.", m.limit, dst.Total)
	}
	return nil
}

func appendTokens(ids []uint32, text string) []uint32 {
	for i := range len(text) {
		ids = append(ids, uint32(text[i]))
	}
	return ids
}

func (w *world) act(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "settings":
		w.configure(t, d)
	case "model":
		w.model(t, d)
	case "worker":
		w.worker(t, d)
	case "request":
		return w.request(d)
	case "body":
		return w.body(t, d)
	case "end":
		return fmt.Sprintf("%v\n%s", w.router.End(w.door.Booking(), start), w.state())
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	return ""
}

// value returns the value of a command's argument, or absent.
func value(d *datadriven.TestData, key, absent string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return absent
}

func number(t *testing.T, d *datadriven.TestData, key string, absent int) int {
	n, err := strconv.Atoi(value(d, key, strconv.Itoa(absent)))
	if err != nil {
		d.Fatalf(t, "%s: %v", key, err)
	}
	return n
}

func (w *world) configure(t *testing.T, d *datadriven.TestData) {
	w.settings.BodyBytes = int64(number(t, d, "body", 1<<20))
	w.settings.PassPaths = []string{value(d, "pass", "/*")}
	w.settings.SessionHeader = value(d, "affinity", "x-session-id")
	w.settings.Hints = exchange.Hints(value(d, "hints", ""))
	w.settings.TrustEveryone = value(d, "from", "") == "everyone"
	w.settings.TenantHeader = value(d, "tenant", "")
	header, role, _ := strings.Cut(value(d, "role", ""), ":")
	w.settings.RoleHeader, w.settings.TrustedRoles = header, []string{role}
	w.requests.Reload(w.settings)
}

func (w *world) model(t *testing.T, d *datadriven.TestData) {
	name := d.CmdArgs[0].Key
	pool := value(d, "pool", name)
	w.models[name] = &serving.Config{
		Prompt: letters{number(t, d, "limit", 0)}, Pool: pool, BlockSize: 4, Policy: value(d, "policy", "kv"), ContextLength: number(t, d, "limit", 0),
	}
	if d.HasArg("adapter") {
		w.models[name].Adapter, w.models[name].Parent, w.models[name].Found = name, pool, true
	}
	if err := w.router.SetModels(w.models); err != nil {
		t.Fatal(err)
	}
	if w.settings.DefaultModel == "" {
		w.settings.DefaultModel = name
	}
	w.settings.SeveralPools = w.settings.SeveralPools || pool != w.settings.DefaultModel
	w.requests.Reload(w.settings)
}

func (w *world) worker(t *testing.T, d *datadriven.TestData) {
	name := d.CmdArgs[0].Key
	worker := fleet.Worker{
		Name: name, Model: value(d, "model", "sim"), Address: fmt.Sprintf("10.0.0.%d:8000", name[0]-'a'+1),
		Ranks: number(t, d, "ranks", 1), State: fleet.Ready,
	}
	for s := fleet.Starting; s <= fleet.Down; s++ {
		if s.String() == value(d, "state", "") {
			worker.State = s
		}
	}
	if _, err := w.fleet.Put(worker); err != nil {
		t.Fatal(err)
	}
}

func (w *world) request(d *datadriven.TestData) string {
	headers := []string{":method", d.CmdArgs[0].Key, ":path", d.CmdArgs[1].Key}
	if v := d.CmdArgs[1].Vals; len(v) > 0 { // datadriven takes the "=" of a query for its own
		headers[3] += "=" + v[0]
	}
	for _, a := range d.CmdArgs[2:] {
		if len(a.Vals) > 0 && !strings.HasPrefix(a.Key, "subset") {
			headers = append(headers, a.Key, a.Vals[0])
		}
	}
	ours := d.HasArg("ours") || d.HasArg("snippet")
	w.door = &door{srv: w.server, foreign: !ours, Exchange: w.requests.Begin(exchange.Origin{
		Source: "envoy-a", TrustedListener: d.HasArg("trusted"), Configured: d.HasArg("ours"), ReadsMetadata: ours,
	})}
	message := headersMessage(d.HasArg("end"), headers...)
	message.MetadataContext = subset(d)
	m := w.read(message)
	return w.reply(exchange.WantHeaders, w.door.onHeaders(m, start))
}

// read decodes a message of Envoy as the server does.
func (w *world) read(m *extprocv3.ProcessingRequest) *messages.Request {
	raw, err := proto.Marshal(m)
	r := &messages.Request{Names: headerNames(&w.settings)}
	if err == nil {
		err = r.Read(raw)
	}
	if err != nil {
		panic(err)
	}
	return r
}

// subset returns the metadata of a proxy that restricts a request to some endpoints: the arguments subset, a list, and subset-text, one
// text with commas.
func subset(d *datadriven.TestData) *corev3.Metadata {
	var value *structpb.Value
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "subset":
			list := &structpb.ListValue{}
			for _, v := range a.Vals {
				list.Values = append(list.Values, structpb.NewStringValue(v))
			}
			value = structpb.NewListValue(list)
		case "subset-text":
			value = structpb.NewStringValue(strings.Join(a.Vals, ", "))
		}
	}
	if value == nil {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"envoy.lb.subset_hint": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-subset": value}},
	}}
}

func headersMessage(end bool, pairs ...string) *extprocv3.ProcessingRequest {
	m := &extprocv3.HttpHeaders{EndOfStream: end, Headers: &corev3.HeaderMap{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers.Headers = append(m.Headers.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: m}}
}

func (w *world) body(t *testing.T, d *datadriven.TestData) string {
	text := strings.TrimSuffix(d.Input, "\n")
	if d.HasArg("go") {
		var err error
		if text, err = strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`); err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	body := []byte(strings.Repeat(text, number(t, d, "repeat", 1)))
	return w.reply(exchange.WantBody, w.door.OnBody(body, true, start))
}

// reply prints the reply to a message of that phase.
func (w *world) reply(answered exchange.Phase, r exchange.Reply) string {
	if r.Answer != nil && !slices.Contains(exchange.Outcomes(), r.Answer.Detail) {
		return "the detail " + r.Answer.Detail + " is none of the outcomes"
	}
	return printResponse(sent(toMessage(r, answered, w.door.foreign))) + w.state()
}

func (w *world) state() string {
	next := [...]string{"wants headers", "wants body", "follows", "finished"}[w.door.Phase()]
	return fmt.Sprintf("[%s; %d booked]\n", next, w.router.Bookings())
}

// sent decodes a message of the server as Envoy does.
func sent(m any) *extprocv3.ProcessingResponse {
	raw, err := messages.Codec().Marshal(m)
	resp := &extprocv3.ProcessingResponse{}
	if err == nil {
		err = proto.Unmarshal(raw.Materialize(), resp)
	}
	if err != nil {
		panic(err)
	}
	return resp
}

// printResponse prints every field of a response that is set.
func printResponse(m *extprocv3.ProcessingResponse) string {
	var b strings.Builder
	switch r := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		fmt.Fprintf(&b, "answer %d %s\n", r.ImmediateResponse.GetStatus().GetCode(), r.ImmediateResponse.GetDetails())
		printMutation(&b, r.ImmediateResponse.GetHeaders())
		fmt.Fprintf(&b, "  body %s\n", shorten(r.ImmediateResponse.GetBody()))
	case *extprocv3.ProcessingResponse_RequestHeaders:
		b.WriteString("headers: continue\n")
		printCommon(&b, r.RequestHeaders.GetResponse())
	case *extprocv3.ProcessingResponse_RequestBody:
		b.WriteString("body: continue\n")
		printCommon(&b, r.RequestBody.GetResponse())
	}
	printMetadata(&b, m.GetDynamicMetadata())
	return b.String()
}

func printCommon(b *strings.Builder, c *extprocv3.CommonResponse) {
	printMutation(b, c.GetHeaderMutation())
	if c.GetClearRouteCache() {
		b.WriteString("  choose the route again\n")
	}
	if m := c.GetBodyMutation(); m != nil {
		fmt.Fprintf(b, "  body %s\n", shorten(m.GetBody()))
	}
}

func printMutation(b *strings.Builder, m *extprocv3.HeaderMutation) {
	for _, h := range m.GetSetHeaders() {
		fmt.Fprintf(b, "  set %s: %s\n", h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
	}
	for _, h := range m.GetRemoveHeaders() {
		fmt.Fprintf(b, "  remove %s\n", h)
	}
}

func printMetadata(b *strings.Builder, m *structpb.Struct) {
	var lines []string
	for namespace, v := range m.GetFields() {
		for key, v := range v.GetStructValue().GetFields() {
			lines = append(lines, fmt.Sprintf("  metadata %s %s = %s\n", namespace, key, v.GetStringValue()))
		}
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
}

func shorten(body []byte) string {
	if len(body) > 512 {
		return fmt.Sprintf("of %d bytes: %s…", len(body), bytes.ReplaceAll(body[:48], []byte("\n"), nil))
	}
	return string(body)
}

// fixedKey is the key of tenants' salts.
func fixedKey() []byte { return []byte("a key of tests") }
