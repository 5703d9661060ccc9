package extproc

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/test/testkit"
)

// putLength puts a worker of the model base into the fleet, whose engine reports a max_model_len.
func (r *Router) putLength(t *testing.T, name string, tokens int) {
	t.Helper()
	_, err := r.fleet.Put(fleet.Worker{
		Name: name, Model: "base", Address: "10.0.1.1:80", Engine: "vllm", Epoch: 7, Ranks: 1, State: fleet.Ready, MaxModelLen: tokens,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.models.applyFacts()
}

// expectLength checks that a prompt with room for one token of an answer is accepted, and a longer one refused.
func (r *Router) expectLength(t *testing.T, when string, tokens int) {
	t.Helper()
	if d := r.decideForTest("base", make([]uint32, tokens-1), time.Now()); d.Outcome != decision.Picked {
		t.Errorf("%s: a prompt of %d tokens: %s", when, tokens-1, d)
	}

	d := r.decideForTest("base", make([]uint32, tokens), time.Now())
	if d.Outcome != decision.Refused || d.Err.Status != http.StatusBadRequest || d.Err.Code != "context_length_exceeded" ||
		!strings.Contains(d.Err.Message, fmt.Sprintf(" %d tokens", tokens)) {
		t.Errorf("%s: a prompt of %d tokens: %s", when, tokens, d)
	}
	if got := r.routes.Models()[0].ContextLength; got != tokens {
		t.Errorf("%s: the model is listed with %d tokens", when, got)
	}
}

// TestContextLengthIsThatOfTheEngines: the largest max_model_len of the model's engines replaces the length in its
// files, in both directions, and follows the engines.
func TestContextLengthIsThatOfTheEngines(t *testing.T) {
	r := modelsRouter(t, "aliases: [also]")
	files := r.routes.Models()[0].ContextLength
	if d := r.decideForTest("base", make([]uint32, 60), time.Now()); d.Outcome != decision.Picked {
		t.Errorf("no engine reports a length, and a prompt of 60 tokens: %s", d)
	}

	r.putLength(t, "w8", 50)
	r.expectLength(t, "one engine reports a length", 50)
	if d := r.decideForTest("also", make([]uint32, 60), time.Now()); d.Outcome != decision.Refused {
		t.Errorf("the alias has another length: %s", d)
	}
	r.putLength(t, "w9", 2*files)
	r.expectLength(t, "another one reports a larger one", 2*files)
	r.fleet.Remove("w9")
	r.models.applyFacts()
	r.expectLength(t, "the larger engine is gone", 50)
	r.putLength(t, "w8", 0)
	r.expectLength(t, "the engine restarts, and has not reported its length yet", 50)
}

// TestContextLengthOfTheFileWins: the engines do not change the length of models[].contextLength, and it can be
// removed and set with a reload.
func TestContextLengthOfTheFileWins(t *testing.T) {
	const models = `{name: base, path: "builtin:sim", contextLength: %d, workers: [{name: w0, address: "10.0.0.1:80", healthPath: none}]}`
	r := modelsRouter(t, "contextLength: 100")
	r.putLength(t, "w9", 50)
	r.expectLength(t, "the key is set", 100)

	for _, c := range []struct{ key, want int }{{0, 50}, {70, 70}} {
		if err := r.Reload(settings(t, fmt.Sprintf(models, c.key))); err != nil {
			t.Fatal(err)
		}
		r.expectLength(t, fmt.Sprintf("a reload with the key %d", c.key), c.want)
	}
}

// TestEngineLengthsAreFollowed: the follower replaces the models while reloads do, and logs a length once.
func TestEngineLengthsAreFollowed(t *testing.T) {
	testkit.NoLeaks(t)
	log := &testkit.Log{}
	cfg := settings(t, `{name: base, path: "builtin:sim", workers: [{name: w0, address: "10.0.0.1:80", healthPath: none}]}`)
	r, err := New(Config{Settings: cfg, Log: log.Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.models.follow(ctx) })
	w := *r.fleet.Snapshot().Worker("w0")
	for length := 41; length <= 50; length++ {
		w.MaxModelLen = length
		if _, err := r.fleet.Put(w); err != nil {
			t.Error(err)
		}
		if err := r.Reload(cfg); err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, "the length is that of the engine", func() bool { return r.routes.Models()[0].ContextLength == 50 })
	stop()
	running.Wait()

	r.putLength(t, "w9", 40) // not the largest
	r.expectLength(t, "the follower has ended", 50)
	r.putLength(t, "w9", 60)
	const logged = `msg="context length of the model is that of its engines" model=base tokens=60`
	if n := log.Count(logged); n != 1 {
		t.Errorf("the length was logged %d times", n)
	}
}

// putAdapters puts a worker into the fleet whose engine lists adapters.
func (r *Router) putAdapters(t *testing.T, name, model string, state fleet.State, adapters fleet.Adapters) {
	t.Helper()
	_, err := r.fleet.Put(fleet.Worker{
		Name: name, Model: model, Address: "10.0.1." + name[1:] + ":80", Engine: "vllm", Epoch: 7, Ranks: 1, State: state, Adapters: adapters,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.models.applyFacts()
}

// TestAdaptersOfTheEnginesAreModels: an adapter that an engine lists is a model that clients can name, on the workers that
// have it, with its own blocks, until no worker has it.
func TestAdaptersOfTheEnginesAreModels(t *testing.T) {
	r := modelsRouter(t, "aliases: [also]")
	if d := r.decideForTest("poet", numbers(10, 160), time.Now()); d.Reason != decision.ReasonModelNotFound {
		t.Errorf("nothing has the adapter: %s", d)
	}
	r.putAdapters(t, "w7", "base", fleet.Ready, "\n")
	r.putAdapters(t, "w8", "base", fleet.Ready, "\nalso\nbase\npoet\n")

	now := time.Now()
	for turn := range 3 {
		d := r.decideForTest("poet", numbers(10, 160), now)
		if d.Worker != "w8" || d.Pool != "base" || d.Overlap != 10*min(turn, 1) || len(d.Others) > 0 {
			t.Errorf("turn %d: %s", turn, d)
		}
	}
	if d := r.decideForTest("base", numbers(10, 160), now); d.Overlap != 0 {
		t.Errorf("the base model finds the adapter's blocks: %s", d)
	}
	want := route.ModelStatus{Name: "poet", Pool: "base", Adapter: "poet", Parent: "base", ContextLength: r.routes.Models()[0].ContextLength,
		Workers: 1, Ready: 1}
	if list := r.routes.Models(); len(list) != 3 || list[2] != want {
		t.Errorf("models %+v", list)
	}

	r.putAdapters(t, "w8", "base", fleet.Starting, "")
	if d := r.decideForTest("poet", numbers(10, 16), now); d.Reason != decision.ReasonNoReadyWorker || d.RetryAfter == 0 {
		t.Errorf("the engine restarts: %s", d)
	}
	if err := r.ReadyModels(); err != nil {
		t.Errorf("an adapter without a ready worker: %v", err)
	}
	r.putAdapters(t, "w8", "base", fleet.Ready, "\n")
	if d := r.decideForTest("poet", numbers(10, 16), now); d.Reason != decision.ReasonModelNotFound || d.Err.Status != http.StatusNotFound {
		t.Errorf("the engine came back without it: %s", d)
	}
}

// TestAdapterStaysWithItsFirstModel: a worker of another model that lists an adapter's name does not get its requests, even if its model is
// the first one of the configuration. The name is counted and logged until it is gone.
func TestAdapterStaysWithItsFirstModel(t *testing.T) {
	log := &testkit.Log{}
	cfg := settings(t, `{name: m1, path: "builtin:sim"}, {name: m2, path: "builtin:sim"}`)
	r, err := New(Config{Settings: cfg, Log: log.Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(when, pool string, contested float64) {
		t.Helper()
		d := r.decideForTest("support", numbers(10, 16), time.Now())
		if d.Outcome != decision.Picked || d.Pool != pool || testutil.ToFloat64(r.models.contestedCount) != contested {
			t.Errorf("%s: %s, %g contested", when, d, testutil.ToFloat64(r.models.contestedCount))
		}
	}

	r.putAdapters(t, "w7", "m2", fleet.Ready, "\nsupport\n")
	expect("one model has it", "m2", 0)
	r.putAdapters(t, "w8", "m1", fleet.Ready, "\nsupport\n")
	expect("another model lists it", "m2", 1)
	if err := r.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	expect("after a reload", "m2", 1)
	if n := log.Count("two models list an adapter of one name"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
	r.putAdapters(t, "w7", "m2", fleet.Starting, "")
	r.putAdapters(t, "w7", "m2", fleet.Ready, "\n")
	expect("the first model has unloaded it", "m1", 0)
}

// TestConfiguredNamesWin: an engine cannot take over the name of a model or of an adapter, and of two models with an adapter of
// one name the first has it. A reload keeps the adapters.
func TestConfiguredNamesWin(t *testing.T) {
	const models = `{name: base, path: "builtin:sim", adapters: [{name: poet, engineName: lora-7}]},
		{name: other, path: "builtin:sim", aliases: [also]}`
	cfg := settings(t, models)
	r, err := New(Config{Settings: cfg, Log: new(testkit.Log).Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	r.putAdapters(t, "w7", "base", fleet.Ready, "\nalso\nboth\nother\n")
	r.putAdapters(t, "w8", "other", fleet.Ready, "\nbase\nboth\nmine\npoet\n")
	for range 2 {
		pools := map[string]string{}
		for _, m := range r.routes.Models() {
			pools[m.Name] = m.Pool + "/" + m.Adapter
		}
		want := map[string]string{"base": "base/", "other": "other/", "also": "other/", "poet": "base/lora-7", "both": "base/both", "mine": "other/mine"}
		if !maps.Equal(pools, want) {
			t.Errorf("models %v, want %v", pools, want)
		}
		if err := r.Reload(cfg); err != nil {
			t.Fatal(err)
		}
	}
}
