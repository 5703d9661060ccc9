package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/stator-project/stator/child"
)

// Config says how to run an Envoy.
type Config struct {
	// Path is the binary; see Find.
	Path string
	// Bootstrap is its configuration in JSON or YAML.
	Bootstrap []byte
	// Dir is an existing folder for its files; the caller removes it.
	Dir string
	// Concurrency is the number of worker threads; 0 takes one per core.
	Concurrency int
	// Log receives Envoy's own lines of level warning and above.
	Log *slog.Logger
}

// Process is a running Envoy.
type Process struct {
	dir   string
	child *child.Process
}

// Start runs Envoy as a child that dies with this process. Wait for it with Run.
func Start(cfg Config) (*Process, error) {
	boot := filepath.Join(cfg.Dir, "envoy.json")
	if err := os.WriteFile(boot, cfg.Bootstrap, 0o600); err != nil {
		return nil, fmt.Errorf("write bootstrap: %w", err)
	}
	args := []string{
		"--config-path", boot,
		"--admin-address-path", filepath.Join(cfg.Dir, "admin"),
		"--disable-hot-restart",
		"--log-level", "warning", "--log-format", "%l\t%n\t%v",
	}
	if cfg.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(cfg.Concurrency))
	}
	c, err := child.Start(child.Config{Path: cfg.Path, Args: args, Line: relay(cfg.Log)})
	if err != nil {
		return nil, err
	}
	return &Process{dir: cfg.Dir, child: c}, nil
}

// relay turns Envoy's lines into structured ones.
func relay(log *slog.Logger) func(string) {
	return func(line string) {
		level, rest, ok := strings.Cut(line, "\t")
		name, text, ok2 := strings.Cut(rest, "\t")
		if !ok || !ok2 {
			log.Warn("envoy said", "line", line)
			return
		}
		at := slog.LevelWarn
		if level == "error" || level == "critical" {
			at = slog.LevelError
		}
		log.Log(context.Background(), at, "envoy said", "logger", name, "line", text)
	}
}

// PID is the process id.
func (p *Process) PID() int { return p.child.PID() }

// Run returns when Envoy has ended, with the reason; the caller knows whether Stop was it.
func (p *Process) Run() error {
	if err := p.child.Wait(); err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	return errors.New("envoy has ended")
}

// Stop ends Envoy and returns when it is gone; it is killed when ctx ends.
func (p *Process) Stop(ctx context.Context) { p.child.Stop(ctx) }
