package discovery_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// engine is an engine's HTTP server whose health can be set.
type engine struct {
	*httptest.Server
	status atomic.Int32
	asked  atomic.Int32 // requests so far
}

func startEngine(t *testing.T) *engine {
	e := &engine{}
	e.status.Store(http.StatusOK)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		e.asked.Add(1)
		w.WriteHeader(int(e.status.Load()))
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *engine) worker(name string) fleet.Worker {
	w := worker(name)
	w.Address = e.Listener.Addr().String()
	return w
}

// silentAddress returns an address that accepts connections and never answers.
func silentAddress(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

// TestExpiredLeaseOfHealthyEngine: the worker stays while its engine answers, is as its lease describes it when that
// is back, and leaves when its lease is removed.
func TestExpiredLeaseOfHealthyEngine(t *testing.T) {
	c := follow(t, fleet.New(fleet.Hooks{}), discovery.Config{})
	e := startEngine(t)
	h := c.pause(e.worker("a"))
	c.await("a ready")
	h.stopRenewing()
	c.awaitLog("worker without a lease serves")
	if got := members(c.fleet); got != "a ready" {
		t.Errorf("members: %s", got)
	}
	if since := c.fleet.Snapshot().Worker("a").Unleased; since.IsZero() || time.Since(since) > 20*time.Second {
		t.Errorf("unleased since %s", since)
	}

	h.resume()
	c.awaitLog("agent of a worker is back")
	testkit.Eventually(t, "its lease is current", func() bool { return c.fleet.Snapshot().Worker("a").Unleased.IsZero() })
	h.release()
	c.await("")
	c.wantLog(`msg="worker gone" worker=a reason="its lease was removed"`)
}

// TestExpiredLeaseOfDeadEngine: an engine that refuses connections, or that is not healthy, leaves, even as the last
// one.
func TestExpiredLeaseOfDeadEngine(t *testing.T) {
	c := follow(t, fleet.New(fleet.Hooks{}), discovery.Config{})
	dead, ill := startEngine(t), startEngine(t)
	ill.status.Store(http.StatusServiceUnavailable)
	a := c.pause(dead.worker("a"))
	b := c.pause(ill.worker("b"))
	c.await("a ready, b ready")
	dead.Close()
	a.stopRenewing()
	b.stopRenewing()
	c.await("")
	c.wantLog(`worker=a reason="its lease expired and its engine is refusing"`, `worker=b reason="its lease expired and its engine is refusing"`)
}

// TestLastWorkerStaysOnSilence: of two workers whose engines do not answer, one leaves. The other is the last of its
// pool, and stays.
func TestLastWorkerStaysOnSilence(t *testing.T) {
	c := follow(t, fleet.New(fleet.Hooks{}), discovery.Config{})
	for _, name := range []string{"a", "b"} {
		w := worker(name)
		w.Address = silentAddress(t)
		h := c.pause(w)
		c.awaitMember(name)
		h.stopRenewing()
	}
	c.awaitLog("worker is silent and stays, because too few others of its pool are ready")
	if n := len(c.fleet.Snapshot().Workers); n != 1 {
		t.Errorf("%d workers", n)
	}
}

// paused is a lease whose holder can be paused, as a process that is stopped.
type paused struct {
	*held
	pause, goOn chan struct{}
}

// pause holds the lease of a worker whose holder can be paused.
func (c *cluster) pause(w fleet.Worker) *paused {
	p := &paused{pause: make(chan struct{}), goOn: make(chan struct{})}
	p.held = c.holdBy(w, func() {
		select {
		case <-p.pause:
			<-p.goOn
		default:
		}
	})
	c.t.Cleanup(p.resume)
	return p
}

func (p *paused) stopRenewing() { close(p.pause) }

func (p *paused) resume() {
	select {
	case <-p.goOn:
	default:
		close(p.goOn)
	}
}

func (c *cluster) awaitMember(name string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); c.fleet.Snapshot().Worker(name) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s does not become a member\n%s", name, &c.log)
		}
	}
}

func (c *cluster) awaitLog(text string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); !c.log.Contains(text); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("the log has no %q:\n%s", text, &c.log)
		}
	}
}
