package scenario

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/xds"
)

// door is the address of an engine at which requests may fail, while the engine itself is well.
type door struct {
	t       *testing.T
	address string
	ln      net.Listener
	server  *http.Server
	pass    http.Handler
	arrived atomic.Int64  // requests, whatever became of them
	passed  atomic.Int64  // requests that the engine got
	mode    atomic.Value  // what becomes of requests: see ServeHTTP
	ended   chan struct{} // closed when hanging requests end
}

func openDoor(t *testing.T, engine string) *door {
	t.Helper()
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine})
	pass.ErrorLog = log.New(io.Discard, "", 0) // a change cuts requests off
	d := &door{t: t, address: freeAddress(t), pass: pass, ended: make(chan struct{})}
	d.set("pass")
	t.Cleanup(func() { close(d.ended); d.close() })
	return d
}

// close refuses all connections, and ends those that there are.
func (d *door) close() {
	if d.server == nil {
		return
	}
	_ = d.ln.Close() // the server may not have it yet
	_ = d.server.Close()
	d.server = nil
}

// ServeHTTP serves a request as the mode is.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.arrived.Add(1)
	switch d.mode.Load() {
	case "hang":
		select {
		case <-r.Context().Done():
		case <-d.ended:
		}
	case "answer 503":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "answer late":
		time.Sleep(6 * time.Second)
		d.pass.ServeHTTP(w, r)
	default:
		if r.URL.Path != "/health" {
			d.passed.Add(1)
		} else if d.mode.Load() == "answer late for health" {
			time.Sleep(700 * time.Millisecond) // less than the time that a probe waits
		}
		d.pass.ServeHTTP(w, r)
	}
}

// set changes what becomes of requests. With "refuse" nothing listens.
func (d *door) set(mode string) {
	d.t.Helper()
	d.close() // connections must not outlive a change, because Envoy uses them again
	d.mode.Store(mode)
	if mode == "refuse" {
		return
	}
	// A process that another test has just started may hold a copy of the last socket until it runs its program.
	eventually(d.t, "the address is free", func() (err error) {
		d.ln, err = net.Listen("tcp", d.address)
		return err
	})
	d.server = &http.Server{Handler: d}
	go func(s *http.Server, ln net.Listener) { _ = s.Serve(ln) }(d.server, d.ln)
}

// TestEnvoyEjects: while no router decides and the control plane knows nothing of it, Envoy finds a worker that fails by its
// requests. It ejects the worker, all requests are answered, and those after the ejection do not meet the worker. Later
// the worker gets requests again.
func TestEnvoyEjects(t *testing.T) {
	t.Parallel()
	for mode, keys := range map[string]string{
		"refuse": "", "answer 503": "", "hang": ", idleTimeout: 20s, attemptIdleTimeout: 5s", // long for an engine on a busy machine
	} {
		t.Run(mode, func(t *testing.T) {
			a, b := freeAddress(t), freeAddress(t)
			start(t, "sim", "--name", "a", "--listen-address", a, "--log-level", "warn")
			start(t, "sim", "--name", "b", "--listen-address", b, "--log-level", "warn")
			d := openDoor(t, b)
			p := startListedPartsWith(t, keys,
				fmt.Sprintf("name: a, address: %q, healthPath: none", a), fmt.Sprintf("name: b, address: %q, healthPath: none", d.address))
			p.extproc.kill()
			l := p.load(4)
			defer l.stop()
			p.awaitPassed(d)

			d.set(mode)
			eventually(t, "Envoy ejects it", func() error { return p.wantEjected(1) })
			p.assertNotMet(l, d)

			d.set("pass")
			eventually(t, "Envoy takes it back", func() error { return p.wantEjected(0) })
			p.awaitPassed(d)
			l.stop()
			if n := l.failed.Load(); n > 0 {
				t.Errorf("%d of %d requests failed: %v", n, n+l.ok.Load(), l.lastError.Load())
			}
		})
	}
}

// awaitPassed waits until a request has passed a door.
func (p *parts) awaitPassed(d *door) {
	p.t.Helper()
	before := d.passed.Load()
	eventually(p.t, "the worker gets requests", func() error {
		if d.passed.Load() == before {
			return errNotYet
		}
		return nil
	})
}

// poolStat reads a statistic of the pool in Envoy.
func (p *parts) poolStat(name string) int {
	p.t.Helper()
	n, err := p.envoy.Stat(p.t.Context(), "cluster."+xds.PoolName("sim")+"."+name)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// wantEjected returns an error unless so many workers are ejected now.
func (p *parts) wantEjected(want int) error {
	if n := p.poolStat("outlier_detection.ejections_active"); n != want {
		return fmt.Errorf("%d are ejected", n)
	}
	return nil
}

// met is how often requests have met a worker: they arrived there, or found that nothing listens.
func (p *parts) met(d *door) int {
	return int(d.arrived.Load()) + p.poolStat("upstream_cx_connect_fail")
}

// assertNotMet checks that requests do not meet an ejected worker. An ejection ends after a while, so the check begins again
// if that happens meanwhile.
func (p *parts) assertNotMet(l *load, d *door) {
	p.t.Helper()
	eventually(p.t, "requests pass while the worker is ejected", func() error {
		if err := p.wantEjected(1); err != nil {
			return err
		}
		l.more(p.t, 8) // the ejection reaches Envoy's threads one after the other
		ejections, before := p.poolStat("outlier_detection.ejections_total"), p.met(d)
		if err := p.wantEjected(1); err != nil {
			return err
		}

		l.more(p.t, 50)
		met := p.met(d) - before
		if err := p.wantEjected(1); err != nil || p.poolStat("outlier_detection.ejections_total") != ejections {
			return errNotYet // its time was over meanwhile
		}
		if met > 0 || before == 0 {
			p.t.Errorf("%d of 50 requests met the ejected worker, and %d before", met, before)
		}
		return nil
	})
}
