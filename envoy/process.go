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
	"sync/atomic"

	"github.com/stator-project/stator/internal/child"
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

// adminFile is where Envoy writes the address of its admin server.
const adminFile = "admin"

// Process is a running Envoy.
type Process struct {
	dir      string
	child    *child.Process
	stopping atomic.Bool // its complaints about its own end are no news
}

// Start runs Envoy as a child that dies with this process. Wait for it with Run.
func Start(cfg Config) (*Process, error) {
	boot := filepath.Join(cfg.Dir, "envoy.yaml") // by its name Envoy knows how to read it; JSON is YAML too
	if err := os.WriteFile(boot, cfg.Bootstrap, 0o600); err != nil {
		return nil, fmt.Errorf("write bootstrap: %w", err)
	}
	admin := filepath.Join(cfg.Dir, adminFile)
	if err := os.Remove(admin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove an earlier Envoy's admin address: %w", err)
	}
	args := []string{
		"--config-path", boot,
		"--admin-address-path", admin,
		"--disable-hot-restart",
		"--log-level", "warning", "--log-format", "%l\t%n\t%v",
	}
	if cfg.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(cfg.Concurrency))
	}
	p := &Process{dir: cfg.Dir}
	c, err := child.Start(child.Config{Path: cfg.Path, Args: args, Line: func(line string) { p.relay(cfg.Log, line) }})
	if err != nil {
		return nil, err
	}
	p.child = c
	return p, nil
}

// relay turns one of Envoy's lines into a structured one.
func (p *Process) relay(log *slog.Logger, line string) {
	level, rest, ok := strings.Cut(line, "\t")
	name, text, ok2 := strings.Cut(rest, "\t")
	if !ok || !ok2 {
		level, name, text = "warning", "", line
	}
	at := levelOf(level, text)
	if p.stopping.Load() {
		at = slog.LevelDebug
	}
	log.Log(context.Background(), at, "envoy said", "logger", name, "line", text)
}

// usual begins lines that Envoy calls warnings and that say nothing is wrong: the gateway has
// no limit on connections of its own, and a process that is told to stop says so.
var usual = []string{
	"There is no configured limit to the number of allowed active downstream connections",
	"caught ENVOY_SIGTERM",
}

func levelOf(level, text string) slog.Level {
	for _, u := range usual {
		if strings.HasPrefix(text, u) {
			return slog.LevelDebug
		}
	}
	if level == "error" || level == "critical" {
		return slog.LevelError
	}
	return slog.LevelWarn
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
func (p *Process) Stop(ctx context.Context) {
	p.stopping.Store(true)
	p.child.Stop(ctx)
}
