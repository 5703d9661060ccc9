package scenario

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/envoy"
)

// parts is a fleet of which each part is a process of its own.
type parts struct {
	*gateway
	file                       string
	busURL                     string
	extprocAt, xdsAt           string
	xdsBeside                  string // where a second control plane may listen; empty if Envoy does not know one
	bus, agent, extproc, xds   *command
	planner                    *command
	envoy                      *envoy.Process
	extprocAdmin, plannerAdmin string
	xdsFlags                   []string // further ones
	cluster                    []string // flags of all that finds workers
}

// startParts runs bus, agent, planner, extproc and xds, and an Envoy that finds xds late.
func startParts(t *testing.T, workers int) *parts {
	t.Helper()
	return startPartsWith(t, workers, "")
}

// startPartsWith is startParts with further keys of the launch, each after a comma, and further flags of the agent.
func startPartsWith(t *testing.T, workers int, keys string, flags ...string) *parts {
	t.Helper()
	return startPartsFor(t, partsSettings{workers: workers, launch: keys, agent: flags})
}

// partsSettings is what differs between fleets of parts.
type partsSettings struct {
	workers         int
	gateway, launch string   // further keys, each after a comma
	models          string   // the configuration from models on, in place of workers and launch
	agent, xds      []string // further flags
	secondXDS       bool     // Envoy may connect to parts.xdsBeside, too
	cluster         []string // flags that name the API server whose pods are the workers; without them an agent starts engines
}

// startPartsFor is startParts with settings.
func startPartsFor(t *testing.T, s partsSettings) *parts {
	t.Helper()
	listen := freeAddress(t)
	p := &parts{
		gateway:   &gateway{t: t, url: "http://" + listen},
		extprocAt: freeAddress(t), xdsAt: freeAddress(t), extprocAdmin: freeAddress(t), plannerAdmin: freeAddress(t),
	}
	if s.secondXDS {
		p.xdsBeside = freeAddress(t)
	}
	busAt := freeAddress(t)
	p.busURL = "nats://" + busAt
	p.gateway.admin = p.extprocAdmin
	models := cmp.Or(s.models,
		fmt.Sprintf(`models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: %d%s}]}]`, s.workers, s.launch))
	p.file = configFile(t, fmt.Sprintf(`
gateway: {listen: "%s", decisionTimeout: 2s%s}
bus: {url: "%s", leaseTTL: 2s}
%s
`, listen, s.gateway, p.busURL, models))
	p.xdsFlags = s.xds

	p.startEnvoy() // first: its control plane is late
	p.bus = start(t, "bus", "--listen-address", busAt)
	p.cluster = s.cluster
	if s.cluster == nil {
		p.agent = start(t, append([]string{"agent", "--config", p.file, "--admin-address", "127.0.0.1:0"}, s.agent...)...)
	}
	p.planner = start(t, append([]string{"planner", "--config", p.file, "--admin-address", p.plannerAdmin}, p.cluster...)...)
	p.startExtProc()
	p.startXDS()
	p.await()
	return p
}

// startEnvoy starts an Envoy that connects to xds.
func (p *parts) startEnvoy() {
	p.t.Helper()
	control := p.xdsAt
	if p.xdsBeside != "" {
		// One by its IP and one by its name, as a cluster's DNS has it.
		control += "," + strings.Replace(p.xdsBeside, "127.0.0.1", "localhost", 1)
	}
	boot, err := exec.Command(binary, "envoy", "bootstrap", "--admin-address", "127.0.0.1:0", "--xds-address", control).Output()
	if err != nil {
		p.t.Fatal(err)
	}
	p.envoy, err = envoy.Start(envoy.Config{Path: envoyPath(p.t), Bootstrap: boot, Dir: p.t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { p.envoy.Stop(context.Background()) })
}

func (p *parts) startExtProc() {
	p.t.Helper()
	p.extproc = start(p.t, append([]string{"extproc", "--config", p.file, "--listen-address", p.extprocAt, "--admin-address", p.extprocAdmin},
		p.cluster...)...)
}

func (p *parts) startXDS() {
	p.t.Helper()
	p.xds = start(p.t, append([]string{"xds", "--config", p.file, "--listen-address", p.xdsAt, "--extproc-address", p.extprocAt,
		"--admin-address", "127.0.0.1:0"}, slices.Concat(p.xdsFlags, p.cluster)...)...)
}

func (p *parts) await() {
	p.t.Helper()
	eventually(p.t, "the router is ready", func() error {
		_, err := get("http://" + p.extprocAdmin + "/readyz")
		return err
	})
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	if err := p.envoy.WaitReady(ctx); err != nil {
		p.t.Fatal(err)
	}
	p.awaitPicks()
}

// awaitPicks sends requests until one is served as picked. Until then Envoy has no healthy router or no healthy
// worker, and requests that follow may go unpicked.
func (p *parts) awaitPicks() {
	p.t.Helper()
	before := p.served("as_picked")
	eventually(p.t, "a request is served as picked", func() error {
		_, err := p.tryChat(p.t.Context(), []message{{"user", "hello"}}, 1)
		if err == nil && p.served("as_picked") == before {
			err = errNotYet
		}
		return err
	})
}

// load sends chats until stop, and counts.
type load struct {
	ok, failed atomic.Int64
	lastError  atomic.Value
	stop       func()
}

func (g *gateway) load(clients int) *load {
	l, _ := g.pickedLoad(clients)
	return l
}

// pickedLoad is load, with the number of answers of which no router has picked the worker. Envoy's own reports of them arrive later, and
// also have the requests before the load.
func (g *gateway) pickedLoad(clients int) (l *load, unpicked *atomic.Int64) {
	unpicked = new(atomic.Int64)
	return g.loadOf(clients, func(client, i int) error {
		r, err := g.tryChat(context.Background(), []message{{"user", fmt.Sprintf("client %d asks question %d", client, i)}}, 4)
		if err == nil && r.decision == "" {
			unpicked.Add(1)
		}
		return err
	}), unpicked
}

// loadOf has so many clients call send, one time after the other, until stop.
func (g *gateway) loadOf(clients int, send func(client, i int) error) *load {
	l := &load{}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := send(c, i); err != nil {
					l.failed.Add(1)
					l.lastError.Store(err.Error())
					continue
				}
				l.ok.Add(1)
			}
		})
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	g.t.Cleanup(l.stop)
	return l
}

