// Package parts starts the parts of a gateway as processes of their own: a router, a control plane, an Envoy and simulated engines.
package parts

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/xds"
)

// Parts are running parts of a gateway. Create them with [New].
type Parts struct {
	// Dir has their sockets and configurations.
	Dir string

	stator string
	line   func(part, line string)
	ends   []func()
}

// New returns no parts yet. line gets each line that a part logs.
func New(stator string, line func(part, line string)) (*Parts, error) {
	dir, err := os.MkdirTemp("", "stator-parts-")
	if err != nil {
		return nil, err
	}
	return &Parts{Dir: dir, stator: stator, line: line}, nil
}

// Socket returns the address of a socket in the folder.
func (p *Parts) Socket(name string) string { return "unix://" + filepath.Join(p.Dir, name+".sock") }

// Run starts a part of the program: the first argument is its command.
func (p *Parts) Run(args ...string) (*child.Process, error) {
	part, err := child.Start(child.Config{Path: p.stator, Args: args, Line: func(line string) { p.line(args[0], line) }})
	if err == nil {
		p.ends = append(p.ends, func() { part.Stop(context.Background()) })
	}
	return part, err
}

// RunRouter starts a router for a configuration, at the socket "extproc".
func (p *Parts) RunRouter(file, admin string) (*child.Process, error) {
	return p.Run("extproc", "--config", file, "--listen-address", p.Socket("extproc"), "--admin-address", admin)
}

// Edge has the settings of an Envoy and its control plane.
type Edge struct {
	// Config is the path of the configuration, and Envoy the path of Envoy; empty for the Envoy that stator finds.
	Config, Envoy string
	// Flags are further flags of the control plane.
	Flags []string
	// MaxConnections bounds the connections of clients; 0 is no bound.
	MaxConnections int
	// Log gets Envoy's errors.
	Log io.Writer
}

// RunEnvoy starts a control plane, and an Envoy that gets everything from it. It returns when Envoy is ready.
func (p *Parts) RunEnvoy(ctx context.Context, e Edge) error {
	path, err := envoy.Find(e.Envoy)
	if err != nil {
		return err
	}
	_, err = p.Run(append([]string{
		"xds", "--config", e.Config, "--listen-address", p.Socket("xds"), "--extproc-address", p.Socket("extproc"),
		"--admin-address", "127.0.0.1:0",
	}, e.Flags...)...)
	if err != nil {
		return err
	}
	boot, err := xds.Bootstrap(xds.BootstrapSettings{
		NodeID: "test", Admin: "127.0.0.1:0", MaxConnections: e.MaxConnections, XDS: p.Socket("xds"),
	})
	if err != nil {
		return err
	}

	errors := slog.New(slog.NewTextHandler(e.Log, &slog.HandlerOptions{Level: slog.LevelError}))
	stop, err := process.StartEnvoy(ctx, envoy.Config{Path: path, Bootstrap: boot, Dir: p.Dir, Concurrency: 2, Log: errors})
	if stop != nil {
		p.ends = append(p.ends, stop)
	}
	return err
}

// Stop ends the parts, the last started first.
func (p *Parts) Stop() {
	for i := len(p.ends) - 1; i >= 0; i-- {
		p.ends[i]()
	}
	_ = os.RemoveAll(p.Dir)
}
