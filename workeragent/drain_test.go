package workeragent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// quickDraining is for tests.
var quickDraining = draining{
	settle: 40 * time.Millisecond, look: 10 * time.Millisecond, idle: 2, adopt: 2 * time.Second,
	blind: 3 * time.Second, // a busy machine may delay the metrics of an engine
}

// runScaled runs an agent whose engines the plan chooses.
func runScaled(t *testing.T, cfg Config, launches ...engine.Launch) *fixture {
	cfg.Scaled = true
	return runChanged(t, testSite(t), cfg, func(a *Agent) { a.draining = quickDraining }, launches...)
}

// assign publishes an assignment of the only agent.
func (s *fixture) assign(a bus.Assignment) {
	s.t.Helper()
	if err := s.bus.PutAssignment(s.t.Context(), a); err != nil {
		s.t.Fatal(err)
	}
}

// ends returns how many drains ended so.
func (s *fixture) ends(r drainResult) int {
	return int(testutil.ToFloat64(s.agent.metrics.drains.WithLabelValues(string(r))))
}

// awaitGone waits until the worker has no lease and no process.
func (s *fixture) awaitGone(name string) {
	s.t.Helper()
	testkit.Eventually(s.t, name+" is gone", func() bool { return s.now(name).Address == "" && s.agent.Processes()[name] == 0 })
}

func spareLaunch(l engine.Launch) engine.Launch {
	l.Spare = true
	return l
}

// TestPlanStartsAndStopsEngines: without an assignment those run that are not spare. An assignment starts others, and ends the
// engines that it does not name when they have drained. The status shows them as stopped.
func TestPlanStartsAndStopsEngines(t *testing.T) {
	s := runScaled(t, Config{}, simulated("a"), spareLaunch(simulated("b")))
	s.await("a", fleet.Ready, 0)
	if pids := s.agent.Processes(); len(pids) != 1 || s.agent.Wanted() != 1 || !s.agent.Status()[1].Stopped {
		t.Fatalf("%v, %+v", pids, s.agent.Status())
	}

	s.assign(bus.Assignment{Term: 5, Run: []string{"b"}, Drain: time.Minute})
	s.await("b", fleet.Ready, 0)
	s.awaitGone("a")
	if got := s.states("a"); !strings.HasSuffix(got, "ready draining gone") {
		t.Errorf("a was %s", got)
	}
	if status := s.agent.Status()[0]; s.ends(drainIdle) != 1 || !status.Stopped || status.Unready != 0 || status.Failures != 0 {
		t.Errorf("%d drains were idle; %+v", s.ends(drainIdle), status)
	}

	// An assignment of an earlier term can be on a server that has lost its memory.
	s.agent.assign(bus.Assignment{Term: 4, Run: []string{"a"}})
	if s.agent.Wanted() != 1 || !s.log.Contains("assignment of an earlier term has no effect") {
		t.Error("an earlier assignment was applied")
	}
	s.assign(bus.Assignment{Term: 6, Run: []string{"a", "b", "x"}, Drain: time.Minute})
	s.await("a", fleet.Ready, 0)
	if !s.log.Contains("asks for engines that this agent does not have") {
		t.Error("no warning about an engine that is not there")
	}
}

// TestSlotsArePublished: the planner finds on the bus the engines that the agent can run, and the ones that run.
func TestSlotsArePublished(t *testing.T) {
	s := runScaled(t, Config{}, simulated("a"), spareLaunch(simulated("b")))
	seen := make(chan bus.Slots, 99)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.bus.WatchSlots(ctx, func(x bus.Slots) { seen <- x }, func() {}) }()
	defer func() { stop(); <-done }()

	await := func(want string) {
		t.Helper()
		testkit.Eventually(t, want, func() bool {
			select {
			case x := <-seen:
				return fmt.Sprint(x.Slots) == want
			default:
				return false
			}
		})
	}
	await("[{a sim aggregated true} {b sim aggregated false}]")
	s.assign(bus.Assignment{Term: 5, Run: []string{"b"}, Drain: time.Minute})
	await("[{a sim aggregated false} {b sim aggregated true}]")
	s.stop()
	await("[]")
}

