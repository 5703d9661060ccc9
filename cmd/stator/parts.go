package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
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

// serveAdmin serves the operators' pages until ctx ends.
func serveAdmin(ctx context.Context, ln net.Listener, s admin.Sources) error {
	srv := &http.Server{Handler: admin.Handler(s), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		_ = srv.Close()
	}()
	err := srv.Serve(ln)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	<-done
	return err
}

// joinBus connects to the configured bus.
func joinBus(ctx context.Context, cfg *config.Config, name string, embedded *bus.Embedded, log *slog.Logger, reg prometheus.Registerer,
	lost func()) (*bus.Bus, error) {
	if cfg.Bus.URL == "" && embedded == nil {
		return nil, errors.New("there is no bus: set bus.url in the configuration, or pass --bus URL")
	}
	return bus.Connect(ctx, bus.Config{
		URL: cfg.Bus.URL, Embedded: embedded, Cluster: cfg.Bus.Cluster, LeaseTTL: cfg.Bus.LeaseTTL.Std(), Name: "stator-" + name,
		Log: log, Metrics: reg, Lost: lost,
	})
}
