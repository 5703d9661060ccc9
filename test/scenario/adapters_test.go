package scenario

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// adapterEngine is a simulated engine that nothing but the test starts, and loads adapters when it is asked to.
type adapterEngine struct {
	t               *testing.T
	address, events string
}

func startAdapterEngine(t *testing.T) adapterEngine {
	t.Helper()
	e := adapterEngine{t, freeAddress(t), "tcp://" + freeAddress(t)}
	start(t, "sim", "--listen-address", e.address, "--kv-events", e.events, "--kv-replay", "tcp://"+freeAddress(t), "--load-adapters")
	eventually(t, "the engine is ready", func() error {
		_, err := get("http://" + e.address + "/health")
		return err
	})
	return e
}

// change has the engine load or unload an adapter, as an operator does it: not through the gateway.
func (e adapterEngine) change(how, adapter string) {
	e.t.Helper()
	body := fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, adapter, e.t.TempDir())
	resp, err := client.Post("http://"+e.address+"/v1/"+how+"_lora_adapter", "application/json", strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		e.t.Fatalf("%s %s: %s", how, adapter, resp.Status)
	}
}

// complete sends a completion for a model or an adapter.
func (g *gateway) complete(model, text string) reply {
	g.t.Helper()
	r, err := g.send(g.t.Context(), http.MethodPost, "/v1/completions",
		fmt.Appendf(nil, `{"model":%q,"prompt":%q,"max_tokens":2}`, model, text))
	if err != nil {
		g.t.Fatal(err)
	}
	return r
}

// TestAdaptersAreServedWhereTheyAreLoaded: an adapter that one engine loads while the gateway runs is listed, is served by that
// engine alone, and finds there what decisions promise. When the engine unloads it, its name does not exist.
func TestAdaptersAreServedWhereTheyAreLoaded(t *testing.T) {
	t.Parallel()
	a, b := startAdapterEngine(t), startAdapterEngine(t)
	g := up(t, "--config", configFile(t, fmt.Sprintf(`models:
- name: sim
  path: "builtin:sim"
  workers:
  - {name: a, address: %q, engine: sim, kvEvents: auto}
  - {name: b, address: %q, engine: sim, kvEvents: auto}
`, a.address, b.address)))
	text := strings.Repeat("The tide comes in twice a day. ", 60)
	if r := g.complete("poet", text); r.status != http.StatusNotFound || r.error.Code != "model_not_found" {
		t.Errorf("before it is loaded: %d: %s", r.status, r.body)
	}

	b.change("load", "poet")
	listed := func() error {
		list, err := get(g.url + "/v1/models")
		if err == nil && !strings.Contains(list, `"id":"poet"`) {
			err = errNotYet
		}
		return err
	}
	eventually(t, "the adapter is listed", listed)
	if list, _ := get(g.url + "/v1/models/poet"); !strings.Contains(list, `"parent":"sim"`) {
		t.Errorf("listed as %s", list)
	}

	const sets, turns = 4, 3
	promised := 0
	for turn := range turns {
		for i := range sets {
			r := g.complete("poet", fmt.Sprintf("Case %d. %s", i, text))
			d := g.decision(r.decision)
			promised += d.Overlap
			found := r.usage.Details.CachedTokens
			if r.status != http.StatusOK || d.Worker != "b" || found != d.Overlap*16 || turn > 0 && found == 0 {
				t.Errorf("turn %d of case %d: status %d from %q, %d blocks promised, %d tokens found: %s", turn, i, r.status, d.Worker,
					d.Overlap, found, r.body)
			}
		}
	}
	if promised == 0 {
		t.Error("nothing was promised: the test shows nothing")
	}
	eventually(t, "what the base model promises is known by events", func() error {
		if r := g.complete("sim", "Case 0. "+text); r.usage.Details.CachedTokens == 0 {
			return errNotYet // the first one finds nothing: the blocks are the adapter's
		} else if d := g.decision(r.decision); d.Overlap*16 != r.usage.Details.CachedTokens {
			return fmt.Errorf("%d blocks promised, %d tokens found", d.Overlap, r.usage.Details.CachedTokens)
		}
		return nil
	})

	b.change("unload", "poet")
	eventually(t, "the adapter is gone", func() error {
		if listed() == nil {
			return errors.New("it is listed")
		}
		return nil
	})
	if r := g.complete("poet", text); r.status != http.StatusNotFound || r.error.Code != "model_not_found" {
		t.Errorf("after it is unloaded: %d: %s", r.status, r.body)
	}
}

// TestAdaptersAreLoadedOnDemand: an adapter with a path is loaded by an engine of the agent when a request for it comes, and the
// router learns it from the worker's lease. An adapter whose path does not exist is refused each time. Clients cannot
// load adapters themselves.
func TestAdaptersAreLoadedOnDemand(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, fmt.Sprintf(`models:
- name: sim
  path: "builtin:sim"
  adapters: [{name: poet, path: %q}, {name: ghost, path: %q}]
  launch:
  - {engine: sim, count: 2}
`, t.TempDir(), t.TempDir()+"/missing")))

	text := strings.Repeat("The tide comes in twice a day. ", 60)
	first := g.complete("poet", text)
	if first.status != http.StatusServiceUnavailable || first.error.Code != "no_ready_worker" || first.header.Get("retry-after") != "2" {
		t.Errorf("the first request: %d: %s", first.status, first.body)
	}
	served := ""
	eventually(t, "the adapter is served", func() error {
		r := g.complete("poet", text)
		if r.status != http.StatusOK {
			return fmt.Errorf("%d: %s", r.status, r.body)
		}
		served = g.decision(r.decision).Worker
		return nil
	})
	for i := range 6 {
		r := g.complete("poet", text)
		if d := g.decision(r.decision); d.Worker != served || r.usage.Details.CachedTokens == 0 || d.Overlap*16 != r.usage.Details.CachedTokens {
			t.Errorf("request %d: status %d from %q, want %q; %d blocks promised, %d tokens found", i, r.status, d.Worker, served, d.Overlap,
				r.usage.Details.CachedTokens)
		}
	}
	eventually(t, "the adapter was loaded once", func() error {
		if n := g.metric("stator_extproc_adapter_loads_total", `result="loaded"`); n != 1 {
			return fmt.Errorf("adapters were loaded %g times", n)
		}
		return nil
	})

	if r := g.complete("ghost", text); r.status != http.StatusServiceUnavailable {
		t.Errorf("the adapter without files: %d: %s", r.status, r.body)
	}
	eventually(t, "the failure is counted", func() error {
		if g.metric("stator_extproc_adapter_loads_total", `result="failed"`) == 0 {
			return errNotYet
		}
		return nil
	})
	r, err := g.send(t.Context(), http.MethodPost, "/v1/load_lora_adapter", []byte(`{"lora_name":"mine","lora_path":"/tmp"}`))
	if err != nil || r.status != http.StatusNotFound || r.error.Code != "unknown_url" {
		t.Errorf("a client loads an adapter: %d, %v: %s", r.status, err, r.body)
	}
}
