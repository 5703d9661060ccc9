package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/workeragent/engine"
	"github.com/stator-project/stator/xds"
)

// newRegistry returns a registry with the process's own metrics.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "stator", Name: "build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version(), "revision": revision()},
	})
	build.Set(1)
	reg.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// listen opens a listener on ip:port or unix:///path, with an error that says what to do.
func listen(address, flag string) (net.Listener, error) {
	network, where := "tcp", address
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, where = "unix", path
		if err := removeStale(path); err != nil {
			return nil, err
		}
	}
	ln, err := net.Listen(network, where)
	if err != nil {
		return nil, taken(address, flag, err)
	}
	return ln, nil
}

// removeStale removes the socket of a process that is no more.
func removeStale(path string) error {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("the socket %s is in use by another process", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

func taken(address, flag string, err error) error {
	if strings.Contains(err.Error(), "address already in use") {
		return fmt.Errorf("%s is taken by another program: end it, or choose another address with %s", address, flag)
	}
	return fmt.Errorf("listen on %s (%s): %w", address, flag, err)
}

// free says whether an address can be listened on: Envoy will, later, and its own error comes
// too late and in its own words.
func free(address, flag string) error {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return taken(address, flag, err)
	}
	return ln.Close()
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
func joinBus(ctx context.Context, cfg *config.Config, name string, embedded *bus.Embedded, log *slog.Logger, reg prometheus.Registerer, lost func()) (*bus.Bus, error) {
	if cfg.Bus.URL == "" && embedded == nil {
		return nil, errors.New("there is no bus: set bus.url in the configuration, or pass --bus URL")
	}
	return bus.Connect(ctx, bus.Config{
		URL: cfg.Bus.URL, Embedded: embedded, Cluster: cfg.Bus.Cluster, LeaseTTL: cfg.Bus.LeaseTTL.Std(), Name: "stator-" + name, Log: log, Metrics: reg, Lost: lost,
	})
}

// launches are the engines that the agent of a node starts, named after their model.
func launches(cfg *config.Config, node string) ([]engine.Launch, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	var out []engine.Launch
	for i, m := range cfg.Models {
		n := 0
		for _, l := range m.Launch {
			role, err := fleet.ParseRole(l.Role)
			if err != nil {
				return nil, fmt.Errorf("models[%d]: %w", i, err)
			}
			taints, err := fleet.NewTaints(l.Taints)
			if err != nil {
				return nil, fmt.Errorf("models[%d]: %w", i, err)
			}
			for range l.Count {
				name := workerName(node, m.Name, n)
				n++
				if l.Node != node {
					continue
				}
				out = append(out, engine.Launch{
					Kind: l.Engine, Name: name, Model: m.Name, ModelPath: m.Path, Aliases: m.Aliases, Role: role, BlockSize: m.BlockSize,
					Command: l.Command, Args: texts(l.Args), Taints: taints, Self: self, Python: python(self),
				})
			}
		}
	}
	return out, nil
}

// workerName makes a name of [a-z0-9-] from a model's: sim-0, meta-llama-llama-3-1-8b-0.
func workerName(node, model string, n int) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + ('a' - 'A')
		}
		return '-'
	}, model)
	name := strings.Trim(clean, "-")
	if len(name) > 40 {
		name = name[:40]
	}
	if node != "" {
		name = node + "-" + name
	}
	return name + "-" + strconv.Itoa(n)
}

func texts(args map[string]any) map[string]string {
	out := map[string]string{}
	for k, v := range args {
		out[k] = fmt.Sprint(v)
	}
	return out
}

// python is the interpreter of the virtual environment beside this program, else the first
// in PATH.
func python(self string) string {
	venv := filepath.Join(filepath.Dir(filepath.Dir(self)), ".venv", "bin", "python")
	if _, err := os.Stat(venv); err == nil {
		return venv
	}
	return "python3"
}

func xdsSettings(cfg *config.Config, routers []string) xds.Settings {
	s := xds.Settings{
		Listen: cfg.Gateway.Listen, ExtProc: routers, MaxBodyBytes: cfg.Gateway.MaxBodyBytes,
		DecisionTimeout: cfg.Gateway.DecisionTimeout.Std(), IdleTimeout: cfg.Gateway.IdleTimeout.Std(), AffinityHeader: cfg.Gateway.AffinityHeader,
		HintHeaders: cfg.Gateway.Hints == "headers",
	}
	for _, m := range cfg.Models {
		s.Models = append(s.Models, m.Name)
	}
	return s
}

// pools are what the planner plans: launched and listed workers by model and role.
func pools(cfg *config.Config) ([]plan.Configured, error) {
	var out []plan.Configured
	for _, m := range cfg.Models {
		count := map[fleet.Role]int{}
		for _, l := range m.Launch {
			role, err := fleet.ParseRole(l.Role)
			if err != nil {
				return nil, err
			}
			count[role] += l.Count
		}
		for _, w := range m.Workers {
			role, err := fleet.ParseRole(w.Role)
			if err != nil {
				return nil, err
			}
			count[role]++
		}
		for role, n := range count {
			out = append(out, plan.Configured{Model: m.Name, Role: role, Replicas: n})
		}
	}
	return out, nil
}
