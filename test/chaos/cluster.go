package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/busproxy"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/xds"
)

const (
	routers        = 2
	planes         = 2
	planners       = 2
	nodes          = 2
	enginesPerNode = 2
	lines          = 2
	envoys         = 2
	// blockSize is the default of the configuration, in tokens.
	blockSize = 16
	// blocks bounds the cache of an engine: it evicts after a minute.
	blocks = 8192
	// promptMemory bounds a router's memory of prompts, in bytes: it is full after some minutes, so that growth after that shows.
	promptMemory = 4 << 20
)

// cluster is a running cluster. Create it with [startCluster].
type cluster struct {
	url string // of the port that both Envoys listen on

	dir, stator, envoyPath string
	progress               io.Writer
	rng                    *rand.Rand
	parts                  map[string]*part
	admins                 []string // of the routers
	pages                  *http.Client
	lines                  []*line           // before the engines of the configuration
	bus                    []*busproxy.Proxy // before the bus, one for each router
	disks                  []*disk           // of the routers' logs
}

// part is a process of the cluster. It is started again with the same arguments after a fault.
type part struct {
	name  string
	start func() (ender, error)
	began time.Time
	ender
}

// ender is a running process.
type ender interface {
	PID() int
	Stop()
}

// startCluster starts a cluster, and returns when requests are served and all caches are exact.
func startCluster(ctx context.Context, o *options, progress io.Writer) (c *cluster, err error) {
	c = &cluster{stator: o.stator, progress: progress, rng: rand.New(rand.NewPCG(o.seed, 1)), parts: map[string]*part{},
		pages: &http.Client{Timeout: 10 * time.Second}}
	c.envoyPath, err = envoy.Find(o.envoy)
	if err != nil {
		return nil, err
	}
	c.dir, err = os.MkdirTemp("", "stator-chaos-")
	if err != nil {
		return nil, err
	}
	if o.keep {
		fmt.Fprintf(progress, "chaos: logs are in %s\n", c.dir)
	}

	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	if err := c.build(o.migration); err != nil {
		return nil, err
	}
	for _, name := range c.names() {
		if err := c.begin(name); err != nil {
			return nil, err
		}
	}
	return c, c.awaitCalm(ctx)
}

// build writes the configuration and describes the parts. A stream may be continued as often as migration says.
func (c *cluster) build(migration int) error {
	var at []string
	for range 2 + routers*3 + planes + lines*4 {
		a, err := loopback.Address()
		if err != nil {
			return err
		}
		at = append(at, a)
	}
	take := func() string {
		a := at[0]
		at = at[1:]
		return a
	}

	listen, bus := take(), take()
	c.url = "http://" + listen
	c.add("bus", "bus", "--listen-address", bus)
	workers := ""
	for i := range lines {
		engine := take()
		events := "tcp://" + take()
		replay := "tcp://" + take()
		name := fmt.Sprint("line ", i)
		c.add(name, "sim", "--listen-address", engine, "--kv-events", events, "--kv-replay", replay, "--blocks", fmt.Sprint(blocks))
		l, err := newLine(take(), engine, c.rng.Uint64())
		if err != nil {
			return err
		}
		c.lines = append(c.lines, l)
		workers += fmt.Sprintf("  - {name: line-%d, address: %q, engine: sim, kvEvents: %q, kvReplay: %q}\n",
			i, l.address(), events, replay)
	}

	launch := ""
	for i := range nodes {
		launch += fmt.Sprintf("  - {engine: sim, count: %d, node: n%d, survive: true, args: {blocks: %d}}\n", enginesPerNode, i, blocks)
	}
	file := filepath.Join(c.dir, "stator.yaml")
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\ngateway: {listen: %q}\nbus: {url: %q, leaseTTL: 3s}\n"+
		"prompts: {memoryBytes: %d}\nmodels:\n- name: sim\n"+
		"  path: \"builtin:sim\"\n  migration: {limit: %d}\n  launch:\n%s  workers:\n%s",
		config.APIVersion, config.Kind, listen, "nats://"+bus, promptMemory, migration, launch, workers)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}

	control := []string{"--config", file}
	for i := range routers {
		b, err := busproxy.New(bus)
		if err != nil {
			return err
		}
		c.bus = append(c.bus, b)
		d, err := newDisk(filepath.Join(c.dir, fmt.Sprintf("decisions-%d.jsonl", i)))
		if err != nil {
			return err
		}
		c.disks = append(c.disks, d)

		door, admin := take(), take()
		relay := take()
		c.admins = append(c.admins, admin)
		c.add(fmt.Sprint("router ", i), "extproc", "--config", file, "--bus", b.URL(), "--listen-address", door, "--admin-address", admin,
			"--relay-address", relay, "--decision-log", d.path)
		control = append(control, "--extproc-address", door, "--relay-address", relay)
	}
	for i := range planners {
		c.add(fmt.Sprint("planner ", i), "planner", "--config", file, "--admin-address", "127.0.0.1:0")
	}
	for i := range nodes {
		c.add(fmt.Sprint("agent ", i), "agent", "--config", file, "--node", fmt.Sprint("n", i), "--admin-address", "127.0.0.1:0",
			"--state-dir", c.stateDir(i), "--drain-time", "0s")
	}
	for i := range planes {
		address := take()
		c.add(fmt.Sprint("xds ", i), append([]string{"xds", "--listen-address", address, "--admin-address", "127.0.0.1:0"}, control...)...)
		c.addEnvoy(fmt.Sprint("envoy ", i), address)
	}
	return nil
}

