package extproc

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/test/testkit"
)

const hubModel = `{name: base, path: "hf:` + testkit.HubModel + `", %s workers: [{name: w0, address: "10.0.0.1:80", healthPath: none}]}`

// hubRouter returns a router for a model on a hub, with its log.
func hubRouter(t *testing.T) (*Router, *testkit.Log) {
	t.Helper()
	log := new(testkit.Log)
	log.PrintOnFailure(t)
	r, err := New(Config{Settings: settings(t, fmt.Sprintf(hubModel, "")), Log: log.Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return r, log
}

// startHub starts a hub with the simulated model, and makes it that of the environment, with an empty cache.
func startHub(t *testing.T) *testkit.Hub {
	t.Helper()
	server := testkit.NewHub(t, testkit.Contents(t, models.Sim()))
	t.Setenv("HF_ENDPOINT", server.URL)
	t.Setenv("HF_HOME", t.TempDir())
	return server
}

// blocksOfText decides on a text and returns the number of its blocks; 0 if the prompt is not read.
func blocksOfText(t *testing.T, r *Router) int {
	t.Helper()
	body := fmt.Sprintf(`{"model": "base", "prompt": %q, "max_tokens": 1}`, strings.Repeat("a text ", 100))
	d := r.routes.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: []byte(body)}, time.Now())
	if d.Outcome != decision.Picked {
		t.Errorf("%s", d)
	}
	return d.Blocks
}

// TestHubFilesArriveLater: a model whose download fails is served by load, and the reason is shown. A reload tries again at once, and from
// then on prompts are read. No later reload asks the hub.
func TestHubFilesArriveLater(t *testing.T) {
	server := startHub(t)
	var refuse atomic.Bool
	refuse.Store(true)
	server.Before = func(w http.ResponseWriter, _ *http.Request) bool {
		if refuse.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
		return refuse.Load()
	}
	r, log := hubRouter(t)
	if err := r.Degraded(); err == nil || !strings.Contains(err.Error(), "requests for model base go by load") || blocksOfText(t, r) != 0 {
		t.Errorf("at the start: %v", err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.models.followHub(ctx) })
	defer running.Wait()
	defer stop()
	testkit.Eventually(t, "the reason is shown", func() bool { return strings.Contains(r.Degraded().Error(), "set HF_TOKEN") })
	testkit.Eventually(t, "the metric and the log have the model", func() bool {
		return testutil.ToFloat64(r.models.withoutFiles) == 1 && log.Contains("set HF_TOKEN")
	})
	if blocksOfText(t, r) != 0 {
		t.Error("the prompt is read")
	}

	refuse.Store(false)
	if err := r.Reload(settings(t, fmt.Sprintf(hubModel, "aliases: [also],"))); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the files are there", func() bool { return r.Degraded() == nil })
	testkit.Eventually(t, "the metric lacks the model", func() bool { return testutil.ToFloat64(r.models.withoutFiles) == 0 })
	if blocksOfText(t, r) == 0 {
		t.Error("the prompt is not read")
	}

	asked := len(server.Requests(""))
	if err := r.Reload(settings(t, fmt.Sprintf(hubModel, ""))); err != nil {
		t.Fatal(err)
	}
	if !r.models.download(ctx) || len(server.Requests("")) != asked || blocksOfText(t, r) == 0 {
		t.Errorf("%d requests before the reload, %d after", asked, len(server.Requests("")))
	}
}

// TestHubFilesOfTheCache: a router that starts again reads prompts from its first request on, and asks the hub later. It keeps its files if
// the hub is away, takes those of a newer commit, and keeps them if the ones of the next commit cannot be read.
func TestHubFilesOfTheCache(t *testing.T) {
	server := startHub(t)
	first, _ := hubRouter(t)
	if !first.models.download(t.Context()) {
		t.Fatal(first.Degraded())
	}

	asked := len(server.Requests(""))
	r, log := hubRouter(t)
	if blocksOfText(t, r) == 0 || len(server.Requests("")) != asked || r.Degraded() != nil {
		t.Errorf("the cache is not used: %v", r.Degraded())
	}
	newer := testkit.Contents(t, models.Sim())
	newer["chat_template.jinja"] = "newer"
	server.Commit("2", newer)
	if !r.models.download(t.Context()) || !log.Contains(strings.Repeat("2", 40)) || blocksOfText(t, r) == 0 {
		t.Errorf("the newer files are not used: %v", r.Degraded())
	}

	broken := testkit.Contents(t, models.Sim())
	broken["tokenizer.json"] = "{}"
	server.Commit("3", broken)
	r, _ = hubRouter(t)
	if !r.models.download(t.Context()) || blocksOfText(t, r) == 0 || r.Degraded() == nil || !strings.Contains(r.Degraded().Error(), "older files") {
		t.Errorf("broken files: %v", r.Degraded())
	}
}

// TestHubPathsAreChecked at the start and by a reload.
func TestHubPathsAreChecked(t *testing.T) {
	startHub(t)
	r, _ := hubRouter(t)
	if err := r.Reload(settings(t, `{name: base, path: "hf:../x"}`)); err == nil || !strings.Contains(err.Error(), "models[0].path: ") {
		t.Errorf("%v", err)
	}
}
