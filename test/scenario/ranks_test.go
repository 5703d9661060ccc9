package scenario

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"syscall"
	"testing"
)

// startRanks starts an HTTP server with data-parallel ranks behind it, each of which is a simulated engine: a request goes to the
// rank that its header names. The server itself answers for its health, whatever its ranks do, as vLLM's does.
func startRanks(t *testing.T, ranks int) (address string, engines []*command) {
	t.Helper()
	var proxies []*httputil.ReverseProxy
	for range ranks {
		at := freeAddress(t)
		engines = append(engines, start(t, "sim", "--listen-address", at, "--log-level", "warn"))
		eventually(t, "the rank answers", func() error { _, err := get("http://" + at + "/health"); return err })
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: at})
		proxy.ErrorLog = log.New(io.Discard, "", 0) // canaries of a rank that is stopped end
		proxies = append(proxies, proxy)
	}
	server := &http.Server{Addr: freeAddress(t), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rank, err := strconv.Atoi(r.Header.Get("x-data-parallel-rank"))
		switch {
		case r.Method == http.MethodPost && (err != nil || rank < 0 || rank >= ranks):
			t.Errorf("%s for the rank %q", r.URL.Path, r.Header.Get("x-data-parallel-rank"))
			w.WriteHeader(http.StatusBadRequest)
		case r.URL.Path == "/health":
		default:
			proxies[rank].ServeHTTP(w, r)
		}
	})}
	go func() { _ = server.ListenAndServe() }()
	t.Cleanup(func() { _ = server.Close() })
	eventually(t, "the server answers", func() error { _, err := get("http://" + server.Addr + "/health"); return err })
	return server.Addr, engines
}

// TestOneRankFreezes: of the two ranks behind one address, one is stopped (SIGSTOP), and the server goes on to answer for its
// health. The canary of that rank finds out. All requests go to the other rank then, and the worker stays ready. When the rank goes
// on, it gets requests.
func TestOneRankFreezes(t *testing.T) {
	t.Parallel()
	address, engines := startRanks(t, 2)
	t.Cleanup(func() { _ = engines[1].cmd.Process.Signal(syscall.SIGCONT) })
	g := up(t, "--config", configFile(t, fmt.Sprintf(`
models:
- name: sim
  path: "builtin:sim"
  canary: 5s
  workers: [{name: dp, address: %q, engine: sim, ranks: 2}]
`, address)))

	number := 0
	pick := func() (rank int) {
		t.Helper()
		number++
		r := g.chat([]message{{"user", fmt.Sprintf("question %d", number)}}, 1)
		var d struct{ Rank int }
		g.page("/debug/decisions/"+r.decision, &d)
		return d.Rank
	}
	await := func(rank int) {
		t.Helper()
		eventually(t, fmt.Sprintf("rank %d gets requests", rank), func() error {
			if got := pick(); got != rank {
				return fmt.Errorf("rank %d was picked", got)
			}
			return nil
		})
	}
	health := func() (states [2]string, worker string) {
		var page struct {
			Ranks []struct {
				Rank          int
				State, Health string
			}
		}
		g.page("/debug/fleet", &page)
		for _, r := range page.Ranks {
			states[r.Rank], worker = r.Health, r.State
		}
		return states, worker
	}
	await(0)
	await(1)

	if err := engines[1].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rank is down", func() error {
		if states, worker := health(); states != [2]string{"ready", "down"} || worker != "ready" {
			return fmt.Errorf("the ranks are %q, and the worker is %s", states, worker)
		}
		return nil
	})
	for range 20 {
		if rank := pick(); rank != 0 {
			t.Errorf("rank %d was picked", rank)
		}
	}

	if err := engines[1].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(1)
	g.assertNothingBooked()
}
