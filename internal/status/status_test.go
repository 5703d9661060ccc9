package status

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/adminclient"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata instead of comparing with it")

// serve runs an admin port with these pages. The others answer 404.
func serve(t *testing.T, pages map[string]string) Port {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
		case strings.HasPrefix(page, "503 "):
			http.Error(w, page[4:], http.StatusServiceUnavailable)
		default:
			_, _ = w.Write([]byte(page))
		}
	}))
	t.Cleanup(server.Close)
	admin, err := adminclient.New(adminclient.Config{Address: server.Listener.Addr().String()}, Timeout)
	if err != nil {
		t.Fatal(err)
	}
	return Port{Address: "127.0.0.1:0", Admin: admin}
}

// at names a port in the texts of a test.
func at(address string, p Port) Port {
	p.Address = address
	return p
}

const (
	fleetOfTwo = `{"ranks": [
		{"worker": "a", "model": "m", "role": "aggregated", "state": "ready", "health": "ready", "booked_requests": 3, "reported_running": 2,
			"reported_waiting": 1, "reported_kv_usage": 0.25},
		{"worker": "b", "rank": 1, "model": "m\u001b[2J<script>", "role": "aggregated", "state": "ready", "health": "down"}],
		"emitters": [{"name": "pool", "model": "m", "address": "tcp://pool:5557", "place": "cluster", "connected": true,
			"cache_state": "stale", "cache_reason": "gap", "blocks": 640}, {"name": "host", "model": "m", "address": "tcp://pool:5557",
			"place": "node n1", "connected": false, "cache_state": "exact", "blocks": 12}]}`
	version = "stator_build_info{version=\"v1\"} 1\n"
)

// TestStatus compares the tables of a fleet with much that is wrong with testdata/status.txt.
func TestStatus(t *testing.T) {
	router := serve(t, map[string]string{
		"/readyz": "ok\ndegraded: no planner\n", "/metrics": version + "stator_bus_connected{connection=\"data\"} 1\n",
		"/debug/fleet": fleetOfTwo,
		"/debug/feed": `[{"worker": "a", "state": "exact", "blocks": 10, "seq": 4},
			{"worker": "b", "rank": 1, "state": "stale", "reason": "the bus was away", "blocks": 2, "seq": null}]`,
		"/debug/envoys": `[{"envoy": "edge", "source": "access_log"}, {"envoy": "mesh", "source": "response"}]`,
		"/debug/config": `{"pending_restart": ["bus.url"]}`,
	})
	second := serve(t, map[string]string{
		"/readyz": "503 the index has no room yet", "/metrics": version + "stator_bus_connected{connection=\"data\"} 0\n",
		"/debug/fleet": fleetOfTwo, "/debug/envoys": `[]`,
		"/debug/feed": `[{"worker": "a", "state": "recovering", "blocks": 1, "seq": 1}]`,
	})
	control := serve(t, map[string]string{
		"/readyz": "ok\n", "/metrics": version,
		"/debug/xds": `{"failures": [{"part": "tables", "error": "no model"}], "envoys": [{"envoy": "edge", "version": "1.40.0", "types": [
			{"type": "listener", "sent": "2", "accepted": "2"}, {"type": "route", "sent": "2", "accepted": "1"},
			{"type": "cluster", "sent": "3", "accepted": "2", "refusal": {"version": "3", "message": "line\nbreak"}}]}]}`,
	})
	agent := serve(t, map[string]string{
		"/readyz": "ok\n", "/metrics": version,
		"/debug/agent": `[{"worker": "a", "ranks": [{"rank": 0, "next": 9, "source": {"connected": true}}]},
			{"worker": "b", "ranks": [{"rank": 1, "next": 2, "source": {"connected": false}}]}]`,
		"/debug/kv": `[{"model": "m", "state": "serving", "host_slots": {"active": 2, "reset": 8},
			"tiers": [{"tier": "disk", "health": "failing", "reason": "no space left", "blocks": 5, "room": 100}]}]`,
	})
	planner := serve(t, map[string]string{
		"/readyz": "ok\n", "/metrics": version,
		"/debug/plan": `{"term": 2, "pools": [{"model": "m", "role": "aggregated", "replicas": 2, "ready": 1, "reason": "3 requests a second"}]}`,
	})
	standby := serve(t, map[string]string{"/readyz": "ok\n", "/metrics": version, "/debug/plan": `{"term": 0, "pools": []}`})
	broken := serve(t, map[string]string{"/readyz": "ok\n", "/metrics": version, "/debug/plan": `{"term": `})

	s := Read(t.Context(), []Port{
		at("router:1", router), at("router:2", second), at("control:1", control), at("agent:1", agent), at("planner:1", planner),
		at("planner:2", standby), at("planner:3", broken),
	})
	var b strings.Builder
	s.Print(&b, false)
	got := b.String()

	file := filepath.Join("testdata", "status.txt")
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the tables are\n%s\nwant (or run with -rewrite)\n%s", got, want)
	}
}

// TestColour checks that only wrong states are red, and that columns stay aligned.
func TestColour(t *testing.T) {
	s := Status{Envoys: []Envoy{{Name: "a", Listeners: Stale, Routes: Synced}, {Name: "b", Listeners: Synced, Routes: NotSent}}}
	var plain, red strings.Builder
	s.Print(&plain, false)
	s.Print(&red, true)
	if n := strings.Count(red.String(), "\x1b[31m"); n != 2 {
		t.Errorf("%d cells are red in %q", n, red.String())
	}
	if got := strings.NewReplacer("\x1b[31m", "", "\x1b[0m", "").Replace(red.String()); got != plain.String() {
		t.Errorf("without its colours it is %q, not %q", got, plain.String())
	}
}

// TestBehind compares the next batch of an agent with the last one of a router.
func TestBehind(t *testing.T) {
	seq := uint64(7)
	for _, c := range []struct {
		next uint64
		seq  *uint64
		want uint64
	}{{8, &seq, 0}, {10, &seq, 2}, {3, &seq, 0}, {0, nil, 0}, {4, nil, 4}} {
		if got := behind(c.next, c.seq); got != c.want {
			t.Errorf("behind(%d, %v) = %d, want %d", c.next, c.seq, got, c.want)
		}
	}
}
