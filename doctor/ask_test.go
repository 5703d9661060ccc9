package doctor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/config"
)

// TestExamineAnswers serves the pages of a router and of one engine, and checks which findings their
// answers lead to.
func TestExamineAnswers(t *testing.T) {
	engine := serve(t, map[string]string{
		"/v1/models": `{"data": [{"id": "sim", "max_model_len": 5}]}`,
		"/metrics":   "vllm:num_requests_running 0\nvllm:cache_config_info{block_size=\"32\",enable_prefix_caching=\"False\"} 1\nvllm:prefix_cache_queries_total 7\n",
		"/tokenize":  `{"tokens": [1, 2, 3]}`,
	})
	router := serve(t, map[string]string{
		"/readyz":      "ok",
		"/debug/fleet": fmt.Sprintf(`{"ranks": [{"worker": "w", "rank": 1, "model": "sim", "state": "ready", "address": %q, "engine": "vllm"}]}`, engine),
		"/debug/feed":  `[{"worker": "w", "rank": 0, "state": "stale", "seq": null, "unrecovered_gaps": 1}]`,
		"/metrics":     "stator_feed_drift_ratio{worker=\"w\"} 0.5\n",
	})

	got := findings(t, router, "")
	want := []string{"tokenizer", "context-length", "block-size", "prefix-caching", "cache-state", "drift"}
	if !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
}

// TestExamineUnreachableFleet checks the findings when nothing answers.
func TestExamineUnreachableFleet(t *testing.T) {
	const nobody = "127.0.0.1:1"
	got := findings(t, nobody, fmt.Sprintf(`
bus: {url: "nats://%[1]s"}
models: [{name: m, path: absent, workers: [{name: a, address: %[1]q, kvEvents: "tcp://%[1]s"}]}]`, nobody))
	if want := []string{"router", "bus", "model", "engine"}; !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
}

// findings examines a fleet and returns the names of the checks that found something.
func findings(t *testing.T, admin, yaml string) []string {
	t.Helper()
	if yaml == "" {
		yaml = "models: [{name: sim, path: 'builtin:sim', contextLength: 131072, blockSize: 16}]"
	}
	cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\n" + strings.TrimSpace(yaml)))
	if err != nil {
		t.Fatal(err)
	}

	client, err := adminclient.New(adminclient.Config{Address: admin}, Timeout)
	if err != nil {
		t.Fatal(err)
	}
	d := Examine(t.Context(), Config{Fleet: cfg, AdminAddress: admin, Admin: client, Wait: 10 * time.Millisecond})
	names := []string{}
	for _, f := range d.Findings {
		names = append(names, f.Check)
		t.Logf("%s: %s", f.Subject, f.What)
	}
	return names
}

// serve answers the given paths, and returns the server's address.
func serve(t *testing.T, pages map[string]string) string {
	t.Helper()
	for path, page := range pages {
		if strings.HasPrefix(page, "{") || strings.HasPrefix(page, "[") {
			if !json.Valid([]byte(page)) {
				t.Fatalf("page %s is no JSON: %s", path, page)
			}
		}
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, page)
	}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}
