package hub_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/test/testkit"
)

var (
	files = map[string]string{
		"tokenizer.json": strings.Repeat("a vocabulary ", 10_000), "config.json": "{}", "chat_template.jinja": "{{ x }}",
		"additional_chat_templates/tool_use.jinja": "{{ y }}", "README.md": "no file of a prompt",
	}
	commit1 = strings.Repeat("1", 40)
)

func parse(t *testing.T, path string) hub.Ref {
	t.Helper()
	ref, err := hub.ParseRef(path)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// start returns a hub, and a client of it with an empty cache and its log.
func start(t *testing.T) (*testkit.Hub, *hub.Client, *testkit.Log) {
	t.Helper()
	server, log := testkit.NewHub(t, files), new(testkit.Log)
	return server, hub.New(hub.Config{Endpoint: server.URL, Token: "secret", Cache: t.TempDir(), Log: log.Logger()}).Hasten(), log
}

// fetch downloads the model and compares its folder with what the hub has.
func fetch(t *testing.T, c *hub.Client, path string, want map[string]string) string {
	t.Helper()
	folder, err := c.Fetch(t.Context(), parse(t, path))
	if err != nil {
		t.Fatal(err)
	}
	assertFolder(t, folder, want)
	return folder
}

func assertFolder(t *testing.T, folder string, want map[string]string) {
	t.Helper()
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join(folder, name))
		if name == "README.md" {
			if !os.IsNotExist(err) {
				t.Errorf("%s is in the cache", name)
			}
		} else if err != nil || string(got) != content {
			t.Errorf("%s has %d bytes, want %d: %v", name, len(got), len(content), err)
		}
	}
}

