package workeragent

import (
	"bytes"
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
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/workeragent/engine"
)

// site is a bus, an agent on it, and what others see of its workers.
type site struct {
	t     *testing.T
	bus   *bus.Bus
	agent *Agent
	log   *output
	stop  func() // stops the agent and waits for it

	mu   sync.Mutex
	seen []fleet.Worker // guarded by mu; every change, gone workers with no address
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func newBus(t *testing.T) *bus.Bus {
	e, err := bus.Embed(bus.EmbedConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	b, err := bus.Connect(t.Context(), bus.Config{Embedded: e, Cluster: "test", LeaseTTL: time.Second, Name: t.Name(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// run runs an agent that looks at its engines often.
func run(t *testing.T, cfg Config, launches ...engine.Launch) *site {
	s := &site{t: t, bus: newBus(t), log: &output{}}
	cfg.Launches, cfg.Bus, cfg.Metrics = launches, s.bus, prometheus.NewRegistry()
	cfg.Log = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.pace = pace{starting: 5 * time.Millisecond, loads: 20 * time.Millisecond, healthEvery: 1, unhealthy: 3}
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
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
		}
	})
	return s
}

func (s *site) see(name string, w *fleet.Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w == nil {
		w = &fleet.Worker{Name: name}
	}
	s.seen = append(s.seen, *w)
}

// now is the worker as others see it.
func (s *site) now(name string) fleet.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range slices.Backward(s.seen) {
		if w.Name == name {
			return w
		}
	}
	return fleet.Worker{}
}

// story is what others saw of a worker: its states, and "gone".
func (s *site) story(name string) string {
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
func (s *site) await(name string, state fleet.State, after uint64) fleet.Worker {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%s is %s", name, state), func() bool {
		w := s.now(name)
		return w.Address != "" && w.State == state && w.Epoch > after
	})
	return s.now(name)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// exec is the launch of an engine of this test binary.
func exec(name string, words ...string) engine.Launch {
	return engine.Launch{Kind: "exec", Name: name, Model: "m", BlockSize: 16, Command: append([]string{os.Args[0]}, words...)}
}

func running(pid int) bool { return pid != 0 && syscall.Kill(pid, 0) == nil }

// An engine is starting, then ready; when it dies it is started again as somebody new; when the
// agent stops it is gone, and so is its process.
func TestLife(t *testing.T) {
	s := run(t, Config{}, exec("a", "obey", "{port}"), exec("b", "obey", "{port}"))
	first := s.await("a", fleet.Ready, 0)
	other := s.await("b", fleet.Ready, 0)
	if first.Model != "m" || first.Engine != "exec" || first.Ranks != 1 || first.BlockSize != 16 || first.Epoch == 0 {
		t.Errorf("it is said to be %+v", first)
	}
	pid := s.agent.Processes()["a"]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := s.await("a", fleet.Ready, first.Epoch)
	if second.Address == first.Address {
		t.Error("it has come back at an address where the old one may still be believed to be")
	}
	if !strings.Contains(s.log.String(), `msg="engine ended; starting it again" worker=a err="signal: killed" wait=250ms last_line="serving on`) {
		t.Error("the log does not say why it ended")
	}
	tell(second.Address, "/exit", "")
	s.await("a", fleet.Ready, second.Epoch)
	if n := testutil.ToFloat64(s.agent.metrics.restarts.WithLabelValues("a")); n != 3 {
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
		eventually(t, name+" is gone", func() bool { return s.now(name).Address == "" })
	}
	if len(s.agent.Processes()) != 0 {
		t.Errorf("processes: %v", s.agent.Processes())
	}
	if got := s.story("b"); got != "starting ready gone" && got != "ready gone" && got != "starting ready draining gone" {
		t.Errorf("b was %s", got)
	}
}

// An engine that lives but does not answer is down, and keeps its process: it may be busy, and
// killing it would lose its cache. When it answers again it is the same as before.
func TestUnhealthy(t *testing.T) {
	s := run(t, Config{}, exec("a", "obey", "{port}"))
	before := s.await("a", fleet.Ready, 0)
	pid := s.agent.Processes()["a"]
	tell(before.Address, "/set?health=500", "")
	down := s.await("a", fleet.Down, 0)
	tell(before.Address, "/set?health=200", "")
	eventually(t, "a is ready again", func() bool { return s.now("a").State == fleet.Ready })
	after := s.now("a")
	down.State = fleet.Ready
	if down != before || after != before || s.agent.Processes()["a"] != pid {
		t.Errorf("before %+v, down %+v, after %+v", before, down, after)
	}
	if !strings.Contains(s.log.String(), `level=WARN msg="engine does not answer; no requests go there until it does" worker=a err="probe /health: status 500"`) {
		t.Error("the log does not say so")
	}
}

// One that cannot be started is tried again and again, later each time, with its last words in
// the log; it is in nobody's way.
func TestEnginesThatDoNotStart(t *testing.T) {
	missing := exec("missing")
	missing.Command = []string{"/no/such/engine"}
	s := run(t, Config{}, missing, exec("broken", "broken"), exec("a", "obey", "{port}"))
	s.await("a", fleet.Ready, 0)
	eventually(t, "both were started twice", func() bool {
		m := s.agent.metrics.restarts
		return testutil.ToFloat64(m.WithLabelValues("missing")) >= 2 && testutil.ToFloat64(m.WithLabelValues("broken")) >= 2
	})
	for _, want := range []string{
		`worker=missing err="start /no/such/engine: fork/exec /no/such/engine: no such file or directory" wait=250ms`,
		`worker=broken err="exit status 1" wait=250ms last_line="out of memory"`,
	} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("the log has no %s", want)
		}
	}
	for _, name := range []string{"missing", "broken"} {
		if strings.Contains(s.story(name), "ready") {
			t.Errorf("%s was %s", name, s.story(name))
		}
	}
}

// Whoever stops for the second time does not wait for engines that do not want to.
func TestHardStop(t *testing.T) {
	hard, now := context.WithCancel(context.Background())
	now()
	lines := make(chan string, 100)
	s := run(t, Config{Hard: hard, EngineLine: func(worker, line string) { lines <- worker + " said " + line }}, exec("a", "stubborn", "{port}"))
	s.await("a", fleet.Ready, 0)
	began := time.Now()
	s.stop()
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if line := <-lines; !strings.HasPrefix(line, "a said serving on ") {
		t.Errorf("its line: %q", line)
	}
}

func TestBackoff(t *testing.T) {
	var b backoff
	var waits []time.Duration
	for range 10 {
		waits = append(waits, b.after(time.Second))
	}
	ms := time.Millisecond
	want := []time.Duration{250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 30000 * ms, 30000 * ms, 30000 * ms}
	if !slices.Equal(waits, want) {
		t.Errorf("waits %v", waits)
	}
	if w := b.after(time.Minute + 1); w != 250*ms {
		t.Errorf("after a long life %s", w)
	}
}

// Everything that is wrong is said before anything is started.
func TestNewRefuses(t *testing.T) {
	bad := exec("c", "serve")
	bad.Args = map[string]string{"speed": "10"}
	_, err := New(Config{
		Launches: []engine.Launch{exec("a", "x"), exec("a", "x"), exec("B", "x"), {Kind: "steam", Name: "d"}, bad},
		Metrics:  prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	want := `worker name "a" is not valid or is there twice
worker name "B" is not valid or is there twice
engine "steam" cannot be launched: use sim, llamacpp, vllm or exec
args.speed of c is unknown to engine exec: it takes none`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg, newKnowledge(0))
	m.restarts.WithLabelValues("a")
	m.events.WithLabelValues("a")
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}
