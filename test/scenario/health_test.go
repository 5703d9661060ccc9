package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// listed is a gateway over engines that its configuration lists, and that the test starts.
type listed struct {
	*gateway
	engines map[string]*listedEngine
	file    string
}

// listedEngine is one engine of the list. It can be started again at its addresses.
type listedEngine struct {
	t    *testing.T
	args []string
	*command
}

// startListed starts engines of these names, except those that are in later, and a gateway over all of them. The engines
// publish KV events if withEvents.
func startListed(t *testing.T, withEvents bool, later string, names ...string) *listed {
	t.Helper()
	l := &listed{engines: map[string]*listedEngine{}}
	text := "gateway: {hints: headers, hintsFrom: everyone}\nmodels:\n- name: sim\n  path: \"builtin:sim\"\n  workers:\n"
	for _, name := range names {
		e := &listedEngine{t: t, args: []string{"sim", "--name", name, "--listen-address", freeAddress(t), "--log-level", "warn"}}
		keys := ""
		if withEvents {
			events, replay := "tcp://"+freeAddress(t), "tcp://"+freeAddress(t)
			e.args = append(e.args, "--kv-events", events, "--kv-replay", replay)
			keys = fmt.Sprintf(", kvEvents: %q, kvReplay: %q", events, replay)
		}
		text += fmt.Sprintf("  - {name: %s, address: %q, engine: sim%s}\n", name, e.args[4], keys)
		l.engines[name] = e
		if name != later {
			e.start()
		}
	}

	l.file = configFile(t, text)
	l.gateway = &gateway{t: t, admin: freeAddress(t)}
	address := freeAddress(t)
	l.url = "http://" + address
	l.up = start(t, "up", "--config", l.file, "--listen-address", address, "--admin-address", l.admin, "--envoy", envoyPath(t))
	eventually(t, "the gateway serves", func() error { _, err := get("http://" + l.admin + "/readyz"); return err })
	for _, name := range names {
		if name != later {
			l.awaitHealth(name, "ready")
		}
	}
	return l
}

func (e *listedEngine) start() { e.command = start(e.t, e.args...) }

func (e *listedEngine) signal(s syscall.Signal) {
	e.t.Helper()
	if err := e.cmd.Process.Signal(s); err != nil {
		e.t.Fatal(err)
	}
}

// health returns the health of a worker, and its state.
func (l *listed) health(name string) (health, state string) {
	l.t.Helper()
	var page struct {
		Ranks []struct{ Worker, State, Health, Why string }
	}
	l.page("/debug/fleet", &page)
	for _, r := range page.Ranks {
		if r.Worker == name {
			return r.Health, r.State
		}
	}
	return "", ""
}

func (l *listed) awaitHealth(name, want string) {
	l.t.Helper()
	eventually(l.t, name+" is "+want, func() error {
		if got, _ := l.health(name); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

// converse begins conversations on a worker.
func (l *listed) converse(n int, worker string) (talks []*talk) {
	l.t.Helper()
	for i := range n {
		c := newTalk(fmt.Sprintf("the parish of number %d", i), 100)
		c.messages = append(c.messages, message{"user", "What do you know?"})
		body, err := json.Marshal(map[string]any{"model": "sim", "messages": c.messages, "max_tokens": 4})
		if err != nil {
			l.t.Fatal(err)
		}
		r, err := l.send(l.t.Context(), http.MethodPost, chatPath, body, "x-stator-worker", worker)
		if err != nil || r.status != http.StatusOK {
			l.t.Fatalf("status %d: %s, %v", r.status, r.body, err)
		}
		c.messages = append(c.messages, message{"assistant", r.text})
		talks = append(talks, c)
	}
	return talks
}

// burst sends new prompts at the same time, so that they spread.
func (l *listed) burst() {
	l.t.Helper()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			text := fmt.Sprint(time.Now().UnixNano(), i, strings.Repeat(" a new question", 20))
			if _, err := l.tryChat(context.Background(), []message{{"user", text}}, 1); err != nil {
				l.t.Error(err)
			}
		})
	}
	all.Wait()
}