// assertNoLeftovers checks that the cache has no file that is not complete.
func assertNoLeftovers(t *testing.T, c *hub.Client) {
	t.Helper()
	err := filepath.WalkDir(c.Cache, func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, ".incomplete") {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFetch downloads the files of prompts alone, into the layout of huggingface_hub, and once.
func TestFetch(t *testing.T) {
	server, c, _ := start(t)
	folder := fetch(t, c, "hf:acme/tiny", files)
	repo := filepath.Join(c.Cache, "models--acme--tiny")
	if folder != filepath.Join(repo, "snapshots", commit1) {
		t.Errorf("folder %s", folder)
	}
	if ref, err := os.ReadFile(filepath.Join(repo, "refs/main")); err != nil || string(ref) != commit1 {
		t.Errorf("refs/main is %q, %v", ref, err)
	}
	for name, up := range map[string]string{"config.json": "../../", "additional_chat_templates/tool_use.jinja": "../../../"} {
		if target, err := os.Readlink(filepath.Join(folder, name)); err != nil || !strings.HasPrefix(target, up+"blobs/") {
			t.Errorf("%s is a link to %q, %v", name, target, err)
		}
	}

	if asked := server.Requests("safetensors"); len(asked) > 0 {
		t.Errorf("weights were asked for: %v", asked)
	}
	resolved := len(server.Requests("/resolve/"))
	fetch(t, c, "hf:acme/tiny@"+commit1, files)
	if again := len(server.Requests("/resolve/")); again != resolved || resolved != 4 {
		t.Errorf("%d requests for files, and %d after the second download", resolved, again)
	}
	assertNoLeftovers(t, c)
}

// TestTokenStaysWithTheEndpoint: the host that files of LFS come from is another one, and does not get the token.
func TestTokenStaysWithTheEndpoint(t *testing.T) {
	server, c, log := start(t)
	var without atomic.Int64
	server.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "Bearer secret" && !strings.HasPrefix(r.URL.Path, "/secret-link/") {
			without.Add(1)
		}
		return false
	}
	fetch(t, c, "hf:acme/tiny", files)

	if got := server.StorageTokens(); !slices.Equal(got, []string{""}) || without.Load() > 0 {
		t.Errorf("Authorization of the other host %q; %d requests to the endpoint without", got, without.Load())
	}
	if log.Contains("secret") {
		t.Errorf("the log has the token or a link:\n%s", log)
	}
}

// TestTokenOfTheFile: the token is read for each download, so a new one needs no restart.
func TestTokenOfTheFile(t *testing.T) {
	server, c, _ := start(t)
	c.Token, c.TokenFile = "", filepath.Join(t.TempDir(), "token")
	server.Before = refuseUnless("Bearer second")
	for text, ok := range map[string]bool{"": false, "first\n": false, "second\n": true} {
		if text != "" {
			if err := os.WriteFile(c.TokenFile, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c.Cache = t.TempDir()
		if _, err := c.Fetch(t.Context(), parse(t, "hf:acme/tiny")); (err == nil) != ok {
			t.Errorf("the file has %q: %v", text, err)
		}
		_ = os.Remove(c.TokenFile)
	}
}

func refuseUnless(authorization string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		wrong := strings.HasPrefix(r.URL.Path, "/api/") && r.Header.Get("Authorization") != authorization
		if wrong {
			w.WriteHeader(http.StatusUnauthorized)
		}
		return wrong
	}
}

// TestRefusals: errors name the model and the remedy, and are not tried again.
func TestRefusals(t *testing.T) {
	for status, remedy := range map[int]string{
		401: `"it is gated"): set HF_TOKEN, accept the terms`, 403: "set HF_TOKEN, accept the terms",
		404: "no model acme/tiny, or the model has no revision v2",
	} {
		server, c, _ := start(t)
		server.Before = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("X-Error-Message", "it is gated")
			w.WriteHeader(status)
			return true
		}
		_, err := c.Fetch(t.Context(), parse(t, "hf:acme/tiny@v2"))
		if err == nil || !strings.Contains(err.Error(), "download hf:acme/tiny@v2: ") || !strings.Contains(err.Error(), remedy) {
			t.Errorf("%d: %v", status, err)
		}
		if n := len(server.Requests("")); n != 1 {
			t.Errorf("%d: %d requests", status, n)
		}
	}
}

// TestBadContent: content that does not have its checksum, or none, gets no name in the cache.
func TestBadContent(t *testing.T) {
	for name, test := range map[string]struct {
		path   string
		answer func(w http.ResponseWriter)
		want   string
	}{
		"of LFS":     {"/secret-link/", func(w http.ResponseWriter) { fmt.Fprint(w, "other") }, "tokenizer.json: the content has the checksum"},
		"of git":     {"/config.json", func(w http.ResponseWriter) { w.Header().Set("ETag", `"`+commit1+`"`) }, "config.json: the content has"},
		"no tag":     {"/config.json", func(http.ResponseWriter) {}, "sends no checksum"},
		"a path":     {"/config.json", func(w http.ResponseWriter) { w.Header().Set("ETag", `"../../../x"`) }, "sends no checksum"},
		"foreign":    {"/config.json", func(w http.ResponseWriter) { w.Header().Set("X-Repo-Commit", "x") }, `the file of commit "x"`},
		"not http":   {"/config.json", func(w http.ResponseWriter) { redirect(w, "file:///etc/passwd") }, "which is not encrypted"},
		"a circle":   {"/config.json", func(w http.ResponseWriter) { redirect(w, "?") }, "redirects more than 5 times"},
		"no commit":  {"/api/", func(w http.ResponseWriter) { fmt.Fprint(w, `{"sha": "../x"}`) }, "not 40 hexadecimal digits"},
		"no JSON":    {"/api/", func(w http.ResponseWriter) { fmt.Fprint(w, `<html>`) }, "read the answer of the hub"},
		"no files":   {"/api/", func(w http.ResponseWriter) { list(w, "../tokenizer.json") }, "it has no tokenizer.json"},
		"GGUF files": {"/api/", func(w http.ResponseWriter) { list(w, "a.gguf") }, "it has .gguf files and no tokenizer.json"},
		"large":      {"/config.json", func(w http.ResponseWriter) { large(w, 128<<20) }, "more than 128 MiB"},
		"large list": {"/api/", func(w http.ResponseWriter) { large(w, 8<<20) }, "more than 8 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			server, c, _ := start(t)
			server.Before = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, test.path) {
					return false
				}
				test.answer(w)
				return true
			}
			_, err := c.Fetch(t.Context(), parse(t, "hf:acme/tiny"))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if c.Cached(parse(t, "hf:acme/tiny")) != "" {
				t.Error("the cache has the model")
			}
			assertNoLeftovers(t, c)
		})
	}
}

