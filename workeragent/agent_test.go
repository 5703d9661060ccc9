package workeragent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// fixture is a bus, an agent on it, and the workers as other members of the cluster see them.
type fixture struct {
	t     *testing.T
	bus   *bus.Bus
	agent *Agent
	log   *testkit.Log
	stop  func() // stops the agent and waits for it

	mu   sync.Mutex
	seen []fleet.Worker // guarded by mu; every change, removed workers without an address
}

// run runs an agent that looks at its engines often.
func run(t *testing.T, cfg Config, launches ...engine.Launch) *fixture {
	return runAt(t, testSite(t), cfg, launches...)
}

// runAt runs an agent on a site.
func runAt(t *testing.T, at engine.Site, cfg Config, launches ...engine.Launch) *fixture {
	return runProbing(t, at, cfg, func(*probing) {}, launches...)
}

// runProbing is runAt with changed times.
func runProbing(t *testing.T, at engine.Site, cfg Config, change func(*probing), launches ...engine.Launch) *fixture {
	return runChanged(t, at, cfg, func(a *Agent) { change(&a.probing) }, launches...)
}

// runChanged is runAt with a change of the agent before it runs. The bus is a new one unless the configuration has one.
func runChanged(t *testing.T, at engine.Site, cfg Config, change func(*Agent), launches ...engine.Launch) *fixture {
	if cfg.Bus == nil {
		cfg.Bus = testkit.Bus(t)
	}
	s := &fixture{t: t, bus: cfg.Bus, log: &testkit.Log{}}
	cfg.Launches, cfg.Metrics = launches, prometheus.NewRegistry()
	cfg.Log = s.log.Logger()
	cfg.Site = at
	s.log.PrintOnFailure(t)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.probing = probing{starting: 5 * time.Millisecond, load: 20 * time.Millisecond, healthEvery: 1, unhealthy: 3}
	change(a)
	s.agent = a
	ctx, cancel := context.WithCancel(context.Background())
	watching, stopWatching := context.WithCancel(context.Background())
	var agent, watch sync.WaitGroup
	agent.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	watch.Go(func() { _ = s.bus.WatchWorkers(watching, s.see, nil) })
	s.stop = func() { cancel(); agent.Wait() }
	t.Cleanup(func() {
		s.stop()
		stopWatching()
		watch.Wait()
	})
	return s
}

// testSite is a place for engines on loopback.
func testSite(t *testing.T) engine.Site {
	t.Helper()
	site, err := engine.NewSite("127.0.0.1", engine.DefaultPorts, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return site
}

func (s *fixture) see(l bus.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := l.Worker
	if w == nil {
		w = &fleet.Worker{Name: l.Name}
	}
	s.seen = append(s.seen, *w)
}

// now returns the worker as others see it.
func (s *fixture) now(name string) fleet.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range slices.Backward(s.seen) {
		if w.Name == name {
			return w
		}
	}
	return fleet.Worker{}
}