// awaitReturn sends requests until a worker is ready again.
func (l *listed) awaitReturn(name string) {
	l.t.Helper()
	eventually(l.t, name+" is ready again", func() error {
		if health, _ := l.health(name); health == "ready" {
			return nil
		}
		l.burst()
		return errNotYet
	})
}

// turns continues conversations by one turn each, and returns how many were picked for a worker.
func (l *listed) turns(talks []*talk, turn int, worker string) (picked int) {
	l.t.Helper()
	for _, c := range talks {
		before := c.workers[worker]
		if err := c.turn(l.gateway, turn); err != nil {
			l.t.Errorf("turn %d: %v", turn, err)
		}
		picked += c.workers[worker] - before
		l.assertNothingBooked() // the report of a failure ends its booking
	}
	return picked
}

// TestListedWorkerDies: the process of a listed engine is killed. At most three requests meet it, all are answered, and its
// conversations stay at the other worker. Started again with an empty cache it comes back by few requests, and nothing
// is expected in its cache.
func TestListedWorkerDies(t *testing.T) {
	t.Parallel()
	for name, withEvents := range map[string]bool{"events": true, "predicted": false} {
		t.Run(name, func(t *testing.T) {
			l := startListed(t, withEvents, "", "a", "b")
			talks := l.converse(3, "b")
			if n := l.turns(talks, 0, "b"); n != 3 {
				t.Fatalf("%d of 3 conversations stay at b", n)
			}

			l.engines["b"].kill()
			met := 0
			for turn := 1; turn <= 6; turn++ {
				met += l.turns(talks, turn, "b")
			}
			if met > 3 {
				t.Errorf("%d requests were picked on the dead worker", met)
			}
			l.awaitHealth("b", "down")
			if n := l.turns(talks, 7, "b"); n > 0 {
				t.Errorf("%d requests were picked on a worker that is down", n)
			}
			if _, state := l.health("b"); state != "down" {
				t.Errorf("its state is %s", state)
			}

			l.engines["b"].start()
			l.awaitReturn("b")
			for _, c := range talks {
				before := c.cached
				if err := c.turn(l.gateway, 8); err != nil {
					t.Error(err)
				}
				if c.cached == before {
					t.Errorf("a conversation found nothing in the cache of its worker: %v", c.workers)
				}
			}
			l.assertNothingBooked()
		})
	}
}

// TestListedWorkerFreezes: the process of a listed engine is stopped, while clients wait for 10 s at most. Once it is known to
// be silent no request goes there, its conversations are served by the other worker, and after it goes on it is back.
func TestListedWorkerFreezes(t *testing.T) {
	t.Parallel()
	l := startListed(t, true, "", "a", "b")
	talks := l.converse(3, "b")
	if n := l.turns(talks, 0, "b"); n != 3 {
		t.Fatalf("%d of 3 conversations stay at b", n)
	}

	l.engines["b"].signal(syscall.SIGSTOP)
	lost := 0
	for turn := range 5 {
		for _, c := range talks {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := l.tryChat(ctx, append(c.messages, message{"user", fmt.Sprint("and now? ", turn)}), 1)
			cancel()
			if err != nil {
				lost++
			}
		}
	}
	// One client waits until the worker is known to be silent, and the others do not meet it.
	if lost > 2 {
		t.Errorf("%d requests timed out", lost)
	}
	l.awaitHealth("b", "down")
	if n := l.turns(talks, 1, "b"); n > 0 {
		t.Errorf("%d requests were picked on a worker that is down", n)
	}

	l.engines["b"].signal(syscall.SIGCONT)
	l.awaitReturn("b")
	l.assertNothingBooked()
}