func (c *cluster) stateDir(node int) string { return filepath.Join(c.dir, fmt.Sprint("state-", node)) }

// add describes a part of the program.
func (c *cluster) add(name string, args ...string) {
	log := filepath.Join(c.dir, strings.ReplaceAll(name, " ", "-")+".log")
	c.parts[name] = &part{name: name, start: func() (ender, error) { return process.StartChild(name, log, nil, c.stator, args...) }}
}

// addEnvoy describes an Envoy of a control plane. Both have the same listener, on one port.
func (c *cluster) addEnvoy(name, control string) {
	c.parts[name] = &part{name: name, start: func() (ender, error) {
		boot, err := xds.Bootstrap(xds.BootstrapSettings{NodeID: name, Admin: "127.0.0.1:0", MaxConnections: 10_000, XDS: control})
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(c.dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		path := filepath.Join(dir, "boot.json")
		if err := os.WriteFile(path, boot, 0o600); err != nil {
			return nil, err
		}
		return process.StartChild(name, filepath.Join(dir, "log"), nil, c.envoyPath, "--config-path", path, "--disable-hot-restart",
			"--concurrency", "1", "--log-level", "error")
	}}
}

// names returns the parts in the order of their start.
func (c *cluster) names() (list []string) {
	of := func(kind string, n int) {
		for i := range n {
			list = append(list, fmt.Sprint(kind, " ", i))
		}
	}
	list = append(list, "bus")
	of("line", lines)
	of("agent", nodes)
	of("planner", planners)
	of("router", routers)
	of("xds", planes)
	of("envoy", envoys)
	return list
}

func (c *cluster) begin(name string) (err error) {
	p := c.parts[name]
	p.ender, err = p.start()
	p.began = time.Now()
	return err
}

// stop ends all parts and engines, the last started first.
func (c *cluster) stop() {
	for _, name := range slices.Backward(c.names()) {
		if p := c.parts[name]; p != nil && p.ender != nil {
			_ = syscall.Kill(p.PID(), syscall.SIGCONT) // a stopped one would not end
			p.Stop()
		}
	}

	for i := range nodes {
		if _, err := os.Stat(c.stateDir(i)); err != nil {
			continue
		}
		stopper, err := process.StartChild("stop engines", filepath.Join(c.dir, "stop.log"), nil, c.stator, "agent",
			"--state-dir", c.stateDir(i), "--stop-engines")
		if err == nil {
			_ = stopper.Await(context.Background(), time.Minute, func(context.Context) error { return errors.New("it runs") })
		}
	}

	for _, l := range c.lines {
		l.close()
	}
	for _, b := range c.bus {
		b.Close()
	}
	for _, d := range c.disks {
		d.close()
	}
	if !slices.Contains(os.Args, "--keep") {
		_ = os.RemoveAll(c.dir)
	}
}

// enginePID returns the process id of an engine that an agent has started; 0 if the last fault has killed it, and its agent has not
// started it again.
func (c *cluster) enginePID(node, i int) (int, error) {
	files, err := filepath.Glob(filepath.Join(c.stateDir(node), "*.json"))
	if err != nil || len(files) <= i {
		return 0, err
	}
	text, err := os.ReadFile(files[i])
	if err != nil {
		return 0, err
	}
	var record struct{ PID int }
	if err := json.Unmarshal(text, &record); err != nil || record.PID < 2 {
		return 0, fmt.Errorf("%s has no process id: %w", files[i], err)
	}
	return record.PID, nil
}

// calmWithin bounds the time until a cluster is whole again after a fault.
const calmWithin = 90 * time.Second

// awaitCalm returns when every router has all engines ready, and exact caches of those with an agent, and both Envoys serve decisions. No
// agent keeps the cache of an engine behind a line: a router that starts later than its oldest events knows only a part of it.
func (c *cluster) awaitCalm(ctx context.Context) error {
	want := lines + nodes*enginesPerNode
	return process.Await(ctx, calmWithin, func(ctx context.Context) error {
		for i := range c.admins {
			var page struct {
				Ranks []process.Rank
			}
			if err := c.page(ctx, i, "/debug/fleet", &page); err != nil {
				return err
			}
			known := 0
			var not []string
			for _, r := range page.Ranks {
				if r.State == "ready" && (r.Cache == "exact" || strings.HasPrefix(r.Worker, "line-")) {
					known++
					continue
				}
				not = append(not, fmt.Sprintf("%s is %s, and its cache %s", r.Worker, r.State, r.Cache))
			}
			if known != want {
				return fmt.Errorf("router %d knows the caches of %d of %d engines: %s", i, known, want, strings.Join(not, "; "))
			}
		}
		l := newLoad(c.url, &options{clients: 1, tokens: 2}, c.progress)
		for i := range 8 { // either Envoy, by the kernel's choice
			body := fmt.Appendf(nil, `{"model":"sim","messages":[{"role":"user","content":"Calm %d?"}],"max_tokens":2}`, i)
			if _, err := l.sendAgain(ctx, body); err != nil {
				return err
			}
		}
		return nil
	})
}

// page reads a page of a router's admin port.
func (c *cluster) page(ctx context.Context, router int, path string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.admins[router]+path+"?format=json", nil)
	if err != nil {
		return err
	}
	resp, err := c.pages.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, resp.Body)
		return fmt.Errorf("%s of router %d: %s", path, router, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// promised returns the tokens that a decision promised to find. Either router may have decided.
func (c *cluster) promised(ctx context.Context, id string) (int, error) {
	var last error
	for i := range c.admins {
		var d struct {
			Overlap int `json:"overlap_blocks"`
		}
		last = c.page(ctx, i, "/debug/decisions/"+id, &d)
		if last == nil {
			return d.Overlap * blockSize, nil
		}
	}
	return 0, last
}

// bookings waits until no router has a booking, and returns the number that are left after 20 s.
func (c *cluster) bookings(ctx context.Context) (left int) {
	_ = process.Await(ctx, 20*time.Second, func(ctx context.Context) error {
		left = 0
		for i, admin := range c.admins {
			n, err := c.sample(ctx, admin, "stator_route_bookings")
			if err != nil {
				return fmt.Errorf("router %d: %w", i, err)
			}
			left += n
		}
		if left > 0 {
			return errors.New("bookings are left")
		}
		return nil
	})
	return left
}

// sample returns the value of a metric without labels.
func (c *cluster) sample(ctx context.Context, admin, name string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.pages.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(l, name+" "); found {
			var n float64
			_, err := fmt.Sscan(value, &n)
			return int(n), err
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

func (c *cluster) random(n int) int { return c.rng.IntN(n) }