func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusFound)
}

func list(w http.ResponseWriter, name string) {
	fmt.Fprintf(w, `{"sha": %q, "siblings": [{"rfilename": %q}]}`, commit1, name)
}

// large answers with more bytes than a bound, and without their number.
func large(w http.ResponseWriter, bound int) {
	w.Header().Set("ETag", commit1)
	piece := bytes.Repeat([]byte(" "), 1<<20)
	for range bound>>20 + 1 {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

// TestHostileNamesAreNotUsed: files that the hub lists under other names are not asked for.
func TestHostileNamesAreNotUsed(t *testing.T) {
	server, c, _ := start(t)
	hostile := maps.Clone(files)
	for _, name := range []string{"../../escaped", "/etc/escaped", "escaped\x00", "a/../../../../escaped"} {
		hostile[name] = "x"
	}
	server.Commit("1", hostile)
	fetch(t, c, "hf:acme/tiny", files)
	if asked := server.Requests("escaped"); len(asked) > 0 {
		t.Errorf("requests %q", asked)
	}
}

// TestCutDownload: a download that ends early, and a server with an error, are tried again from the start.
func TestCutDownload(t *testing.T) {
	server, c, log := start(t)
	var cuts atomic.Int64
	server.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/secret-link/") || cuts.Add(1) > 3 {
			return false
		}
		if cuts.Load() == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		w.Header().Set("Content-Length", "130000")
		fmt.Fprint(w, "a vocab")
		return true
	}
	fetch(t, c, "hf:acme/tiny", files)
	if n := log.Count("tried again"); n != 3 {
		t.Errorf("%d lines:\n%s", n, log)
	}
	assertNoLeftovers(t, c)
}

// TestCutSnapshotIsNotUsed: after a download that has failed, the cache does not give what has arrived for the whole.
func TestCutSnapshotIsNotUsed(t *testing.T) {
	server, c, _ := start(t)
	var away atomic.Bool
	away.Store(true)
	server.Before = func(w http.ResponseWriter, r *http.Request) bool {
		cut := away.Load() && strings.HasPrefix(r.URL.Path, "/secret-link/")
		if cut {
			w.WriteHeader(http.StatusBadGateway)
		}
		return cut
	}
	ref := parse(t, "hf:acme/tiny")
	if _, err := c.Fetch(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "status 502") {
		t.Errorf("%v", err)
	}
	if c.Cached(ref) != "" {
		t.Error("the cache has the model")
	}

	away.Store(false)
	fetch(t, c, "hf:acme/tiny", files)
	if n := len(server.Requests("/config.json")); n != 1 {
		t.Errorf("config.json was downloaded %d times", n)
	}
}

// TestOffline: the cache suffices without a request, and what it lacks is named.
func TestOffline(t *testing.T) {
	server, c, _ := start(t)
	fetch(t, c, "hf:acme/tiny", files)
	before := len(server.Requests(""))

	c.Offline = true
	fetch(t, c, "hf:acme/tiny", files)
	fetch(t, c, "hf:acme/tiny@"+commit1, files)
	_, err := c.Fetch(t.Context(), parse(t, "hf:acme/tiny@v2"))
	if err == nil || !strings.Contains(err.Error(), "HF_HUB_OFFLINE is set, and the cache "+c.Cache+" does not have hf:acme/tiny@v2") {
		t.Errorf("%v", err)
	}
	if after := len(server.Requests("")); after != before {
		t.Errorf("%d requests", after-before)
	}
}

// TestEndpointAway: without the hub the cache is used, with a warning. A branch that has moved is downloaded.
func TestEndpointAway(t *testing.T) {
	server, c, log := start(t)
	first := fetch(t, c, "hf:acme/tiny", files)
	newer := map[string]string{"tokenizer.json": "newer", "config.json": "{}"}
	server.Commit("2", newer)
	second := fetch(t, c, "hf:acme/tiny", newer)
	if first == second || log.Contains("those of the cache") {
		t.Errorf("folders %s and %s:\n%s", first, second, log)
	}

	c.Endpoint = "http://" + testkit.Address(t)
	if got := fetch(t, c, "hf:acme/tiny", newer); got != second || !log.Contains("those of the cache are used") {
		t.Errorf("folder %s:\n%s", got, log)
	}
	if _, err := c.Fetch(t.Context(), parse(t, "hf:acme/other")); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
}