// more waits until n more requests have been answered.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	from := l.ok.Load() + l.failed.Load()
	eventually(t, "requests go on", func() error {
		if l.ok.Load()+l.failed.Load() < from+n {
			return errNotYet
		}
		return nil
	})
}

// TestExtProcKilledAndRestarted: under load no request fails, and the restarted router counts those that went on unpicked.
func TestExtProcKilledAndRestarted(t *testing.T) {
	t.Parallel()
	p := startParts(t, 2)
	l := p.load(8)
	l.more(t, 100)
	p.extproc.kill()
	l.more(t, 200)
	p.startExtProc()
	eventually(t, "the router is back", func() error {
		_, err := get("http://" + p.extprocAdmin + "/readyz")
		return err
	})
	before := p.served("as_picked")
	eventually(t, "requests are picked again", func() error {
		if n := p.served("as_picked"); n < before+100 {
			return fmt.Errorf("%d", n-before)
		}
		return nil
	})
	l.stop()
	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d of %d requests failed: %v", n, n+l.ok.Load(), l.lastError.Load())
	}
	eventually(t, "the unpicked are counted", func() error {
		if p.served("unpicked") == 0 {
			return errNotYet
		}
		return nil
	})
	if n := p.served("misdirected"); n != 0 {
		t.Errorf("%d requests were misdirected", n)
	}
	p.assertNothingBooked()
}

// TestControlPlaneKilledAndRestarted: without a control plane traffic and decisions go on; when it is back, changes reach Envoy again.
func TestControlPlaneKilledAndRestarted(t *testing.T) {
	t.Parallel()
	p := startParts(t, 2)
	before := p.served("misdirected")

	l, unpicked := p.pickedLoad(4)
	l.more(t, 50)
	p.xds.kill()
	l.more(t, 200)
	p.startXDS()
	l.more(t, 100)
	l.stop()
	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d requests failed: %v", n, l.lastError.Load())
	}
	p.assertNothingBooked()
	if n, misdirected := unpicked.Load(), p.served("misdirected")-before; n != 0 || misdirected != 0 {
		t.Errorf("%d requests were unpicked, and %d misdirected", n, misdirected)
	}
}

// TestBusKilledAndRestarted: while the bus is gone requests are served and caches are stale. It comes back empty: workers return, and
// caches are exact.
func TestBusKilledAndRestarted(t *testing.T) {
	t.Parallel()
	p := startParts(t, 2)
	eventually(t, "caches are known exactly", p.knowledge("exact", 2))
	l := p.load(4)
	l.more(t, 50)
	p.bus.kill()
	eventually(t, "knowledge is stale", p.knowledge("stale", 2))
	l.more(t, 200)
	p.bus = start(t, "bus", "--listen-address", strings.TrimPrefix(p.busURL, "nats://"))
	eventually(t, "caches are known exactly again", p.knowledge("exact", 2))
	l.more(t, 100)
	l.stop()
	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d requests failed: %v", n, l.lastError.Load())
	}
	p.assertNothingBooked()
}

func (p *parts) knowledge(state string, ranks float64) func() error {
	return func() error {
		if n := p.metric("stator_feed_ranks", `state="`+state+`"`); n != ranks {
			page, _ := get("http://" + p.extprocAdmin + "/debug/feed") // an explanation, if it can be had
			return fmt.Errorf("%g ranks are %s\n%s", n, state, page)
		}
		return nil
	}
}

