package admin_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/test/testkit"
)

// TestGuardedPages: without the token there are the pages of health checks alone, and the answer names the flag.
func TestGuardedPages(t *testing.T) {
	h := admin.Guard(admin.Handler(admin.Sources{}), func(text string) bool { return text == "right" })
	for _, c := range []struct {
		path, authorization string
		want                int
	}{
		{"/healthz", "", 200},
		{"/readyz", "", 200},
		{"/readyz/", "", 401},
		{"//healthz", "", 401},
		{"/", "", 401},
		{"/console/", "", 200},
		{"/console/console.js", "", 200},
		{"/console", "", 401},
		{"/console/../debug/fleet", "", 401},
		{"/nowhere", "", 401},
		{"/debug/pprof/", "", 401},
		{"/debug/pprof/heap", "Bearer wrong", 401},
		{"/", "Basic right", 401},
		{"/", "right", 401},
		{"/", "Bearer right", 200},
		{"/", "bearer right", 200},
		{"/nowhere", "Bearer right", 404},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		if strings.HasPrefix(c.path, "//") {
			r.URL.Path = c.path
		}
		r.Header.Set("Authorization", c.authorization)
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != c.want {
			t.Errorf("%s with %q: %d, want %d", c.path, c.authorization, rec.Code, c.want)
		}

		var body struct{ Error string }
		if c.want == 401 && (json.Unmarshal(rec.Body.Bytes(), &body) != nil || !strings.Contains(body.Error, "--admin-token-file")) {
			t.Errorf("%s: %s", c.path, rec.Body)
		}
	}
}

// TestProfilesAreBounded: one profile is recorded at a time, for at most a minute. There is no page with the command line.
func TestProfilesAreBounded(t *testing.T) {
	server := httptest.NewServer(admin.Handler(admin.Sources{}))
	defer server.Close()
	status := func(ctx context.Context, path string) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}

	for path, want := range map[string]int{
		"/debug/pprof/cmdline": 404, "/debug/pprof/heap": 200, "/debug/pprof/profile?seconds=61": 400, "/debug/pprof/trace?seconds=1e9": 400,
		"/debug/pprof/trace?seconds=NaN": 400, "/debug/pprof/heap?seconds=3600": 400, "/debug/pprof/trace?seconds=0.01": 200,
	} {
		if got := status(t.Context(), path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}

	// The first client goes away at the end; a profile ends with its client.
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() {
		for ctx.Err() == nil { // it is refused itself while one of the others runs
			status(ctx, "/debug/pprof/profile?seconds=60")
		}
		close(first)
	}()
	testkit.Eventually(t, "a second profile is refused", func() bool { return status(t.Context(), "/debug/pprof/trace?seconds=0.01") == 503 })
	cancel()
	<-first
	testkit.Eventually(t, "a profile after the first", func() bool { return status(t.Context(), "/debug/pprof/trace?seconds=0.01") == 200 })
}