// TestTwoProcesses: two clients download into one cache at the same time.
func TestTwoProcesses(t *testing.T) {
	server, c, _ := start(t)
	var both sync.WaitGroup
	both.Add(2)
	server.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/secret-link/") {
			both.Done()
			both.Wait() // each writes its own file
		}
		return false
	}
	other := hub.New(c.Config)
	var running sync.WaitGroup
	for _, c := range []*hub.Client{c, other} {
		running.Go(func() {
			if _, err := c.Fetch(t.Context(), parse(t, "hf:acme/tiny")); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	assertFolder(t, c.Cached(parse(t, "hf:acme/tiny")), files)
	assertNoLeftovers(t, c)
}

// TestFetchEndsWithItsContext while the hub does not answer.
func TestFetchEndsWithItsContext(t *testing.T) {
	server, c, _ := start(t)
	asked, ctx := make(chan struct{}), t.Context()
	ctx, stop := context.WithCancel(ctx)
	server.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		close(asked)
		<-r.Context().Done()
		return true
	}
	go func() {
		<-asked
		stop()
	}()
	if _, err := c.Fetch(ctx, parse(t, "hf:acme/tiny")); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("%v", err)
	}
}

// TestLeftoversAreRemoved: what a killed process has left goes after a day, and files of other programs stay.
func TestLeftoversAreRemoved(t *testing.T) {
	_, c, _ := start(t)
	blobs := filepath.Join(c.Cache, "models--acme--tiny", "blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{commit1, commit1 + ".incomplete", commit1 + ".0123.incomplete"} {
		if err := os.WriteFile(filepath.Join(blobs, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []int{3, 2} {
		c.RemoveLeftovers(parse(t, "hf:acme/tiny"), time.Now().Add(time.Duration(1+24*i)*time.Hour))
		if entries, err := os.ReadDir(blobs); len(entries) != want || err != nil {
			t.Errorf("look %d: %d files, %v", i, len(entries), err)
		}
	}
}

// TestFromEnvironment: the variables have the meaning and the order of huggingface_hub.
func TestFromEnvironment(t *testing.T) {
	for _, test := range []struct {
		variables map[string]string
		want      hub.Config
	}{
		{nil, hub.Config{Endpoint: "https://huggingface.co", TokenFile: "/home/a/.cache/huggingface/token", Cache: "/home/a/.cache/huggingface/hub"}},
		{map[string]string{"HOME": ""}, hub.Config{Endpoint: "https://huggingface.co"}},
		{map[string]string{"XDG_CACHE_HOME": "/x"}, hub.Config{Endpoint: "https://huggingface.co", TokenFile: "/x/huggingface/token", Cache: "/x/huggingface/hub"}},
		{
			map[string]string{"HF_HOME": "~/hf", "HF_ENDPOINT": "https://mirror/hf/", "HF_HUB_OFFLINE": "true", "HF_TOKEN": " t "},
			hub.Config{Endpoint: "https://mirror/hf", Token: "t", TokenFile: "/home/a/hf/token", Cache: "/home/a/hf/hub", Offline: true},
		},
		{
			map[string]string{"HF_HOME": "/h", "HF_HUB_CACHE": "$HOME/c", "HF_TOKEN_PATH": "/t", "HF_HUB_OFFLINE": "0"},
			hub.Config{Endpoint: "https://huggingface.co", TokenFile: "/t", Cache: "/home/a/c"},
		},
	} {
		for _, name := range []string{"XDG_CACHE_HOME", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE"} {
			t.Setenv(name, test.variables[name])
		}
		home, given := test.variables["HOME"]
		if !given {
			home = "/home/a"
		}
		t.Setenv("HOME", home)
		if got := hub.FromEnvironment(nil); got != test.want {
			t.Errorf("%v:\n%+v, want\n%+v", test.variables, got, test.want)
		}
	}

	if _, err := hub.New(hub.Config{}).Fetch(t.Context(), parse(t, "hf:a/b")); err == nil || !strings.Contains(err.Error(), "set HF_HOME or HF_HUB_CACHE") {
		t.Errorf("no cache: %v", err)
	}
}
