package scenario

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stator-project/stator/envoy"
)

// previousRelease is the commit whose program plays the release before this one. It is a day older, and speaks today's forms of the bus;
// with the first release its tag takes this place.
const previousRelease = "7457057c41b4808e71947f03cc2ce295d2e676c0"

// buildPrevious builds the program of the previous release from the repository's history. A clone without history
// cannot play the upgrade.
func buildPrevious(t *testing.T) string {
	t.Helper()
	git := exec.Command("git", "archive", "--format=tar", previousRelease)
	git.Dir = filepath.Join("..", "..") // it archives its folder alone
	archive, err := git.Output()
	if err != nil {
		t.Skipf("the history of this clone lacks %s, so there is no earlier release to upgrade from: %v", previousRelease[:12], err)
	}
	dir := t.TempDir()
	if err := unpack(archive, dir); err != nil {
		t.Fatal(err)
	}

	program := filepath.Join(dir, "stator-before")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "./cmd/stator")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", previousRelease, err, out)
	}
	return program
}

// unpack writes the files of a tar archive into a folder.
func unpack(archive []byte, dir string) error {
	files := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}

		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		data, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
}

// rolling is a cluster whose parts are replaced one after the other.
type rolling struct {
	*gateway
	parts   map[string]*command
	args    map[string][]string
	routers []*gateway
}

// run starts a part, or replaces the one that runs, with a program.
func (r *rolling) run(program, part string) {
	r.t.Helper()
	if c := r.parts[part]; c != nil {
		c.stop()
	}
	r.parts[part] = startCommand(r.t, exec.Command(program, r.args[part]...))
}

// readyRank matches the state of a rank that gets requests.
var readyRank = regexp.MustCompile(`"state":\s*"ready"`)

// awaitExact waits until all four workers are ready and their caches exact, at both routers.
func (r *rolling) awaitExact(after string) {
	r.t.Helper()
	for i, g := range r.routers {
		eventually(r.t, fmt.Sprintf("after %s, all caches are exact at router %d", after, i), func() error {
			text, err := get("http://" + g.admin + "/metrics")
			if err != nil {
				return err
			}
			if n := sample(text, "stator_feed_ranks", `state="exact"`); n != 4 {
				return fmt.Errorf("%g ranks are exact", n)
			}
			// The page of the release before has another form around the ranks.
			page, err := g.read("/debug/fleet?format=json")
			if err != nil {
				return err
			}
			if n := len(readyRank.FindAllString(page, -1)); n != 4 {
				return fmt.Errorf("%d ranks are ready", n)
			}
			return nil
		})
	}
}

// TestRollingUpgrade replaces the parts of a running cluster, one after the other and in an order of chance, by those of this release: the
// bus, the routers, the control planes, the planners and the agents. So routers of each release work with agents and plans of the other.
// All caches are exact after every step, and no request fails. Routers decide all of them, but for those that a router has in hand at the
// moment when Envoy gets another description of the routers. Then one of each but the bus goes back to the release before.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	before := buildPrevious(t)
	busAt := freeAddress(t)
	listen := freeAddress(t)
	file := configFile(t, fmt.Sprintf(`
gateway: {listen: "%s", decisionTimeout: 5s}
bus: {url: "nats://%s", leaseTTL: 3s}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2, node: a}, {engine: sim, count: 2, node: b}]
`, listen, busAt))

	r := &rolling{gateway: &gateway{t: t, url: "http://" + listen}, parts: map[string]*command{}}
	r.args = map[string][]string{
		"bus": {"bus", "--listen-address", busAt, "--lease-ttl", "3s"},
	}
	xdsAt := []string{freeAddress(t), freeAddress(t)}
	for i, at := range xdsAt {
		r.args[fmt.Sprint("xds ", i)] = []string{"xds", "--config", file, "--listen-address", at, "--admin-address", "127.0.0.1:0"}
		r.args[fmt.Sprint("planner ", i)] = []string{"planner", "--config", file, "--admin-address", "127.0.0.1:0"}
	}
	for i := range 2 {
		at, admin := freeAddress(t), freeAddress(t)
		r.args[fmt.Sprint("router ", i)] = []string{"extproc", "--config", file, "--listen-address", at, "--admin-address", admin}
		for j := range xdsAt {
			name := fmt.Sprint("xds ", j)
			r.args[name] = append(r.args[name], "--extproc-address", at)
		}
		r.routers = append(r.routers, &gateway{t: t, admin: admin})
	}
	for _, node := range []string{"a", "b"} {
		r.args["agent "+node] = []string{"agent", "--node", node, "--config", file, "--admin-address", "127.0.0.1:0"}
	}
	parts := []string{"bus", "router 0", "agent a", "router 1", "xds 0", "planner 0", "agent b", "xds 1", "planner 1"}
	for _, part := range parts {
		r.run(before, part)
	}
	startEnvoyOf(t, strings.Join(xdsAt, ","))
	r.awaitExact("the start")
	eventually(t, "requests are served", func() error {
		_, err := r.tryChat(t.Context(), []message{{"user", "hello"}}, 1)
		return err
	})

	const clients = 2
	load, unpicked := r.pickedLoad(clients)
	seed := rand.Uint64()
	t.Logf("seed of the order: %d", seed)
	order := rand.New(rand.NewPCG(seed, 0))
	order.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	for _, part := range parts {
		r.run(binary, part)
		r.awaitExact("the upgrade of " + part)
		load.more(t, 50)
		switch n := unpicked.Swap(0); {
		case n == 0 || strings.HasPrefix(part, "router"):
			// A router of the release before refuses streams while Envoys still send them there.
		case n <= clients && strings.HasPrefix(part, "xds"):
			// Releases describe the routers to Envoys in different ways, and an Envoy that is told of it ends the streams to them.
			t.Logf("Envoy ended the decisions of %d requests when it was told of the routers by %s", n, part)
		default:
			t.Errorf("for %d requests no router decided during the upgrade of %s", n, part)
		}
	}
	for _, part := range []string{"router 1", "agent a", "xds 0", "planner 1"} {
		r.run(before, part)
		r.awaitExact("the return of " + part)
		load.more(t, 50)
		if n := unpicked.Swap(0); n > clients || n > 0 && !strings.HasPrefix(part, "xds") {
			t.Errorf("for %d requests no router decided during the return of %s", n, part)
		}
	}

	load.stop()
	if n := load.failed.Load(); n != 0 {
		t.Errorf("%d of %d requests failed, the last with %v", n, n+load.ok.Load(), load.lastError.Load())
	}
}

// startEnvoyOf runs an Envoy of a control plane until the test ends.
func startEnvoyOf(t *testing.T, xdsAt string) {
	t.Helper()
	boot, err := exec.Command(binary, "envoy", "bootstrap", "--admin-address", "127.0.0.1:0", "--xds-address", xdsAt).Output()
	if err != nil {
		t.Fatal(err)
	}
	e, err := envoy.Start(envoy.Config{Path: envoyPath(t), Bootstrap: boot, Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop(context.Background()) })
}
