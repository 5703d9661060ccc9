package extproc

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/test/testkit"
)

// modelsRouter returns a router for two listed workers of one model.
func modelsRouter(t *testing.T, keys string) *Router {
	t.Helper()
	models := fmt.Sprintf(`{name: base, path: "builtin:sim", %s,
		workers: [{name: w0, address: "10.0.0.1:80", healthPath: none}, {name: w1, address: "10.0.0.2:80", healthPath: none}]}`, keys)
	r, err := New(Config{Settings: settings(t, models), Log: new(testkit.Log).Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// numbers are n token ids that begin with first.
func numbers(first, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(first + i)
	}
	return ids
}

// decideForTest routes a completion of token ids and ends it as picked.
func (r *Router) decideForTest(model string, ids []uint32, now time.Time) *decision.Decision {
	text := strings.ReplaceAll(fmt.Sprint(ids), " ", ",")
	d := r.routes.Decide(&request.Request{Endpoint: prompt.Completions, Known: true,
		Body: fmt.Appendf(nil, `{"model": %q, "prompt": %s, "max_tokens": 1}`, model, text)}, now)
	r.routes.Ended(route.Ending{ID: d.ID, Served: d.Address}, now)
	return d
}

// TestAdaptersHaveTheirOwnCaches: the prompts of a model and of its adapters are never found in each other's
// caches, and each finds its own.
func TestAdaptersHaveTheirOwnCaches(t *testing.T) {
	r := modelsRouter(t, `aliases: [also], adapters: [{name: poet}, {name: lawyer, engineName: lora-7}]`)
	now, ids, first := time.Now(), numbers(10, 160), map[uint64]string{}
	for turn := range 2 {
		for _, model := range []string{"base", "poet", "lawyer"} {
			d := r.decideForTest(model, ids, now)
			if want := 10 * turn; d.Outcome != decision.Picked || d.Overlap != want {
				t.Errorf("turn %d of %s: want %d blocks cached: %s", turn, model, want, d)
			}
			if other := first[d.First]; other != "" && other != model {
				t.Errorf("%s and %s share their blocks", model, other)
			}
			first[d.First] = model
			now = now.Add(time.Second)
		}
	}
	if d := r.decideForTest("also", ids, now); d.Overlap != 10 {
		t.Errorf("the alias does not find the model's blocks: %s", d)
	}
}

// TestAdaptersAreFoundByTheirEngineName stores blocks as the engine reports them under its name of an adapter.
func TestAdaptersAreFoundByTheirEngineName(t *testing.T) {
	r := modelsRouter(t, `adapters: [{name: poet}, {name: lawyer, engineName: lora-7}]`)
	ids := numbers(10, 160)
	for engineName, worker := range map[string]string{"poet": "w0", "lora-7": "w1"} {
		blocks := blockhash.Append(nil, ids, 16, blockhash.Seed(engineName, ""))
		hashes := make([]uint64, len(blocks))
		for i, s := range blockhash.Chain(nil, blocks) {
			hashes[i] = uint64(s)
		}
		rank, _ := r.fleet.Snapshot().Rank(worker, 0)
		r.index.Store(rank.ID, fleet.Device, kvindex.Chain{Hashes: hashes, Blocks: blocks})
	}
	for model, worker := range map[string]string{"poet": "w0", "lawyer": "w1"} {
		if d := r.decideForTest(model, ids, time.Now()); d.Worker != worker || d.Overlap != 10 {
			t.Errorf("%s: %s", model, d)
		}
	}
}

// TestAdaptersAreModels: adapters are listed, and go to their model's workers.
func TestAdaptersAreModels(t *testing.T) {
	r := modelsRouter(t, `contextLength: 100, adapters: [{name: poet}]`)
	listed := map[string]route.ModelStatus{}
	for _, m := range r.routes.Models() {
		listed[m.Name] = m
	}
	want := route.ModelStatus{Name: "poet", Pool: "base", Adapter: "poet", Parent: "base", ContextLength: 100, Workers: 2, Ready: 2}
	if listed["poet"] != want || len(listed) != 2 || listed["base"].Adapter != "" {
		t.Errorf("models %+v", listed)
	}
	if d := r.decideForTest("poet", numbers(10, 16), time.Now()); d.Pool != "base" {
		t.Errorf("the pool of the adapter is %q", d.Pool)
	}
}

// TestContextLengthIsTheConfigured: the key replaces the length in the model's files, in both directions.
func TestContextLengthIsTheConfigured(t *testing.T) {
	for keys, longest := range map[string]int{"contextLength: 100": 99, "contextLength: 300000": 299_999} {
		r := modelsRouter(t, keys)
		for n, outcome := range map[int]decision.Outcome{longest: decision.Picked, longest + 1: decision.Refused} {
			ids := make([]uint32, n)
			d := r.decideForTest("base", ids, time.Now())
			if d.Outcome != outcome || outcome == decision.Refused && d.Err.Status != http.StatusBadRequest {
				t.Errorf("%s: a prompt of %d tokens: %s", keys, n, d)
			}
		}
	}
}

// TestModelWithoutPath: the prompts of a model without a path are not read, and its requests go to the least loaded of its
// workers. Its context length is the configured one.
func TestModelWithoutPath(t *testing.T) {
	const models = `{name: base, path: "builtin:sim"}, {name: vectors, contextLength: 512,
		workers: [{name: w0, address: "10.0.0.1:80", healthPath: none}, {name: w1, address: "10.0.0.2:80", healthPath: none}]}`
	r, err := New(Config{Settings: settings(t, models), Log: new(testkit.Log).Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}

	picks := map[string]int{}
	for range 4 {
		d := r.routes.Decide(&request.Request{Endpoint: prompt.Embeddings, Known: true, Body: []byte(`{"model":"vectors","input":"a"}`)}, time.Now())
		picks[d.Worker]++
	}
	if picks["w0"] != 2 || picks["w1"] != 2 {
		t.Errorf("picks %v", picks)
	}
	if m := r.routes.Models(); m[1].Name != "vectors" || m[1].ContextLength != 512 {
		t.Errorf("models %+v", m)
	}
}

// TestRulesAreThoseOfTheEngines sends requests that vLLM refuses and llama.cpp accepts. One that cannot be read
// goes by load.
func TestRulesAreThoseOfTheEngines(t *testing.T) {
	const router = `{name: base, path: "builtin:sim", workers: [{name: w0, address: "10.0.0.1:80", healthPath: none, engine: %s},
		{name: w1, address: "10.0.0.2:80", healthPath: none, engine: %s}]}`
	for engines, want := range map[[2]string]decision.Outcome{
		{"vllm", "sim"}: decision.Refused, {"llamacpp", "llamacpp"}: decision.Picked, {"vllm", "llamacpp"}: decision.Picked,
	} {
		r, err := New(Config{
			Settings: settings(t, fmt.Sprintf(router, engines[0], engines[1])), Log: new(testkit.Log).Logger(), Metrics: prometheus.NewRegistry(),
		})
		if err != nil {
			t.Fatal(err)
		}
		for body, unread := range map[string]uint64{
			`{"model": "base", "prompt": "hi", "max_tokens": -1}`: 0,
			`{"model": "base", "prompt": [12, "x"]}`:              1,
		} {
			before := r.routes.Stats().Unread[openai.WhyForm]
			d := r.routes.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: []byte(body)}, time.Now())
			if d.Outcome != want {
				t.Errorf("%v: %s: %s", engines, body, d)
			}
			counted := r.routes.Stats().Unread[openai.WhyForm] - before
			if want == decision.Picked && counted != unread || want == decision.Refused && counted != 0 {
				t.Errorf("%v: %s: %d counted as unread", engines, body, counted)
			}
			if counted > 0 && d.Policy != "least-loaded" {
				t.Errorf("%s: policy %s", body, d.Policy)
			}
		}
	}
}
