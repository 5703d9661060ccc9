package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/stator-project/stator/internal/child"
)

// Config is read by Start and not changed later.
type Config struct {
	// Path is the path of the binary; see Find.
	Path string
	// Bootstrap is Envoy's bootstrap configuration in JSON or YAML.
	Bootstrap []byte
	// Dir is an existing folder for the files of Envoy. The caller removes it.
	Dir string
	// Concurrency is the number of worker threads; 0 is one per core.
	Concurrency int
	// MaxConnections is the bound of the bootstrap on connections of clients; 0 is none.
	MaxConnections int
	// Log receives the lines that Envoy logs at level warning and above.
	Log *slog.Logger
	// Out receives the lines of an access log on Envoy's standard output; nil for none.
	Out io.Writer
}

// adminFile is the file to which Envoy writes the address of its admin server.
const adminFile = "admin"

// Process is one Envoy process, from its start to its end.
type Process struct {
	dir      string
	child    *child.Process
	stopping atomic.Bool // warnings about the end are expected from here on
}

// Start starts Envoy as a child process that ends with this process. Wait for it with Run.
func Start(cfg Config) (*Process, error) {
	boot := filepath.Join(cfg.Dir, "envoy.yaml") // Envoy chooses the parser by the name; JSON is YAML too
	if err := os.WriteFile(boot, cfg.Bootstrap, 0o600); err != nil {
		return nil, fmt.Errorf("write bootstrap: %w", err)
	}

	// An address of an earlier Envoy must not be used: another program may have its port by now.
	admin := filepath.Join(cfg.Dir, adminFile)
	if err := os.Remove(admin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove an earlier Envoy's admin address: %w", err)
	}

	if err := writePressure(cfg.Dir, 0); err != nil {
		return nil, err
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
	c, err := child.Start(child.Config{Path: cfg.Path, Args: args, Line: func(line string) { p.relay(&cfg, line) }})
	if err != nil {
		return nil, err
	}

	p.child = c
	return p, nil
}

// relay logs one line of Envoy's output: level, logger and text, separated by tabs. A line of the access log is an object of JSON.
func (p *Process) relay(cfg *Config, line string) {
	if cfg.Out != nil && strings.HasPrefix(line, "{") {
		_, _ = io.WriteString(cfg.Out, line+"\n")
		return
	}
	// A line without tabs is not of Envoy's logger: a sanitizer wrote it, or the dynamic loader.
	level, rest, ok := strings.Cut(line, "\t")
	name, text, ok2 := strings.Cut(rest, "\t")
	if !ok || !ok2 {
		level = "warning"
		name = ""
		text = line
	}

	at := levelOf(level, text)
	if p.stopping.Load() {
		at = slog.LevelDebug
	}

	cfg.Log.Log(context.Background(), at, "envoy log", "logger", name, "line", text)
}

// usual holds the beginnings of warnings that do not point to a problem: every stop is a SIGTERM.
var usual = []string{
	"message 'envoy.extensions.filters.http.api_key_auth.", // a work in progress: see docs/front-door.md
	"caught ENVOY_SIGTERM",
}

// levelOf returns the level for a line that Envoy logged at the given level.
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

// PID returns the process id.
func (p *Process) PID() int { return p.child.PID() }

// Run waits until Envoy has ended, and returns the reason. It is never nil; a caller that called Stop may
// ignore it.
func (p *Process) Run() error {
	if err := p.child.Wait(); err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	return errors.New("envoy has ended")
}

// Stop stops Envoy, kills it when ctx ends, and returns when it is gone.
func (p *Process) Stop(ctx context.Context) {
	// Set first, so that warnings about the end are logged for debugging only.
	p.stopping.Store(true)
	p.child.Stop(ctx)
}