// TestDrainWaitsForRequests: an engine that has requests, or for which routers have booked some, runs on. When the plan wants it again, it
// is ready again at once, as the same process.
func TestDrainWaitsForRequests(t *testing.T) {
	s := runScaled(t, Config{}, simulated("a"))
	w := s.await("a", fleet.Ready, 0)
	pid := s.agent.Processes()["a"]
	answered := make(chan string, 1)
	go func() {
		answered <- post(w.Address, "/v1/completions", `{"model": "sim", "prompt": "x", "max_tokens": 600}`)
	}()
	testkit.Eventually(t, "the request runs", func() bool {
		return strings.Contains(page(w.Address), `vllm:num_requests_running{engine="0",model_name="sim"} 1`)
	})

	s.assign(bus.Assignment{Term: 5, Busy: []string{"a"}, Drain: time.Minute})
	s.await("a", fleet.Draining, 0)
	if text := <-answered; !strings.Contains(text, `"finish_reason":"length"`) {
		t.Errorf("the answer is %s", text)
	}
	time.Sleep(10 * quickDraining.look)
	if s.agent.Processes()["a"] != pid {
		t.Fatal("it was stopped while a router had a request for it")
	}

	s.assign(bus.Assignment{Term: 5, Run: []string{"a"}, Drain: time.Minute})
	if again := s.await("a", fleet.Ready, 0); again.Epoch != w.Epoch || s.agent.Processes()["a"] != pid || s.ends(drainBack) != 1 {
		t.Errorf("%+v, %d drains were taken back", again, s.ends(drainBack))
	}

	s.assign(bus.Assignment{Term: 5, Free: []string{"a"}, Drain: time.Minute})
	s.awaitGone("a")
	if s.ends(drainIdle) != 1 {
		t.Error("it did not end because it was idle")
	}
}

// TestDrainEnds: an engine that does not become idle ends at the deadline, one whose load is not known when no router has booked requests,
// or after some time, and one that is not ready at once.
func TestDrainEnds(t *testing.T) {
	for _, c := range []struct {
		launch engine.Launch
		order  bus.Assignment
		want   drainResult
	}{
		{simulated("a"), bus.Assignment{Term: 1, Busy: []string{"a"}, Drain: 200 * time.Millisecond}, drainDeadline},
		{exec("a", "obey", "{port}"), bus.Assignment{Term: 1, Busy: []string{"a"}, Drain: 300 * time.Millisecond}, drainDeadline},
		{exec("a", "obey", "{port}"), bus.Assignment{Term: 1, Free: []string{"a"}, Drain: time.Minute}, drainIdle},
		{exec("a", "obey", "{port}"), bus.Assignment{Term: 1, Drain: time.Minute}, drainBlind},
		{exec("a", "loading"), bus.Assignment{Term: 1, Drain: time.Minute}, drainNotReady},
		{exec("a", "broken"), bus.Assignment{Term: 1, Drain: time.Minute}, drainNotReady},
	} {
		t.Run(string(c.want), func(t *testing.T) {
			s := runScaled(t, Config{}, c.launch)
			testkit.Eventually(t, "the engine is started", func() bool {
				return testutil.ToFloat64(s.agent.metrics.starts.WithLabelValues("a")) > 0
			})
			if c.want != drainNotReady {
				s.await("a", fleet.Ready, 0)
			}
			s.assign(c.order)
			testkit.Eventually(t, "the drain ends", func() bool { return s.ends(c.want) == 1 })
			s.awaitGone("a")
		})
	}
}

// TestEngineEndsWhileItDrains is not started again.
func TestEngineEndsWhileItDrains(t *testing.T) {
	s := runScaled(t, Config{}, exec("a", "obey", "{port}"))
	w := s.await("a", fleet.Ready, 0)
	s.assign(bus.Assignment{Term: 1, Busy: []string{"a"}, Drain: time.Minute})
	s.await("a", fleet.Draining, 0)
	post(w.Address, "/exit", "")
	testkit.Eventually(t, "the drain ends", func() bool { return s.ends(drainEnded) == 1 })
	s.awaitGone("a")
	if n := testutil.ToFloat64(s.agent.metrics.starts.WithLabelValues("a")); n != 1 {
		t.Errorf("%g starts", n)
	}
}

// TestSurvivorDrains: an engine that has survived its agent, and that the plan does not want any more, is adopted and drains. The agent
// waits for its assignment before it starts engines.
func TestSurvivorDrains(t *testing.T) {
	state, _ := testState(t)
	b := testkit.Bus(t)
	site := testSite(t)
	launches := []engine.Launch{surviving("a", "obey"), surviving("b", "obey")}
	start := func() *fixture {
		return runChanged(t, site, Config{State: state, Bus: b, Scaled: true}, func(a *Agent) { a.draining = quickDraining }, launches...)
	}
	first := start()
	w := first.await("a", fleet.Ready, 0)
	first.await("b", fleet.Ready, 0)
	pid := first.agent.Processes()["a"]
	first.stop()
	if !running(pid) {
		t.Fatal("the engine did not survive")
	}

	first.assign(bus.Assignment{Term: 1, Run: []string{"b"}, Busy: []string{"a"}, Drain: time.Minute})
	second := start()
	if d := second.await("a", fleet.Draining, 0); d.Epoch != w.Epoch || second.agent.Processes()["a"] != pid {
		t.Errorf("adopted %+v, was %+v", d, w)
	}
	second.assign(bus.Assignment{Term: 1, Run: []string{"b"}, Free: []string{"a"}, Drain: time.Minute})
	testkit.Eventually(t, "the process has ended", func() bool { return !running(pid) })
	if second.ends(drainIdle) != 1 {
		t.Error("it was not drained")
	}
}

