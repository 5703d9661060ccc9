package admin_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stator-project/stator/admin"
)

// TestOtherSites: pages of other sites read nothing of a port without a token, also where their names resolve to this machine.
func TestOtherSites(t *testing.T) {
	h := admin.OwnPages(admin.Handler(admin.Sources{}))
	for _, c := range []struct {
		host, path string
		headers    []string
		want       int
	}{
		{"127.0.0.1:8081", "/", nil, 200},
		{"[::1]:8081", "/", nil, 200},
		{"::1", "/", nil, 200},
		{"localhost:8081", "/", nil, 200},
		{"LOCALHOST", "/", nil, 200},
		{"10.0.0.7:8081", "/debug/pprof/", nil, 200},
		{"rebound.example:8081", "/", nil, 403},
		{"rebound.example", "/debug/pprof/heap", nil, 403},
		{"localhost.rebound.example:8081", "/", nil, 403},
		{"127.0.0.1.rebound.example", "/", nil, 403},
		{"rebound.example:8081", "/healthz", nil, 200},
		{"rebound.example:8081", "/readyz", nil, 200},
		{"127.0.0.1:8081", "/", []string{"Origin", "http://127.0.0.1:8081"}, 200},
		{"127.0.0.1:8081", "/", []string{"Origin", "http://other.example"}, 403},
		{"127.0.0.1:8081", "/", []string{"Origin", "http://127.0.0.1:3000"}, 403},
		{"127.0.0.1:8081", "/", []string{"Origin", "null"}, 403},
		{"127.0.0.1:8081", "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"127.0.0.1:8081", "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200},
		{"127.0.0.1:8081", "/", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}, 200},
		{"127.0.0.1:8081", "/", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, 200},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		r.Host = c.host
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != c.want {
			t.Errorf("%s %s %q: %d, want %d", c.host, c.path, c.headers, rec.Code, c.want)
		}
	}
}

// TestSocketsServeAll: no browser reaches a Unix socket, so the names in requests to one do not count.
func TestSocketsServeAll(t *testing.T) {
	h := admin.OwnPages(admin.Handler(admin.Sources{}))
	for network, want := range map[string]int{"unix": 200, "tcp": 403} {
		var at net.Addr = &net.UnixAddr{Net: network}
		if network == "tcp" {
			at = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = "admin"
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, at)))
		if rec.Code != want {
			t.Errorf("%s: %d, want %d", network, rec.Code, want)
		}
	}
}