// states returns the states that others saw of a worker, and "gone" when it was removed.
func (s *fixture) states(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var words []string
	for _, w := range s.seen {
		word := w.State.String()
		if w.Address == "" {
			word = "gone"
		}
		if w.Name == name && (len(words) == 0 || words[len(words)-1] != word) {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// await waits until the worker is in that state, in an epoch after this one.
func (s *fixture) await(name string, state fleet.State, after uint64) fleet.Worker {
	s.t.Helper()
	testkit.Eventually(s.t, fmt.Sprintf("%s is %s", name, state), func() bool {
		w := s.now(name)
		return w.Address != "" && w.State == state && w.Epoch > after
	})
	return s.now(name)
}

// exec is the launch of an engine of this test binary.
func exec(name string, words ...string) engine.Launch {
	return engine.Launch{Kind: "exec", Name: name, Model: "m", BlockSize: 16, Command: append([]string{os.Args[0]}, words...)}
}

func running(pid int) bool { return pid != 0 && syscall.Kill(pid, 0) == nil }

// TestEngineLifecycle: an engine is starting, then ready. When it dies it is started again in a new
// epoch. When the agent stops, the worker and its process are gone.
func TestEngineLifecycle(t *testing.T) {
	s := run(t, Config{}, exec("a", "obey", "{port}"), exec("b", "obey", "{port}"))
	first := s.await("a", fleet.Ready, 0)
	other := s.await("b", fleet.Ready, 0)
	if first.Model != "m" || first.Engine != "exec" || first.Ranks != 1 || first.BlockSize != 16 || first.Epoch == 0 {
		t.Errorf("its lease has %+v", first)
	}
	pid := s.agent.Processes()["a"]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := s.await("a", fleet.Ready, first.Epoch)
	if second.Address == first.Address {
		t.Error("it came back at the address of the old process, which others may still have")
	}
	if !s.log.Contains(`msg="engine ended; starting it again" worker=a err="signal: killed" wait=250ms last_line="serving on`) {
		t.Error("the log does not have the reason")
	}
	post(second.Address, "/exit", "")
	s.await("a", fleet.Ready, second.Epoch)
	if n := testutil.ToFloat64(s.agent.metrics.starts.WithLabelValues("a")); n != 3 {
		t.Errorf("%g starts", n)
	}
	if w := s.now("b"); w.Epoch != other.Epoch {
		t.Error("the other engine was started again too")
	}
	pids := s.agent.Processes()
	s.stop()
	for name, pid := range pids {
		if running(pid) {
			t.Errorf("process %d of %s is left", pid, name)
		}
		testkit.Eventually(t, name+" is gone", func() bool { return s.now(name).Address == "" })
	}
	if len(s.agent.Processes()) != 0 {
		t.Errorf("processes: %v", s.agent.Processes())
	}
	if got := s.states("b"); got != "starting ready gone" && got != "ready gone" && got != "starting ready draining gone" {
		t.Errorf("b was %s", got)
	}
}

// TestEngineThatDoesNotAnswerIsDown: it keeps its process, because it may be busy, and killing it would
// lose its cache. When it answers again the worker is the same as before.
func TestEngineThatDoesNotAnswerIsDown(t *testing.T) {
	s := run(t, Config{}, exec("a", "obey", "{port}"))
	before := s.await("a", fleet.Ready, 0)
	pid := s.agent.Processes()["a"]
	post(before.Address, "/set?health=500", "")
	down := s.await("a", fleet.Down, 0)
	post(before.Address, "/set?health=200", "")
	testkit.Eventually(t, "a is ready again", func() bool { return s.now("a").State == fleet.Ready })
	after := s.now("a")
	down.State = fleet.Ready
	if down != before || after != before || s.agent.Processes()["a"] != pid {
		t.Errorf("before %+v, down %+v, after %+v", before, down, after)
	}
	if !s.log.Contains(`level=WARN msg="engine does not answer; no requests go there until it does" worker=a err="probe /health: status 500"`) {
		t.Error("the log does not have the warning")
	}
}

// TestEnginesThatDoNotStart: an engine that cannot start is tried again, later each time, with its last
// line in the log. Other engines are not affected.
func TestEnginesThatDoNotStart(t *testing.T) {
	missing := exec("missing")
	missing.Command = []string{"/no/such/engine"}
	s := run(t, Config{}, missing, exec("broken", "broken"), exec("a", "obey", "{port}"))
	s.await("a", fleet.Ready, 0)
	testkit.Eventually(t, "both were started twice", func() bool {
		m := s.agent.metrics.starts
		return testutil.ToFloat64(m.WithLabelValues("missing")) >= 2 && testutil.ToFloat64(m.WithLabelValues("broken")) >= 2
	})
	for _, want := range []string{
		`worker=missing err="start /no/such/engine: fork/exec /no/such/engine: no such file or directory" wait=250ms`,
		`worker=broken err="exit status 1" wait=250ms last_line="out of memory"`,
	} {
		if !s.log.Contains(want) {
			t.Errorf("the log has no %s", want)
		}
	}
	for _, name := range []string{"missing", "broken"} {
		if strings.Contains(s.states(name), "ready") {
			t.Errorf("%s was %s", name, s.states(name))
		}
	}
}

// TestHardStop: a second stop kills engines that ignore SIGTERM instead of waiting for them.
func TestHardStop(t *testing.T) {
	hard, stopHard := context.WithCancel(context.Background())
	stopHard()
	s := run(t, Config{Hard: hard}, exec("a", "stubborn", "{port}"))
	s.await("a", fleet.Ready, 0)

	began := time.Now()
	s.stop()

	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if !s.log.Contains(`level=DEBUG msg="engine output" worker=a line="serving on `) {
		t.Error("the log does not have the engine's line")
	}
}

// TestNewReportsEveryWrongLaunch before any engine is started.
func TestNewReportsEveryWrongLaunch(t *testing.T) {
	bad := exec("c", "serve")
	bad.Args = map[string]string{"engineSpeedup": "10"}
	_, err := New(Config{
		Launches: []engine.Launch{exec("a", "x"), exec("a", "x"), exec("B", "x"), {Kind: "steam", Name: "d"}, bad}, Site: testSite(t),
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	want := `worker name "a" is there twice
worker name "B" is not valid
engine "steam" cannot be launched: use ` + engines.Choices((*engines.Kind).IsLaunched) + `
args.engineSpeedup of c is unknown to engine exec: it takes none`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg, newCacheMirror(0))
	m.starts.WithLabelValues("a")
	m.events.WithLabelValues("a")
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}
