package extproc

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/test/testkit"
)

// settings returns a configuration with these models.
func settings(t *testing.T, models string) *config.Config {
	t.Helper()
	cfg, err := config.Parse([]byte("{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [" + models + "]}"))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestReload: a new configuration replaces the models. One whose model cannot be loaded changes nothing.
func TestReload(t *testing.T) {
	r, _ := listedRouter(t)
	names := func() (list []string) {
		for _, m := range r.Routes().Models() {
			list = append(list, m.Name)
		}
		return list
	}
	if got := names(); !slices.Equal(got, []string{"also", "sim"}) {
		t.Errorf("models %v", got)
	}

	err := r.Reload(settings(t, `{name: new, path: "builtin:sim"}, {name: other, path: /no/such/folder}`))
	if err == nil || !strings.Contains(err.Error(), "models[1].path: ") {
		t.Errorf("a model that does not exist: %v", err)
	}
	if got := names(); !slices.Equal(got, []string{"also", "sim"}) {
		t.Errorf("models after a refused reload: %v", got)
	}

	if err := r.Reload(settings(t, `{name: new, path: "builtin:sim"}`)); err != nil {
		t.Error(err)
	}
	if got := names(); !slices.Equal(got, []string{"new"}) {
		t.Errorf("models after a reload: %v", got)
	}
}

// TestWrongConfigurationsAreRefused: New names the key of each wrong value.
func TestWrongConfigurationsAreRefused(t *testing.T) {
	for models, want := range map[string]string{
		`{name: m, path: /no/such/folder}`:                         "models[0].path: ",
		`{name: m, path: "builtin:sim", profile: /no/such/folder}`: "models[0].profile /no/such/folder: ",
	} {
		_, err := New(Config{Settings: settings(t, models), Log: new(testkit.Log).Logger(), Metrics: prometheus.NewRegistry()})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s…", models, err, want)
		}
	}
}

// TestRunWithoutBus: the router serves its listed workers at once, and ends with its context.
func TestRunWithoutBus(t *testing.T) {
	testkit.NoLeaks(t)
	cfg := settings(t, `{name: sim, path: "builtin:sim", workers: [{name: w0, address: "10.0.0.1:80", healthPath: none}]}`)
	cfg.Decisions.Log = filepath.Join(t.TempDir(), "decisions.jsonl")
	r, err := New(Config{Settings: cfg, Log: new(testkit.Log).Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	if r.Fleet().Snapshot().Worker("w0") == nil || len(r.Feed().States()) != 1 || r.Peers().Stats().Live != 0 {
		t.Errorf("the router starts with\n%d workers", len(r.Fleet().Snapshot().Workers))
	}

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	serving := make(chan net.Listener, 1)
	go func() {
		done <- r.Run(ctx, RunConfig{AwaitFleet: true, Listen: func() (net.Listener, error) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			serving <- ln
			return ln, err
		}})
	}()
	conn, err := net.Dial("tcp", (<-serving).Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()

	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.Decisions.Log); err != nil {
		t.Error(err)
	}
}

// TestRunReportsListenErrors: Run ends with the error of its listener.
func TestRunReportsListenErrors(t *testing.T) {
	r, _ := listedRouter(t)
	inUse := errors.New("address in use")
	err := r.Run(t.Context(), RunConfig{Listen: func() (net.Listener, error) { return nil, inUse }})
	if !errors.Is(err, inUse) {
		t.Error(err)
	}
}

// TestDriftMetrics: a worker has metrics after its first whole window.
func TestDriftMetrics(t *testing.T) {
	d := drift.New(drift.Config{Tokens: 1000})
	reg := prometheus.NewRegistry()
	reg.MustRegister(NewDriftCollector(d))
	d.Counted(drift.Counters{Worker: "a"}, time.Unix(1, 0))
	d.Served(drift.Request{Worker: "a", Decided: time.Unix(2, 0), PromptTokens: 1000, CachedTokens: 800, CertainTokens: 800})
	for i := range int64(2) {
		d.Counted(drift.Counters{Worker: "a", Queries: 1000, Hits: 500}, time.Unix(3+i, 0))
	}

	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP stator_feed_drift_ratio Predicted cached tokens that the engine cannot have found, as a share of the prompt tokens of the last window. Negative: found and not predicted.
# TYPE stator_feed_drift_ratio gauge
stator_feed_drift_ratio{worker="a"} 0.3
`), "stator_feed_drift_ratio")
	if err != nil {
		t.Error(err)
	}
}