// TestLostBus: engines run on as the last assignment wants them.
func TestLostBus(t *testing.T) {
	server, err := bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: -1, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	agentBus := testkit.JoinBus(t, bus.Config{URL: server.URL()})
	s := runChanged(t, testSite(t), Config{Bus: agentBus, Scaled: true}, func(a *Agent) { a.draining = quickDraining },
		simulated("a"), spareLaunch(simulated("b")))
	s.assign(bus.Assignment{Term: 1, Run: []string{"b"}, Drain: time.Minute})
	s.await("b", fleet.Ready, 0)
	s.awaitGone("a")
	pid := s.agent.Processes()["b"]
	server.Close()
	testkit.Eventually(t, "the bus is lost", func() bool { return agentBus.Err() != nil })
	time.Sleep(2 * testkit.LeaseTTL)
	if pids := s.agent.Processes(); len(pids) != 1 || pids["b"] != pid {
		t.Errorf("processes %v", pids)
	}
}

// page returns the metrics of an engine.
func page(address string) string {
	resp, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// TestPrefillWorkerIsIdle when its cache is not in use any more: decode workers fetch blocks after the request has ended. The cache of
// other workers does not count.
func TestPrefillWorkerIsIdle(t *testing.T) {
	var usage atomic.Value
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc %v\n", usage.Load())
	}))
	defer srv.Close()
	for _, c := range []struct {
		role  fleet.Role
		usage string
		want  bool
	}{
		{fleet.Prefill, "0.25", false}, {fleet.Prefill, "0", true}, {fleet.Decode, "0.25", true},
	} {
		usage.Store(c.usage)
		s := newSupervisor(engine.Launch{Name: "w", Role: c.role}, &Agent{cfg: Config{Log: new(testkit.Log).Logger()}})
		d := &drainLooks{supervisor: s, probe: engineprobe.New("vllm", srv.Listener.Addr().String(), nil)}
		if got := d.isIdle(t.Context()); got != c.want {
			t.Errorf("%s with usage %s: idle %t", c.role, c.usage, got)
		}
		d.close()
	}
}

// TestReload: an engine of a new launch starts. An engine whose launch has gone drains and ends, and one that is back before that is ready
// again as the same process. Launches that are wrong change nothing.
func TestReload(t *testing.T) {
	s := runChanged(t, testSite(t), Config{}, func(a *Agent) { a.draining = quickDraining }, simulated("a"))
	first := s.await("a", fleet.Ready, 0)
	reload := func(launches ...engine.Launch) {
		t.Helper()
		if err := s.agent.Reload(launches, time.Minute); err != nil {
			t.Fatal(err)
		}
	}

	reload(simulated("a"), simulated("b"))
	s.await("b", fleet.Ready, 0)
	if err := s.agent.Reload([]engine.Launch{{Name: "Not a name", Kind: "sim"}}, time.Minute); err == nil || s.agent.Wanted() != 2 {
		t.Errorf("%v, %d engines are wanted", err, s.agent.Wanted())
	}

	answered := make(chan string, 1)
	go func() {
		answered <- post(first.Address, "/v1/completions", `{"model": "sim", "prompt": "x", "max_tokens": 600}`)
	}()
	testkit.Eventually(t, "the request runs", func() bool {
		return strings.Contains(page(first.Address), `vllm:num_requests_running{engine="0",model_name="sim"} 1`)
	})
	reload(simulated("b"))
	s.await("a", fleet.Draining, 0)
	reload(simulated("a"), simulated("b"))
	if again := s.await("a", fleet.Ready, 0); again.Epoch != first.Epoch {
		t.Error("the engine that was wanted again is another process")
	}
	reload(simulated("b"))
	if text := <-answered; !strings.Contains(text, `"finish_reason":"length"`) {
		t.Errorf("the answer of the engine that drained is %s", text)
	}
	s.awaitGone("a")
	testkit.Eventually(t, "the engine is forgotten", func() bool { return len(s.agent.Status()) == 1 })
}

// TestAgentDrains: an agent that stops has its engines end their requests first, without new ones.
func TestAgentDrains(t *testing.T) {
	s := runChanged(t, testSite(t), Config{DrainTime: time.Minute}, func(a *Agent) { a.draining = quickDraining }, simulated("a"))
	w := s.await("a", fleet.Ready, 0)
	answered := make(chan string, 1)
	go func() {
		answered <- post(w.Address, "/v1/completions", `{"model": "sim", "prompt": "x", "max_tokens": 600}`)
	}()
	testkit.Eventually(t, "the request runs", func() bool {
		return strings.Contains(page(w.Address), `vllm:num_requests_running{engine="0",model_name="sim"} 1`)
	})

	s.stop()
	if text := <-answered; !strings.Contains(text, `"finish_reason":"length"`) {
		t.Errorf("the answer is %s", text)
	}
	testkit.Eventually(t, "the lease has ended after the drain", func() bool {
		return strings.HasSuffix(s.states("a"), "ready draining gone") && s.ends(drainIdle) == 1
	})
}