// TestAgentPausesLongerThanItsLeases: an agent that hangs does not take its healthy engines out. They serve every
// request without their leases, and their caches are stale until the agent is back.
func TestAgentPausesLongerThanItsLeases(t *testing.T) {
	t.Parallel()
	p := startParts(t, 2)
	eventually(t, "both caches are exact", p.knowledge("exact", 2))
	l := p.load(2)
	const left = "worker without a lease serves"
	before := map[*command]int{} // a busy machine may have delayed the agent before
	for _, part := range []*command{p.extproc, p.xds} {
		before[part] = strings.Count(part.out.String(), left)
	}
	if err := p.agent.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, part := range []*command{p.extproc, p.xds} {
		eventually(t, "the leases have expired", func() error {
			if n := strings.Count(part.out.String(), left) - before[part]; n < 2 {
				return fmt.Errorf("%d workers without a lease", n)
			}
			return nil
		})
	}
	l.more(t, 100)
	eventually(t, "the caches are stale", p.knowledge("stale", 2))
	if n := len(p.fleet()); n != 2 {
		t.Errorf("%d workers", n)
	}

	if err := p.agent.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the caches are exact", p.knowledge("exact", 2))
	l.stop()
	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d requests failed, the last with %v", n, l.lastError.Load())
	}
}

// TestAgentAndEnginesKilled: engines that refuse connections leave the fleet soon after their leases, and are back
// with their agent.
func TestAgentAndEnginesKilled(t *testing.T) {
	t.Parallel()
	p := startParts(t, 2)
	p.agent.kill()
	eventually(t, "the workers have left", func() error {
		if n := len(p.fleet()); n != 0 {
			return fmt.Errorf("%d workers", n)
		}
		return nil
	})
	r, err := p.send(t.Context(), http.MethodPost, chatPath, []byte(`{"model":"sim","messages":[{"role":"user","content":"hi"}]}`))
	if err != nil || r.status != 503 || r.error.Message == "" || r.header.Get("retry-after") == "" {
		t.Errorf("without workers: status %d, retry-after %q, %v: %s", r.status, r.header.Get("retry-after"), err, r.body)
	}
	p.agent = start(t, "agent", "--config", p.file, "--admin-address", "127.0.0.1:0")
	eventually(t, "the workers are back", func() error {
		_, err := p.tryChat(t.Context(), []message{{"user", "hello again"}}, 1)
		return err
	})
}

// TestPlanIsPublished: the planner publishes how many replicas there should be, with the reason.
func TestPlanIsPublished(t *testing.T) {
	t.Parallel()
	p := startParts(t, 2)
	eventually(t, "the plan counts the ready workers", func() error {
		text, err := get("http://" + p.plannerAdmin + "/debug/plan")
		if err != nil {
			return err
		}
		if !strings.Contains(text, "the configuration names that many") || !strings.Contains(text, "2         2") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// TestWorkerKilledBeforeItsHeaders: the client notices nothing, because Envoy retries the next worker. The engine is started again in
// a new epoch.
func TestWorkerKilledBeforeItsHeaders(t *testing.T) {
	t.Parallel()
	g := up(t, "--workers", "2")
	l := g.load(8)
	l.more(t, 50)
	// Short prompts may all go to one of the workers, where the other one was slow at its start.
	var victim rank
	eventually(t, "a worker has requests", func() error {
		for _, r := range g.fleet() {
			if r.Booked > victim.Booked {
				victim = r
			}
		}
		if victim.Booked == 0 {
			return errNotYet
		}
		return nil
	})
	pid := childWith(t, g.up.cmd.Process.Pid, victim.Address)
	// A stopped engine accepts connections and answers nothing: what it is sent now has no
	// headers when it dies.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "requests wait for the stopped engine", func() error {
		for _, r := range g.fleet() {
			if r.Worker == victim.Worker && r.Booked > 0 {
				return nil
			}
		}
		return errNotYet
	})
	time.Sleep(50 * time.Millisecond) // the booking precedes the connection by a moment
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.more(t, 100)
	eventually(t, "the worker is back", func() error {
		for _, r := range g.fleet() {
			if r.Worker == victim.Worker && r.State == "ready" && r.Address != victim.Address {
				return nil
			}
		}
		return errNotYet
	})
	l.more(t, 100)
	l.stop()
	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d requests failed: %v", n, l.lastError.Load())
	}
	eventually(t, "a request was retried", func() error {
		if g.served("retried") == 0 {
			return errNotYet
		}
		return nil
	})
	if n := g.served("unpicked") + g.served("misdirected"); n != 0 {
		t.Errorf("%d requests were unpicked or misdirected", n)
	}
	g.assertNothingBooked()
}
