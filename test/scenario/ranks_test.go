package scenario

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stator-project/stator/internal/kvsource"
)

// startRanks starts an HTTP server with data-parallel ranks behind it, each of which is a simulated engine: a request goes to the rank that
// its header names. On /v1/responses the server ignores the header and takes one rank after the other, as vLLM does. It answers for its
// health by itself, whatever its ranks do. events is the endpoint of rank 0's events; empty for none.
func startRanks(t *testing.T, ranks int, events string) (address string, engines []*command) {
	t.Helper()
	var proxies []*httputil.ReverseProxy
	for number := range ranks {
		at := freeAddress(t)
		args := []string{"sim", "--listen-address", at, "--log-level", "warn"}
		if events != "" {
			socket, err := kvsource.ConfiguredSocket(events, "", number)
			if err != nil {
				t.Fatal(err)
			}
			args = append(args, "--kv-events", socket.Endpoint)
		}
		engines = append(engines, start(t, args...))
		eventually(t, "the rank answers", func() error { _, err := get("http://" + at + "/health"); return err })
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: at})
		proxy.ErrorLog = log.New(io.Discard, "", 0) // canaries of a rank that is stopped end
		proxies = append(proxies, proxy)
	}
	var responses atomic.Int64
	server := &http.Server{Addr: freeAddress(t), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rank, err := strconv.Atoi(r.Header.Get("x-data-parallel-rank"))
		switch {
		case r.Method == http.MethodPost && (err != nil || rank < 0 || rank >= ranks):
			t.Errorf("%s for the rank %q", r.URL.Path, r.Header.Get("x-data-parallel-rank"))
			w.WriteHeader(http.StatusBadRequest)
		case r.URL.Path == "/health":
		case r.URL.Path == "/v1/responses":
			proxies[int(responses.Add(1))%ranks].ServeHTTP(w, r)
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
	address, engines := startRanks(t, 2, "")
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

// TestEngineChoosesRank: conversations grow as chats, which reach the rank that the router picks, and as responses, whose rank the engine
// chooses. An engine never finds less than its response was promised, and `stator explain` has a line about the rank.
func TestEngineChoosesRank(t *testing.T) {
	t.Parallel()
	events := "ipc://" + filepath.Join(t.TempDir(), "events")
	address, _ := startRanks(t, 2, events)
	g := up(t, "--config", configFile(t, fmt.Sprintf(`
models:
- name: sim
  path: "builtin:sim"
  workers: [{name: dp, address: %q, engine: sim, ranks: 2, kvEvents: %q}]
`, address, events)))

	promised, talk := 0, ""
	for turn := range 24 {
		if turn%8 == 0 {
			talk = fmt.Sprintf("conversation %d: ", turn)
		}
		talk += strings.Repeat(fmt.Sprintf("word %d ", turn), 60)
		if turn%8 < 3 {
			g.chat([]message{{"user", talk}}, 1)
			continue
		}

		body, err := json.Marshal(map[string]any{"model": "sim", "input": talk, "max_output_tokens": 1, "store": false})
		if err != nil {
			t.Fatal(err)
		}
		r, err := g.send(t.Context(), http.MethodPost, "/v1/responses", body)
		if err != nil || r.status != http.StatusOK {
			t.Fatalf("status %d: %v %s", r.status, err, r.body)
		}
		var answer struct {
			Usage struct {
				Input   int `json:"input_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"input_tokens_details"`
			}
		}
		var d struct {
			AnyRank bool `json:"any_rank"`
			Prompt  int  `json:"prompt_tokens"`
			Cached  int  `json:"cached_tokens"`
		}
		g.page("/debug/decisions/"+r.decision, &d)
		err = json.Unmarshal([]byte(r.body), &answer)
		if u := answer.Usage; err != nil || !d.AnyRank || d.Prompt != u.Input || d.Cached > u.Details.Cached {
			t.Errorf("turn %d: %+v is decided, and %+v served: %v", turn, d, u, err)
		}
		promised += d.Cached
		text, err := g.read("/debug/decisions/" + r.decision)
		if err != nil || !strings.Contains(text, "the engine of dp chooses the rank") {
			t.Errorf("no line about the rank: %v\n%s", err, text)
		}
		// The next turn finds the blocks of this one.
		eventually(t, "the events are read", func() error {
			if n := g.cache("dp").Blocks; n == 0 {
				return fmt.Errorf("%d blocks", n)
			}
			return nil
		})
	}
	if promised == 0 {
		t.Error("nothing was promised")
	}
	g.assertNothingBooked()
}