// TestLastListedWorkerFreezes: the only worker is silent and stays, because the network may be the cause. One that refuses
// connections is down all the same.
func TestLastListedWorkerFreezes(t *testing.T) {
	t.Parallel()
	l := startListed(t, false, "", "a")
	l.engines["a"].signal(syscall.SIGSTOP)
	eventually(t, "it is known to be silent", func() error {
		if health, state := l.health("a"); health != "suspect" || state != "ready" {
			return fmt.Errorf("%s, %s", health, state)
		}
		if !strings.Contains(l.up.out.String(), "worker is silent and stays, because too few others of its pool are ready") {
			return errNotYet
		}
		return nil
	})
	l.engines["a"].signal(syscall.SIGCONT)
	l.awaitHealth("a", "ready")

	l.engines["a"].kill()
	l.awaitHealth("a", "down")
	r, err := l.tryChat(t.Context(), []message{{"user", "hello"}}, 1)
	if err == nil || r.status != 503 || r.error.Code != "no_ready_worker" {
		t.Errorf("status %d, %s, %v", r.status, r.body, err)
	}
	if _, err := get("http://" + l.admin + "/readyz"); err == nil || !strings.Contains(err.Error(), "a is down (") {
		t.Errorf("/readyz: %v", err)
	}
}

// TestListedWorkerStartsLate: an engine that is not up yet gets no request, and the log names it. Then it gets its share.
func TestListedWorkerStartsLate(t *testing.T) {
	t.Parallel()
	l := startListed(t, true, "b", "a", "b")
	for i := range 10 {
		r := l.chat([]message{{"user", fmt.Sprintf("Question %d, which is new.", i)}}, 1)
		if d := l.decision(r.decision); d.Worker != "a" {
			t.Errorf("request %d went to %s", i, d.Worker)
		}
	}
	if n := l.served("retried"); n > 0 {
		t.Errorf("%d requests were retried", n)
	}
	if health, state := l.health("b"); health != "unknown" || state != "starting" {
		t.Errorf("%s, %s", health, state)
	}
	eventually(t, "the log names the worker", func() error {
		if log := l.up.out.String(); !strings.Contains(log, "worker does not answer yet") || !strings.Contains(log, "connection refused") {
			return errNotYet
		}
		return nil
	})

	l.engines["b"].start()
	l.awaitHealth("b", "ready")
	l.converse(1, "b")
	l.burst()
	eventually(t, "the load of both is known", func() error {
		var page struct {
			Ranks []struct {
				Worker string
				Usage  *float64 `json:"reported_kv_usage"`
			}
		}
		l.page("/debug/fleet", &page)
		for _, r := range page.Ranks {
			if r.Usage == nil {
				return fmt.Errorf("that of %s is not", r.Worker)
			}
		}
		return nil
	})
	l.assertNothingBooked()
}

// TestListedWorkersChange: workers join and leave with the configuration file, without a restart. The one that stays keeps
// its cache, requests go to the new one as picked, and none goes to the one that is gone.
func TestListedWorkersChange(t *testing.T) {
	t.Parallel()
	l := startListed(t, true, "", "a", "b", "c")
	text, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	// list makes the file list these workers, and waits until the router has them.
	list := func(names ...string) {
		t.Helper()
		var lines []string
		for _, line := range strings.Split(string(text), "\n") {
			_, worker, isWorker := strings.Cut(line, "- {name: ")
			if !isWorker || slices.Contains(names, worker[:1]) {
				lines = append(lines, line)
			}
		}
		if err := os.WriteFile(l.file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprint("the fleet has ", names), func() error {
			var got []string
			for _, r := range l.fleet() {
				got = append(got, r.Worker)
			}
			if !slices.Equal(got, names) {
				return fmt.Errorf("it has %s", got)
			}
			return nil
		})
		for _, name := range names {
			l.awaitHealth(name, "ready")
		}
		l.awaitPool(len(names))
	}

	talks := l.converse(3, "a")
	list("a")
	if n := l.turns(talks, 0, "a"); n != 3 {
		t.Errorf("%d of 3 conversations stay", n)
	}
	for _, c := range talks {
		if c.cached == 0 {
			t.Error("a conversation found nothing in the cache of its worker")
		}
	}
	list("a", "b")
	l.converse(2, "b")
	l.assertNothingBooked()
	if n := l.served("misdirected") + l.served("retried") + l.served("failed"); n > 0 {
		t.Errorf("%d requests were not served as picked", n)
	}
}
