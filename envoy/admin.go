package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
)

// AdminAddress returns the address of Envoy's admin server: host:port, or the path of a Unix socket. Envoy writes
// it shortly after its start; before that there is an error.
func (p *Process) AdminAddress() (string, error) {
	b, err := os.ReadFile(filepath.Join(p.dir, adminFile))
	if err != nil {
		return "", fmt.Errorf("read admin address: %w", err)
	}
	return string(b), nil
}

// WaitReady waits until Envoy has a listener and serves requests. It returns an error when Envoy or ctx
// ends first.
func (p *Process) WaitReady(ctx context.Context) error {
	for !p.ready(ctx) {
		if err := p.pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("wait for envoy: %w", err)
		}
	}
	return nil
}

// ready reports whether Envoy is live and has a listener. An Envoy that waits for its control plane is live
// without one.
func (p *Process) ready(ctx context.Context) bool {
	admin, err := p.AdminAddress()
	if err != nil {
		return false
	}

	// /ready is LIVE before the first listener, so both are asked.
	live, err := call(ctx, http.MethodGet, admin, "/ready")
	if err != nil || !strings.HasPrefix(live, "LIVE") {
		return false
	}

	listeners, err := call(ctx, http.MethodGet, admin, "/listeners")
	return err == nil && strings.TrimSpace(listeners) != ""
}

// Drain makes Envoy refuse new connections. It returns when no request is in flight, when Envoy has ended,
// or when ctx ends.
func (p *Process) Drain(ctx context.Context) {
	admin, err := p.AdminAddress()
	if err != nil {
		return
	}
	if _, err := call(ctx, http.MethodPost, admin, "/drain_listeners"); err != nil {
		return
	}

	// Existing connections stay open until their requests end.
	for {
		if n, err := p.InFlight(ctx); err != nil || n == 0 {
			return
		}
		if p.pause(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

// InFlight returns the number of requests that clients wait for.
func (p *Process) InFlight(ctx context.Context) (int, error) {
	return p.Stat(ctx, "http."+envoynames.ConnectionManager+".downstream_rq_active")
}

// Stat returns the value of one of Envoy's counters or gauges; 0 if there is none of that name yet.
func (p *Process) Stat(ctx context.Context, name string) (int, error) {
	admin, err := p.AdminAddress()
	if err != nil {
		return 0, err
	}

	name = strings.ReplaceAll(name, ":", "_") // Envoy replaces colons in names of statistics
	text, err := call(ctx, http.MethodGet, admin, "/stats?filter="+url.QueryEscape("^"+regexp.QuoteMeta(name)+"$"))
	if err != nil {
		return 0, fmt.Errorf("read stat %s: %w", name, err)
	}

	// The answer is "name: value", or empty while Envoy has no such statistic.
	_, n, ok := strings.Cut(strings.TrimSpace(text), ": ")
	if !ok {
		return 0, nil
	}
	return strconv.Atoi(n)
}

// pause waits for d. It returns an error when Envoy or ctx ends first.
func (p *Process) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()

	select {
	case <-t.C:
		return nil
	case <-p.child.Exited():
		return p.Run()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// adminKey is the key of the admin server's address in the context of a request.
type adminKey struct{}

// adminClient dials the admin server of its request, at a port or a socket. It closes its connections: requests are
// rare, and a drained Envoy must have none open.
var adminClient = &http.Client{Transport: &http.Transport{
	DisableKeepAlives: true,
	DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		admin, _ := ctx.Value(adminKey{}).(string)
		network := "tcp"
		if strings.HasPrefix(admin, "/") {
			network = "unix"
		}
		return new(net.Dialer).DialContext(ctx, network, admin)
	},
}}

// maxAnswer bounds an answer of Envoy's admin server.
const maxAnswer = 4 << 20

// call sends one request to the admin server at that address, with a time-out of one second, and returns the body.
func call(ctx context.Context, method, admin, path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, adminKey{}, admin), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, nil)
	if err != nil {
		return "", err
	}

	// The body of an answer is bounded, although Envoy is a child of this process.
	resp, err := adminClient.Do(req)
	if err != nil {
		return "", err
	}

	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err == nil && resp.StatusCode != http.StatusOK:
		err = errors.New(resp.Status)
	case len(b) == maxAnswer:
		return "", fmt.Errorf("the answer of Envoy's admin server to %s has %d bytes or more", path, maxAnswer)
	}
	return string(b), err
}
