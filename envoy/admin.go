package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// AdminAddress is where Envoy's admin server listens; it is known shortly after the start.
func (p *Process) AdminAddress() (string, error) {
	b, err := os.ReadFile(filepath.Join(p.dir, adminFile))
	if err != nil {
		return "", fmt.Errorf("read admin address: %w", err)
	}
	return string(b), nil
}

// WaitReady returns when Envoy has a listener and serves.
func (p *Process) WaitReady(ctx context.Context) error {
	for !p.ready(ctx) {
		if err := p.pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("wait for envoy: %w", err)
		}
	}
	return nil
}

// ready asks the admin server whether Envoy is live and has been given a listener: an Envoy
// whose control plane is late is live without one.
func (p *Process) ready(ctx context.Context) bool {
	admin, err := p.AdminAddress()
	if err != nil {
		return false
	}
	live, err := call(ctx, http.MethodGet, "http://"+admin+"/ready")
	if err != nil || !strings.HasPrefix(live, "LIVE") {
		return false
	}
	listeners, err := call(ctx, http.MethodGet, "http://"+admin+"/listeners")
	return err == nil && strings.TrimSpace(listeners) != ""
}

// Drain asks Envoy to accept nothing new and returns when nothing is in flight, when Envoy is
// gone or when ctx ends.
func (p *Process) Drain(ctx context.Context) {
	admin, err := p.AdminAddress()
	if err != nil {
		return
	}
	if _, err := call(ctx, http.MethodPost, "http://"+admin+"/drain_listeners"); err != nil {
		return
	}
	for {
		if n, err := p.InFlight(ctx); err != nil || n == 0 {
			return
		}
		if p.pause(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

// InFlight is the number of requests that clients wait for.
func (p *Process) InFlight(ctx context.Context) (int, error) {
	return p.Stat(ctx, "http."+envoynames.ConnectionManager+".downstream_rq_active")
}

// Stat reads one of Envoy's counters or gauges; 0 where it has none of that name yet.
func (p *Process) Stat(ctx context.Context, name string) (int, error) {
	admin, err := p.AdminAddress()
	if err != nil {
		return 0, err
	}
	name = strings.ReplaceAll(name, ":", "_") // as Envoy spells it
	text, err := call(ctx, http.MethodGet, "http://"+admin+"/stats?filter="+url.QueryEscape("^"+regexp.QuoteMeta(name)+"$"))
	if err != nil {
		return 0, fmt.Errorf("read stat %s: %w", name, err)
	}
	_, n, ok := strings.Cut(strings.TrimSpace(text), ": ")
	if !ok {
		return 0, nil
	}
	return strconv.Atoi(n)
}

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

// adminClient keeps no connection open: questions are rare, and a drained Envoy should be idle.
var adminClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// call asks the admin server, which answers within a second or is not asked further.
func call(ctx context.Context, method, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := adminClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(b), err
}
