package exchange

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestStreamsGoToTheRelay: streams of chats and completions of a model with migration go to the relay, with their worker as the next
// address, unless the client turns it off. All other requests go to workers.
func TestStreamsGoToTheRelay(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	router := route.New(route.Config{Seed: 1}, f, kvindex.New(kvindex.Config{}))
	models := map[string]*serving.Config{}
	for name, at := range map[string]string{"on": "10.0.0.1:8000", "off": "10.0.0.2:8000"} {
		models[name] = &serving.Config{Prompt: letters{}, BlockSize: 4}
		if _, err := f.Put(fleet.Worker{Name: name, Model: name, Address: at, Ranks: 1, State: fleet.Ready, Engine: "vllm"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := router.SetModels(models); err != nil {
		t.Fatal(err)
	}
	s := New(Settings{BodyBytes: 1 << 20, BodiesBytes: 4 << 20, TrustEveryone: true, Hints: HintsHeaders,
		Migrations: map[string]Migration{"on": {Limit: 2}}}, Config{
		Router: router, Started: start, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Relay: relayAt,
	})

	const chat = `"messages":[{"role":"user","content":"a"}]`
	for _, c := range []struct {
		path, body, limit string
		relayed           bool
		left              int
	}{
		{"/v1/chat/completions", `"model":"on","stream":true,` + chat, "", true, 2},
		{"/v1/completions", `"model":"on","stream":true,"prompt":"a"`, "", true, 2},
		{"/v1/completions", `"model":"on","stream":true,"prompt":"a"`, "1", true, 1},
		{"/v1/completions", `"model":"on","stream":true,"prompt":"a"`, "9", true, 2},
		{"/v1/completions", `"model":"on","stream":true,"prompt":"a"`, "0", false, 0},
		{"/v1/completions", `"model":"on","prompt":"a"`, "", false, 0},
		{"/v1/completions", `"model":"off","stream":true,"prompt":"a"`, "1", false, 0},
		{"/v1/messages", `"model":"on","stream":true,"max_tokens":5,` + chat, "", false, 0},
		{"/v1/responses", `"model":"on","stream":true,"input":"a"`, "", false, 0},
		{"/v1/embeddings", `"model":"on","stream":true,"input":"a"`, "", false, 0},
	} {
		head := Head{Method: http.MethodPost, Path: c.path}
		if c.limit != "" {
			head.Hints = []envoynames.Header{{Key: envoynames.HeaderMigrationLimit, Value: c.limit}}
		}
		x := s.Begin(Origin{Source: "edge"})
		x.OnHeaders(head, time.Now())
		r := x.OnBody([]byte("{"+c.body+"}"), true, time.Now())
		if r.Answer != nil {
			t.Fatalf("%s %s: %s", c.path, c.body, r.Answer.Body)
		}
		want := "10.0.0.1:8000"
		if strings.Contains(c.body, `"off"`) {
			want = "10.0.0.2:8000"
		}
		if c.relayed {
			want = relayAt + "," + want
		}
		p, _ := s.relay.plans.take(r.Pick.ID)
		if r.Destinations != want || (p != nil) != c.relayed || p != nil && p.migration.Limit != c.left {
			t.Errorf("%s %s with limit %q goes to %s, want %s; %+v", c.path, c.body, c.limit, r.Destinations, want, p)
		}
		router.End(r.Pick.ID, time.Now())
	}
}
