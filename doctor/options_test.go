package doctor

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
)

// TestOptionsOfEngines serves the pages of one engine from each file of testdata/engines, and compares the findings. Each file
// begins with the source of its pages. A page is its path, with a status other than 200 behind it; ADDRESS is the engine's
// address, and EVENTS the port of a ZMQ socket.
func TestOptionsOfEngines(t *testing.T) {
	files, err := filepath.Glob("testdata/engines/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Comment) == 0 {
				t.Error("it does not name the source of its pages")
			}
			texts := map[string]string{}
			for _, f := range a.Files {
				texts[f.Name] = string(f.Data)
			}
			if got := findingsOf(t, texts); got != texts["findings"] {
				t.Errorf("findings:\n%s\nwant:\n%s", got, texts["findings"])
			}
		})
	}
}

// findingsOf examines a fleet of one worker whose router is well, and returns the findings that are about the worker.
func findingsOf(t *testing.T, texts map[string]string) string {
	t.Helper()
	events := publisher(t)
	for name, text := range texts {
		texts[name] = strings.ReplaceAll(text, "EVENTS", events)
	}
	engine := servePages(t, texts)
	router := serve(t, map[string]string{
		"/readyz":      "ok",
		"/debug/fleet": `{"ranks": [{"worker": "w", "rank": 0, "model": "sim", "state": "ready"}]}`,
		"/debug/feed":  `[{"worker": "w", "rank": 0, "state": "none", "seq": null}]`,
		"/metrics":     "stator_route_prompt_tokens_total 0\n",
	})

	worker := strings.ReplaceAll(texts["worker"], "http://ADDRESS", "http://"+engine)
	worker = strings.ReplaceAll(worker, "ADDRESS", strconv.Quote(engine))
	cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels:\n" +
		"- name: sim\n  path: 'builtin:sim'\n  contextLength: 131072\n  workers:\n  - " + worker))
	if err != nil {
		t.Fatal(err)
	}
	client, err := adminclient.New(adminclient.Config{Address: router}, Timeout)
	if err != nil {
		t.Fatal(err)
	}

	var b strings.Builder
	d := Examine(t.Context(), Config{Fleet: cfg, AdminAddress: router, Admin: client, Wait: 50 * time.Millisecond})
	for _, f := range d.Findings {
		if f.Why == "" {
			t.Errorf("%s gives no reason", f.Check)
		}
		fmt.Fprintf(&b, "%s: %s\n  do: %s\n", f.Check, f.What, f.Remedy)
	}
	return b.String()
}

// publisher binds an event socket that publishes nothing, and returns its port.
func publisher(t *testing.T) string {
	pub := zmq4.NewPub(t.Context())
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close() })
	_, port, err := net.SplitHostPort(pub.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// servePages serves the texts whose names are paths, and returns the server's address.
func servePages(t *testing.T, texts map[string]string) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, text := range texts {
			path, status, has := strings.Cut(name, " ")
			if path != r.URL.Path {
				continue
			}
			if code, err := strconv.Atoi(status); has && err == nil {
				w.WriteHeader(code)
			}
			fmt.Fprint(w, text)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// option finds the texts that an operator types: flags, keys of JSON, and keys of TensorRT-LLM's file.
var option = regexp.MustCompile(`--[a-z][a-z_-]+|"[a-z_]+":|\b[a-z]+_[a-z_.]+\b|DYN_[A-Z_]+`)

// TestPagesHaveTheOptions: each option that a remedy names is on the page of the engine.
func TestPagesHaveTheOptions(t *testing.T) {
	for _, kind := range engines.All() {
		if kind.Page == "" {
			continue
		}
		page, err := os.ReadFile("../docs/engines/" + kind.Page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		r := &kind.Remedies
		found := 0
		for _, text := range []string{r.Caching, r.Events, r.Replay, r.Metrics, r.BlockSize, r.Socket} {
			for _, name := range option.FindAllString(text, -1) {
				for _, part := range strings.Split(name, ".") {
					found++
					if !strings.Contains(string(page), strings.TrimSuffix(part, ":")) {
						t.Errorf("the page of %s does not have %s, which a remedy names", kind.Name, part)
					}
				}
			}
		}
		if found == 0 {
			t.Errorf("the remedies for %s name no option", kind.Name)
		}
	}
}
