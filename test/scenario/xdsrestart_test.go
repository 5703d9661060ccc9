package scenario

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestControlPlaneRestartKeepsListedWorkers: while no router decides, the control plane starts again, and its engines take long
// to answer for their health. Envoy keeps the workers that it has meanwhile, and no request fails.
func TestControlPlaneRestartKeepsListedWorkers(t *testing.T) {
	t.Parallel()
	var workers []string
	var doors []*door
	for _, name := range []string{"a", "b"} {
		engine := freeAddress(t)
		start(t, "sim", "--name", name, "--listen-address", engine, "--log-level", "warn")
		d := openDoor(t, engine)
		d.set("answer late for health")
		doors = append(doors, d)
		workers = append(workers, fmt.Sprintf("name: %s, address: %q", name, d.address))
	}
	p := startListedParts(t, workers...)
	p.extproc.kill()
	eventually(t, "Envoy has the workers from the first control plane", func() error {
		_, err := p.tryChat(t.Context(), []message{{"user", "hi"}}, 4)
		return err
	})
	l := p.load(4)
	defer l.stop()
	l.more(t, 20)

	p.xds.kill()
	p.startXDS()
	eventually(t, "Envoy is connected again", func() error {
		n, err := p.envoy.Stat(t.Context(), "control_plane.connected_state")
		if err == nil && n == 0 {
			err = errNotYet
		}
		return err
	})
	for _, d := range doors {
		p.awaitPassed(d)
	}
	l.more(t, 100)
	l.stop()
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed: %v", n, n+l.ok.Load(), l.lastError.Load())
	}
}

// TestTwoControlPlanes: Envoy knows two control planes, of which each is killed in turn while the fleet changes. No request fails, and
// Envoy gets the changes from the other one.
func TestTwoControlPlanes(t *testing.T) {
	t.Parallel()
	p := startPartsFor(t, partsSettings{workers: 1, secondXDS: true})
	second := func() *command {
		return start(t, "xds", "--config", p.file, "--listen-address", p.xdsBeside, "--extproc-address", p.extprocAt, "--admin-address", "127.0.0.1:0")
	}
	beside := second()
	l := p.load(4)
	l.more(t, 40)

	text, err := os.ReadFile(p.file)
	if err != nil {
		t.Fatal(err)
	}
	// Each count is another one: Envoy has got it from the control plane that is left when its stats have as many workers.
	count := func(n int) {
		t.Helper()
		changed := strings.Replace(string(text), "count: 1", fmt.Sprintf("count: %d", n), 1)
		if err := os.WriteFile(p.file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("Envoy has %d workers", n), func() error {
			got, err := p.envoy.Stat(t.Context(), "cluster.pool/sim.membership_healthy")
			if err == nil && got != n {
				err = fmt.Errorf("it has %d", got)
			}
			return err
		})
	}
	for round := range 2 {
		p.xds.kill()
		count(2 + 2*round)
		p.startXDS()
		l.more(t, 40)
		beside.kill()
		count(3 + 2*round)
		beside = second()
		l.more(t, 40)
	}
	l.stop()
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed: %v", n, n+l.ok.Load(), l.lastError.Load())
	}
}
