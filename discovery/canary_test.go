package discovery_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// sendCanaries asks the engines of a fleet for completions, again and again, until stop is called.
func sendCanaries(t *testing.T, f *fleet.Fleet) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		discovery.Probe(ctx, discovery.ProbeConfig{
			Fleet: f, Log: slog.New(slog.DiscardHandler), Canary: func(string) time.Duration { return time.Millisecond },
		})
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// TestCanaries: an engine that answers at its health path and fails to compute is down, until it computes again. Engines that work are
// asked for no completion.
func TestCanaries(t *testing.T) {
	var sick atomic.Bool
	var completions, busy atomic.Int32
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/v1/completions" || !strings.Contains(string(body), `"max_tokens":1`) || !strings.Contains(string(body), `"model":"m"`) {
			t.Errorf("%s %s", r.URL.Path, body)
		}
		completions.Add(1)
		if !sick.Load() { // it answers with 200 all the same
			_, _ = io.WriteString(w, `{"choices":[{"text":"b"}]}`)
		}
	}))
	defer e.Close()
	working := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			busy.Add(1)
		}
	}))
	defer working.Close()

	f := fleet.New(fleet.Hooks{})
	var list []fleet.Worker
	for name, address := range map[string]string{"a": e.Listener.Addr().String(), "b": working.Listener.Addr().String()} {
		w := worker(name)
		w.Model, w.Address, w.HealthPath = "m", address, "/health"
		list = append(list, w)
	}
	if _, err := discovery.NewListed(f, list); err != nil {
		t.Fatal(err)
	}
	for _, r := range f.Snapshot().Ranks {
		if r.Worker.Name == "b" {
			r.Load.Health().ObserveProgress(time.Now().Add(time.Hour)) // it is never idle
		}
	}

	defer sendCanaries(t, f)()
	await := func(want fleet.HealthState) {
		t.Helper()
		testkit.Eventually(t, want.String(), func() bool {
			for _, r := range f.Snapshot().Ranks {
				if r.Worker.Name == "a" {
					return r.Load.Health().View().State == want
				}
			}
			return false
		})
	}

	await(fleet.HealthReady)
	sick.Store(true)
	await(fleet.HealthDown)
	for n := completions.Load(); completions.Load() < n+3; { // it is asked again, and stays down
		time.Sleep(10 * time.Millisecond)
	}
	await(fleet.HealthDown)
	sick.Store(false)
	await(fleet.HealthHalfOpen)
	if n := busy.Load(); n > 0 {
		t.Errorf("a worker that works was asked for %d completions", n)
	}
}

// TestRankCanaries: of two ranks of an engine, one fails to compute. That rank is down until it computes again, and the other rank and the
// worker stay ready. The engine itself, which would choose a rank, is asked for no completion.
func TestRankCanaries(t *testing.T) {
	var sick atomic.Bool
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		rank := r.Header.Get("x-data-parallel-rank")
		if rank != "0" && rank != "1" {
			t.Errorf("a canary for the rank %q", rank)
		}
		if rank == "1" && sick.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, `{"choices":[{"text":"b"}]}`)
	}))
	defer e.Close()

	f := fleet.New(fleet.Hooks{})
	w := worker("dp")
	w.Model, w.Address, w.HealthPath, w.Ranks = "m", e.Listener.Addr().String(), "/health", 2
	if _, err := discovery.NewListed(f, []fleet.Worker{w}); err != nil {
		t.Fatal(err)
	}
	defer sendCanaries(t, f)()
	await := func(first, second fleet.HealthState) {
		t.Helper()
		testkit.Eventually(t, first.String()+" and "+second.String(), func() bool {
			ranks := f.Snapshot().Ranks
			return ranks[0].Load.HealthView().State == first && ranks[1].Load.HealthView().State == second
		})
	}

	await(fleet.HealthReady, fleet.HealthReady)
	sick.Store(true)
	await(fleet.HealthReady, fleet.HealthDown)
	if state := f.Snapshot().Worker("dp").State; state != fleet.Ready {
		t.Errorf("the worker is %s", state)
	}
	sick.Store(false)
	await(fleet.HealthReady, fleet.HealthHalfOpen)
}
