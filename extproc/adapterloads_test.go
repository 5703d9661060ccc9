package extproc

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/test/testkit"
)

// loadsRouter returns a router for one model, with an adapter that has a path and one that has none. Its loads run until the
// test ends.
func loadsRouter(t *testing.T) (*Router, *testkit.Log) {
	t.Helper()
	testkit.NoLeaks(t)
	log := &testkit.Log{}
	cfg := settings(t, `{name: base, path: "builtin:sim", adapters: [{name: poet, path: /adapters/poet}, {name: lawyer}]}`)
	r, err := New(Config{Settings: cfg, Log: log.Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.loads.loadAdapters(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return r, log
}

// putEngine puts a ready worker into the fleet, whose engine answers every request to load with a status.
func (r *Router) putEngine(t *testing.T, name string, status int, adapters fleet.Adapters) (asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if want := `{"lora_name":"poet","lora_path":"/adapters/poet"}`; string(body) != want {
			t.Errorf("the engine gets %s, want %s", body, want)
		}
		asked.Add(1)
		w.WriteHeader(status)
	}))
	t.Cleanup(srv.Close)
	_, err := r.fleet.Put(fleet.Worker{
		Name: name, Model: "base", Address: srv.Listener.Addr().String(), Engine: "vllm", Ranks: 1, State: fleet.Ready, Adapters: adapters,
	})
	if err != nil {
		t.Fatal(err)
	}
	return asked
}

// TestAdapterIsLoadedForARequest: of many requests for an adapter that no worker has, one asks the engine with the fewest
// adapters to load it. They are refused with 503 and a time to try again, and served when the engine lists it.
func TestAdapterIsLoadedForARequest(t *testing.T) {
	r, _ := loadsRouter(t)
	full := r.putEngine(t, "w0", http.StatusOK, "\na\nb\n")
	empty := r.putEngine(t, "w1", http.StatusOK, "\n")
	for range 20 {
		d := r.decideForTest("poet", numbers(10, 16), time.Now())
		if d.Reason != decision.ReasonNoReadyWorker || d.Err.Status != http.StatusServiceUnavailable || d.RetryAfter != 2*time.Second ||
			!strings.Contains(d.Err.Message, "asked to load it") {
			t.Fatalf("%s", d)
		}
	}
	testkit.Eventually(t, "the engine is asked", func() bool { return empty.Load() == 1 })
	r.decideForTest("poet", numbers(10, 16), time.Now())
	r.decideForTest("lawyer", numbers(10, 16), time.Now())
	r.decideForTest("unknown", numbers(10, 16), time.Now())

	if _, err := r.fleet.Update("w1", func(w *fleet.Worker) { w.Adapters = "\npoet\n" }); err != nil {
		t.Fatal(err)
	}
	if d := r.decideForTest("poet", numbers(10, 16), time.Now()); d.Worker != "w1" {
		t.Errorf("%s", d)
	}
	if full.Load() != 0 || empty.Load() != 1 {
		t.Errorf("the engines were asked %d and %d times", full.Load(), empty.Load())
	}
}

// TestAdapterThatCannotBeLoaded: after an engine that fails, the next one is asked, and the pauses between attempts double.
func TestAdapterThatCannotBeLoaded(t *testing.T) {
	r, log := loadsRouter(t)
	first := r.putEngine(t, "w0", http.StatusNotFound, "\n")
	second := r.putEngine(t, "w1", http.StatusNotFound, "\na\n")
	r.decideForTest("poet", numbers(10, 16), time.Now())
	testkit.Eventually(t, "the failure is logged", func() bool { return log.Contains("adapter not loaded") })
	for range 20 {
		r.decideForTest("poet", numbers(10, 16), time.Now())
	}
	if first.Load() != 1 || second.Load() != 0 {
		t.Errorf("the engines were asked %d and %d times", first.Load(), second.Load())
	}

	states, now := map[string]*adapterLoad{}, time.Now()
	for i, pause := range []time.Duration{0, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		now = now.Add(pause)
		if pause > 0 {
			if early, _ := r.loads.begin(states, "poet", 0, now.Add(-time.Millisecond)); early != nil {
				t.Errorf("attempt %d begins too early", i)
			}
		}
		w, path := r.loads.begin(states, "poet", 0, now)
		if w == nil || w.Name != fmt.Sprintf("w%d", i%2) || path != "/adapters/poet" {
			t.Fatalf("attempt %d goes to %+v, path %q", i, w, path)
		}
		if again, _ := r.loads.begin(states, "poet", 0, now); again != nil {
			t.Errorf("attempt %d begins twice", i)
		}
		states["poet"].endLoad(io.ErrUnexpectedEOF, now)
	}
	if w, _ := r.loads.begin(states, "poet", maxAdapterLoads, now.Add(time.Hour)); w != nil {
		t.Error("more adapters are loaded at a time than may be")
	}
	states["poet"].endLoad(nil, now)
	if w, _ := r.loads.begin(states, "poet", 0, now.Add(time.Second)); w != nil {
		t.Error("an adapter is loaded again before the list of the engine was read")
	}
}

// TestOnlySomeWorkersLoadAdapters: workers that are not ready, that do not list their adapters, or of a kind that cannot load
// any, are not asked.
func TestOnlySomeWorkersLoadAdapters(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	put := func(name, engine string, state fleet.State, adapters fleet.Adapters) {
		if _, err := f.Put(fleet.Worker{Name: name, Model: "base", Address: "10.0.0.1:80", Engine: engine, Ranks: 1, State: state, Adapters: adapters}); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "vllm", fleet.Starting, "\n")
	put("b", "vllm", fleet.Ready, "")
	put("c", "sglang", fleet.Ready, "\n")
	if got := candidatesFor(f.Snapshot(), "base", "poet"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	put("d", "vllm", fleet.Ready, "\nx\n")
	put("e", "vllm", fleet.Down, "\npoet\n")
	if got := candidatesFor(f.Snapshot(), "base", "poet"); len(got) != 1 || got[0].Name != "d" {
		t.Errorf("%+v", got)
	}
	put("e", "vllm", fleet.Ready, "\npoet\n")
	if got := candidatesFor(f.Snapshot(), "base", "poet"); len(got) != 0 {
		t.Errorf("a worker has it: %+v", got)
	}
}
