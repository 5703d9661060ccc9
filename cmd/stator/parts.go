package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
)

// newRegistry returns a registry with the process's own metrics.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "stator", Name: "build_info", Help: "Always 1; the labels are the version and revision of the program.",
		ConstLabels: prometheus.Labels{"version": version(), "revision": revision()},
	})
	build.Set(1)
	reg.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// adminPort serves the operators' pages. What they show can be replaced, so that they answer while a part waits.
type adminPort struct {
	ln      net.Listener
	srv     *http.Server
	handler atomic.Pointer[http.Handler]
	done    chan struct{} // closed when the server has ended
	err     error         // valid once done is closed
}

// serveAdmin serves the pages on ln until close.
func serveAdmin(ln net.Listener, s admin.Sources) *adminPort {
	a := &adminPort{ln: ln, done: make(chan struct{})}
	a.show(s)
	a.srv = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*a.handler.Load()).ServeHTTP(w, r)
	})}
	go func() {
		defer close(a.done)
		a.err = a.srv.Serve(ln)
	}()
	return a
}

// show replaces what the pages show.
func (a *adminPort) show(s admin.Sources) {
	h := admin.Handler(s)
	a.handler.Store(&h)
}

func (a *adminPort) address() string { return a.ln.Addr().String() }

// wait returns when ctx ends, or with an error when the server fails.
func (a *adminPort) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.done:
		return a.err
	}
}

// close ends the server and waits for it.
func (a *adminPort) close() {
	_ = a.srv.Close()
	<-a.done
}

// joinBus connects to the configured bus.
func joinBus(ctx context.Context, cfg *config.Config, name string, embedded *bus.Embedded, log *slog.Logger, reg prometheus.Registerer,
	lost func()) (*bus.Bus, error) {
	if cfg.Bus.URL == "" && embedded == nil {
		return nil, errors.New("there is no bus: set bus.url in the configuration, or pass --bus URL")
	}
	c := &cfg.Bus
	return bus.Connect(ctx, bus.Config{
		URL: c.URL, Embedded: embedded, Cluster: c.Cluster, LeaseTTL: c.LeaseTTL.Std(), Name: "stator-" + name,
		Login: bus.Login{
			User: c.User, PasswordFile: c.PasswordFile, CredentialsFile: c.CredentialsFile,
			CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
		},
		Log: log, Metrics: reg, Lost: lost,
	})
}
