package scenario

import (
	"fmt"
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
