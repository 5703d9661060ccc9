package route_test

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// TestModelWithoutVocabulary: requests for a model whose prompts cannot be read go to the least loaded of its workers, also
// on paths that are parsed. A request that no engine could serve is refused all the same.
func TestModelWithoutVocabulary(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	r := route.New(route.Config{Seed: 1}, newFleet(t, x, 2), x)
	if err := r.SetModels(map[string]*serving.Config{"sim": {}}); err != nil {
		t.Fatal(err)
	}

	picks := map[string]int{}
	for range 4 {
		body := []byte(`{"model":"sim","input":["a","b"]}`)
		d := r.Decide(&request.Request{Endpoint: prompt.Embeddings, Known: true, Body: body}, start)
		if d.Outcome != decision.Picked || d.PromptTokens != 0 || d.Model != "sim" {
			t.Fatalf("%+v", d)
		}
		picks[d.Worker]++
	}
	if picks["w0"] != 2 || picks["w1"] != 2 {
		t.Errorf("picks %v", picks)
	}

	d := r.Decide(&request.Request{Known: true, Parsed: &openai.Request{
		Endpoint: prompt.Completions, Model: "sim", Prompts: []openai.Prompt{{Text: "the same text"}},
	}}, start)
	if d.Outcome != decision.Picked || d.First != 0 {
		t.Errorf("a completion: %+v", d)
	}
	d = r.Decide(&request.Request{Endpoint: prompt.Embeddings, Known: true, Body: []byte(`{"model":"sim"}`)}, start)
	if d.Outcome != decision.Refused || d.Err.Status != 400 {
		t.Errorf("a request without input: %+v", d)
	}
}

// TestUnreadSessions: a session whose prompts are not read stays on one worker by the policies for caches and for sessions, and its decision
// shows that. Other policies spread it, and embeddings, which leave nothing in a cache, go by load.
func TestUnreadSessions(t *testing.T) {
	for _, c := range []struct {
		policy   string
		endpoint prompt.Endpoint
		known    bool
		shown    string
		stays    bool
	}{
		{pick.KV, prompt.Chat, false, pick.Session, true},
		{pick.Session, prompt.Chat, false, pick.Session, true},
		{pick.RoundRobin, prompt.Chat, false, pick.LeastLoaded, false},
		{pick.KV, prompt.Embeddings, true, pick.LeastLoaded, false},
	} {
		x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
		r := route.New(route.Config{Seed: 1}, newFleet(t, x, 2), x)
		if err := r.SetModels(map[string]*serving.Config{"sim": {Policy: c.policy}}); err != nil {
			t.Fatal(err)
		}
		workers := map[string]bool{}
		for range 4 {
			d := r.Decide(&request.Request{Endpoint: c.endpoint, Known: c.known, Model: "sim", Session: "s",
				Body: []byte(`{"model":"sim","input":"a"}`)}, start)
			if d.Outcome != decision.Picked || d.Policy != c.shown {
				t.Fatalf("%+v: policy %q, %v", c, d.Policy, d.Err)
			}
			if text := d.String(); strings.Contains(text, "routed by session") != c.stays {
				t.Errorf("%+v: %s", c, text)
			}
			workers[d.Worker] = true
		}
		if (len(workers) == 1) != c.stays {
			t.Errorf("%+v: %d workers", c, len(workers))
		}
	}
}

// TestStoredAnswers: a request that continues an answer that an engine has stored goes where the latest request of its session went, even if
// another worker has less to do. It is counted as unread.
func TestStoredAnswers(t *testing.T) {
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	r := route.New(route.Config{Seed: 1}, newFleet(t, x, 4), x)
	m, err := prompt.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: m}}); err != nil {
		t.Fatal(err)
	}
	send := func(session, more string) *decision.Decision {
		t.Helper()
		body := []byte(`{"model":"sim","input":"hello"` + more + `}`)
		d := r.Decide(&request.Request{Endpoint: prompt.Responses, Known: true, Body: body, Session: session}, start)
		if d.Outcome != decision.Picked {
			t.Fatalf("%+v", d)
		}
		return d
	}

	const next = `,"previous_response_id":"resp_1"`
	for _, session := range []string{"a", "b", "c", "d", "e"} {
		first := send(session, "")
		for range 3 {
			if d := send(session, next); d.Worker != first.Worker || d.Policy != "session" || d.PromptTokens != 0 {
				t.Errorf("session %s began at %s: %+v", session, first.Worker, d)
			}
		}
	}
	if n := r.Stats().Unread[openai.WhyPrevious]; n != 15 {
		t.Errorf("%d were counted", n)
	}

	// A session that is not known is kept on one worker all the same, and requests without one go by load.
	unknown, none := map[string]bool{}, map[string]bool{}
	for range 4 {
		unknown[send("unknown", next).Worker] = true
		none[send("", next).Worker] = true
	}
	if len(unknown) != 1 || len(none) < 2 {
		t.Errorf("an unknown session went to %v, and requests without one to %v", unknown, none)
	}
}

// TestTenantsOfOtherEngines: with tenants, messages reach only engines that are known to keep the prompts of tenants apart.
func TestTenantsOfOtherEngines(t *testing.T) {
	m, err := prompt.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		model     serving.Preparer
		needsSalt bool
		status    int
	}{
		"vLLM":                      {m, true, 0},
		"another engine":            {m.WithRules(prompt.AnyEngine), true, 404},
		"no vocabulary":             {nil, true, 404},
		"the operator lets it pass": {m.WithRules(prompt.AnyEngine), false, 0},
	} {
		x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
		r := route.New(route.Config{Seed: 1}, newFleet(t, x, 1), x)
		if err := r.SetModels(map[string]*serving.Config{"sim": {Prompt: c.model}}); err != nil {
			t.Fatal(err)
		}
		d := r.Decide(&request.Request{
			Endpoint: prompt.Messages, Known: true, Body: []byte(`{"model":"sim","messages":[{"role":"user","content":"x"}]}`),
			Tenant: "red", Salting: request.Salting{SaltKey: []byte("0123456789abcdef"), NeedsSalt: c.needsSalt},
		}, start)
		if status := statusOf(d); status != c.status || status == 0 && d.CacheSalt == "" {
			t.Errorf("%s: status %d, salt %q", name, status, d.CacheSalt)
		}
	}
}

// statusOf returns the status of a refusal, and 0 for a picked request.
func statusOf(d *decision.Decision) int {
	if d.Err == nil {
		return 0
	}
	return d.Err.Status
}
