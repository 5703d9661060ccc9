package envoy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
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
	// StopTime is how long Stop waits before it kills. Default 5 s.
	StopTime time.Duration
}

// Process is a running Envoy.
type Process struct {
	cfg     Config
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the process is gone and its output is read
	exitErr error         // valid once exited is closed
}

// Start runs Envoy as a child that is killed when this process dies, however that happens
// (on Linux). Wait for it with Run.
func Start(cfg Config) (*Process, error) {
	if cfg.StopTime == 0 {
		cfg.StopTime = 5 * time.Second
	}
	boot := filepath.Join(cfg.Dir, "envoy.json")
	if err := os.WriteFile(boot, cfg.Bootstrap, 0o600); err != nil {
		return nil, fmt.Errorf("write bootstrap: %w", err)
	}
	p := &Process{cfg: cfg, cmd: exec.Command(cfg.Path, arguments(cfg, boot)...), exited: make(chan struct{})}
	p.cmd.SysProcAttr = childAttr()
	out, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start envoy: %w", err)
	}
	started := make(chan error)
	go p.live(out, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start envoy: %w", err)
	}
	return p, nil
}

func arguments(cfg Config, boot string) []string {
	args := []string{
		"--config-path", boot,
		"--admin-address-path", filepath.Join(cfg.Dir, "admin"),
		"--disable-hot-restart",
		"--log-level", "warning", "--log-format", "%l\t%n\t%v",
	}
	if cfg.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(cfg.Concurrency))
	}
	return args
}

// live starts the process, reports that, and waits until it and its output have ended.
func (p *Process) live(out io.Reader, started chan<- error) {
	unlock := lockThread()
	defer unlock()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.relay(out) // Wait closes the pipe, so the output is read first
	p.exitErr = p.cmd.Wait()
	close(p.exited)
}

// relay passes Envoy's lines on, one structured line each.
func (p *Process) relay(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 0, 64<<10), 1<<20)
	for lines.Scan() {
		level, rest, ok := strings.Cut(lines.Text(), "\t")
		name, text, ok2 := strings.Cut(rest, "\t")
		if !ok || !ok2 {
			p.cfg.Log.Warn("envoy said", "line", lines.Text())
			continue
		}
		at := slog.LevelWarn
		if level == "error" || level == "critical" {
			at = slog.LevelError
		}
		p.cfg.Log.Log(context.Background(), at, "envoy said", "logger", name, "line", text)
	}
	_, _ = io.Copy(io.Discard, out) // a line over the limit must not block Envoy
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Run returns when Envoy has ended, with the reason; the caller knows whether Stop was it.
func (p *Process) Run() error {
	<-p.exited
	if p.exitErr != nil {
		return fmt.Errorf("envoy: %w", p.exitErr)
	}
	return errors.New("envoy has ended")
}

// Stop ends Envoy: SIGTERM, and SIGKILL after the stop time or when ctx ends. It returns
// when the process is gone.
func (p *Process) Stop(ctx context.Context) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	patience := time.NewTimer(p.cfg.StopTime)
	defer patience.Stop()
	select {
	case <-p.exited:
		return
	case <-patience.C:
	case <-ctx.Done():
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}
