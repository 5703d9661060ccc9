package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// Gateway is a running `stator up` on loopback. Create it with [StartGateway].
type Gateway struct {
	// URL and Admin are the addresses of the gateway and of its admin port.
	URL, Admin string
	Client     *http.Client

	cmd *exec.Cmd
	log *bytes.Buffer
	dir string
}

// idleConnections is how many connections for later requests a gateway's client keeps.
const idleConnections = 512

// StartGateway starts a gateway with the text of a configuration, and returns when it is ready. envoy is the path of Envoy; empty for the
// one that stator finds.
func StartGateway(ctx context.Context, stator, envoy, configuration string) (*Gateway, error) {
	listen, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	admin, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "stator-gateway-")
	if err != nil {
		return nil, err
	}

	g := &Gateway{
		URL: "http://" + listen, Admin: "http://" + admin, dir: dir, log: &bytes.Buffer{},
		Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: idleConnections}},
	}
	file := filepath.Join(dir, "stator.yaml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}

	args := []string{"up", "--config", file, "--listen-address", listen, "--admin-address", admin, "--log-level", "warn"}
	if envoy != "" {
		args = append(args, "--envoy", envoy)
	}
	g.cmd = exec.CommandContext(context.WithoutCancel(ctx), stator, args...)
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is ours to pass on
	if err := g.cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("start %s: %w", stator, err)
	}

	if err := g.await(ctx); err != nil {
		g.Stop()
		return nil, fmt.Errorf("%w\n%s", err, g.log)
	}
	return g, nil
}

// await returns when the gateway is ready.
func (g *Gateway) await(ctx context.Context) error {
	return poll(ctx, "the gateway is not ready after a minute", func() (bool, error) {
		resp, err := g.Client.Get(g.Admin + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK, nil // with an error it does not listen yet
	})
}

// poll returns when done reports true, fails, or has not reported true within a minute.
func poll(ctx context.Context, late string, done func() (bool, error)) error {
	for range 600 {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New(late)
}

// Rank is what the gateway knows of a rank.
type Rank struct {
	Worker, Address, State string
	Cache                  string `json:"cache_state"`
}

// Ranks returns what the gateway knows of all ranks.
func (g *Gateway) Ranks() ([]Rank, error) {
	text, err := g.Get(g.Admin + "/debug/fleet?format=json")
	if err != nil {
		return nil, err
	}
	var page struct{ Ranks []Rank }
	err = json.Unmarshal(text, &page)
	return page.Ranks, err
}

// AwaitRanks returns when n ranks are ready and their cache states exact. The gateway itself is ready with the first one.
func (g *Gateway) AwaitRanks(ctx context.Context, n int) error {
	return poll(ctx, "the workers are not ready after a minute", func() (bool, error) {
		list, err := g.Ranks()
		ready := 0
		for _, r := range list {
			if r.State == "ready" && r.Cache == "exact" {
				ready++
			}
		}
		return ready == n, err
	})
}

// Get returns the body of a page.
func (g *Gateway) Get(url string) ([]byte, error) {
	resp, err := g.Client.Get(url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(resp.Body)
}

// PID returns the process id of the gateway. Envoy and engines are processes under it.
func (g *Gateway) PID() int { return g.cmd.Process.Pid }

// Stop ends the gateway and all that it has started.
func (g *Gateway) Stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	_ = g.cmd.Wait()
	_ = os.RemoveAll(g.dir)
}
