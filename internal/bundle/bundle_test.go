package bundle

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
)

// port runs an admin port with these pages; the JSON form of a page has .json behind its path. The others answer 404.
func port(t *testing.T, address string, pages map[string]string) Port {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if r.URL.Query().Get("format") == "json" {
			path += ".json"
		}
		text, ok := pages[path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	client, err := adminclient.New(adminclient.Config{Address: server.Listener.Addr().String()}, Timeout)
	if err != nil {
		t.Fatal(err)
	}
	return Port{Address: address, Admin: client, Pages: []string{"/readyz", "/metrics", "/debug/fleet", "/debug/decisions", "/debug/kv"}}
}

// TestBundle gathers the pages of a process, writes and reads them, and serves them again.
func TestBundle(t *testing.T) {
	router := port(t, "10.0.0.1:8081", map[string]string{
		"/readyz": "ok\n", "/metrics": "up 1\n", "/debug/fleet": "text", "/debug/fleet.json": "{}",
		"/debug/decisions": "table", "/debug/decisions.json": `[{"id": "../../../x"}, {"id": "b"}]`, "/debug/decisions/b": "why b",
		"/debug/decisions/../../../x": "why x",
	})
	gone := port(t, "unix:///run/gone.sock", nil)
	gone.Admin, _ = adminclient.New(adminclient.Config{Address: "127.0.0.1:1"}, Timeout)
	var steps []int
	b := Collect(t.Context(), []Port{router, gone}, func(done, of int) { steps = append(steps, done, of) })
	if len(steps) != 20 || steps[18] != 9 || steps[19] != 10 {
		t.Errorf("progress %v, want 10 steps", steps)
	}
	if len(b.Missing) == 0 || !strings.Contains(b.Missing[0], "gone.sock") {
		t.Errorf("missing %q, want the pages of the second port", b.Missing)
	}

	var packed bytes.Buffer
	if err := b.Write(&packed, time.Now()); err != nil {
		t.Fatal(err)
	}
	again, err := Read(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.Addresses(); len(got) != 1 || got[0] != "10.0.0.1:8081" {
		t.Errorf("addresses %q", got)
	}
	for _, f := range again.Files {
		if !strings.HasPrefix(f.Name, "10.0.0.1:8081/") || strings.Contains(f.Name, "..") {
			t.Errorf("the name of a file is %q", f.Name)
		}
	}
	for path, want := range map[string]string{
		"/debug/fleet": "text", "/debug/fleet?format=json": "{}", "/debug/decisions/b": "why b", "/readyz": "ok\n",
		"/debug/kv": "404 page not found\n", "/debug/../../../../etc/passwd": "404 page not found\n",
	} {
		rec := httptest.NewRecorder()
		again.Handler("10.0.0.1:8081").ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
		if got := rec.Body.String(); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if _, err := Read(strings.NewReader("no archive")); err == nil || !strings.Contains(err.Error(), "no bundle") {
		t.Errorf("another file: %v", err)
	}
}

// TestWithoutSecrets looks for secrets in a configuration that has them in many places.
func TestWithoutSecrets(t *testing.T) {
	got, err := WithoutSecrets([]byte(`# SECRET in a comment
bus: {url: "nats://user:SECRET@bus:4222,nats://bus2:4222", password: SECRET, passwordFile: kept-file, user: kept-user}
gateway: {maxBodyTokens: 12, limits: {promptTokensPerMinute: 34}} # SECRET
models:
- name: kept-name
  launch:
  - engine: vllm
    env: {HF_HOME: SECRET, ANY: SECRET}
    args: {api-key: SECRET, max-model-len: 56}
    command: [run, --api-key, SECRET, --auth-token=SECRET, --port, "78", kept-word]
  key: |
    SECRET
`))
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	if strings.Contains(text, "SECRET") {
		t.Errorf("a secret is left in\n%s", text)
	}
	for _, want := range []string{"kept-file", "kept-user", "kept-name", "kept-word", "12", "34", "56", "78", "bus2:4222", removed} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if _, err := WithoutSecrets([]byte("a: [")); err == nil {
		t.Error("a broken file is copied")
	}
}

// FuzzWithoutSecrets checks that no configuration makes it panic, and that its result can be read again.
func FuzzWithoutSecrets(f *testing.F) {
	f.Add([]byte("a: &x {password: p}\nb: *x\nc: [--key, v]\n? [k]\n: v\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := WithoutSecrets(text)
		if err != nil {
			return
		}
		if _, err := WithoutSecrets(got); err != nil {
			t.Errorf("the result %q of %q cannot be read: %v", got, text, err)
		}
	})
}

// TestEndOfLog keeps the first line and whole lines of the end.
func TestEndOfLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	text := "version\n" + strings.Repeat("0123456789\n", 1000)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := EndOfLog(name, 25)
	if want := "version\n0123456789\n0123456789\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	got, err = EndOfLog(name, 1<<20)
	if err != nil || string(got) != text {
		t.Errorf("a short log: %d bytes, %v", len(got), err)
	}
}
