package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/listen"
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

// adminPort serves the operators' pages. Their content can be replaced, so that they answer while a part waits.
type adminPort struct {
	ln      net.Listener
	scheme  string // of its address; empty for HTTP
	srv     *http.Server
	token   *listen.Token // nil if the pages are open
	handler atomic.Pointer[http.Handler]
	done    chan struct{} // closed when the server has ended
	err     error         // valid once done is closed
}

// adminConnections bounds the connections of an admin port, so that idle ones do not use up the descriptors of the process. Further ones
// wait until one ends; those without a request end after ten seconds.
const adminConnections = 256

// openAdmin listens as the flags want it, and serves the pages until close. Before show they are the pages of a part that starts.
func openAdmin(address string, doors *listen.Doors, log *slog.Logger, metrics prometheus.Gatherer) (*adminPort, error) {
	if err := doors.Check(); err != nil {
		return nil, err
	}
	if doors.Insecure {
		log.Warn("--insecure: listeners beyond loopback may have no TLS; everyone on the network may read prompts and send decisions")
	}
	token, err := doors.Token(log)
	if err != nil {
		return nil, fmt.Errorf("--admin-token-file: %w", err)
	}

	ln, err := doors.ForOperators(address, "--admin-address", log)
	if err != nil {
		return nil, err
	}

	a := &adminPort{ln: ln, scheme: doors.AdminScheme(ln), token: token, done: make(chan struct{})}
	a.show(admin.Sources{Metrics: metrics, Ready: func() error { return errors.New("the part is starting") }})
	a.srv = newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*a.handler.Load()).ServeHTTP(w, r) }), log)

	go func() {
		defer close(a.done)
		a.err = a.srv.Serve(netutil.LimitListener(ln, adminConnections))
	}()
	return a, nil
}

func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, Handler: h,
		// Every client that reaches the port can cause errors of TLS.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// scrapesAtOnce bounds the answers of the port for metrics that are made at the same time. Further ones are refused with 503.
const scrapesAtOnce = 4

// openMetrics serves /metrics, and nothing else, until closed is called. The port has no token and no TLS.
func openMetrics(address string, log *slog.Logger, metrics prometheus.Gatherer) (closed func(), err error) {
	ln, err := listen.On(address, "--metrics-address")
	if err != nil {
		return nil, err
	}
	pages := http.NewServeMux()
	options := promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce, EnableOpenMetrics: true}
	pages.Handle("GET /metrics", promhttp.HandlerFor(metrics, options))
	srv := newServer(pages, log)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(netutil.LimitListener(ln, adminConnections)) // it ends when it is closed
	}()
	return func() {
		_ = srv.Close()
		<-done
	}, nil
}

// show replaces the content of the pages.
func (a *adminPort) show(s admin.Sources) {
	h := admin.OwnPages(admin.Handler(s))
	if a.token != nil {
		h = admin.Guard(admin.Handler(s), a.token.Is)
	}
	a.handler.Store(&h)
}

// address is the value that other commands get as --admin-address.
func (a *adminPort) address() string { return a.scheme + a.ln.Addr().String() }

// url is the address for a browser.
func (a *adminPort) url() string {
	if a.scheme == "" {
		return "http://" + a.address()
	}
	return a.address()
}

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
