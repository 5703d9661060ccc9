// Package adminclient asks the admin ports of running parts: with their token, over HTTP, HTTPS or a Unix socket.
//
// A client is safe for concurrent use.
package adminclient

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/listen"
)

// Config names an admin port.
type Config struct {
	// Address is ip:port, https://name:port, or unix:///path.
	Address string
	// TokenFile has the token of the port; empty for none.
	TokenFile string
	// CAFile is the CA of the port's certificate; empty for the system's CAs.
	CAFile string
}

// AddFlags adds the flags of a command that asks the admin port of a router.
func (c *Config) AddFlags(f *flag.FlagSet) {
	f.StringVar(&c.Address, "admin-address", "127.0.0.1:8081",
		"`address` of the router's admin port: ip:port, https://name:port or unix:///path")
	f.StringVar(&c.TokenFile, "admin-token-file", "", "`file` with the token of the admin port")
	f.StringVar(&c.CAFile, "admin-ca", "", "`file` with the CA of an https:// admin port in PEM (default: those of the system)")
}

// Client asks one admin port.
type Client struct {
	http http.Client
	base string // of URLs
}

// New returns a client whose requests end after timeout.
func New(c Config, timeout time.Duration) (*Client, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
	client := &Client{base: c.Address, http: http.Client{Timeout: timeout}}
	path, isSocket := strings.CutPrefix(c.Address, "unix://")
	switch {
	case isSocket:
		client.base = "http://admin"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	case !strings.Contains(c.Address, "://"):
		client.base = "http://" + c.Address
	}

	if c.CAFile != "" {
		roots, err := listen.ReadCA(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read --admin-ca: %w", err)
		}
		transport.TLSClientConfig.RootCAs = roots
	}

	token := ""
	if c.TokenFile != "" {
		var err error
		token, err = listen.ReadToken(c.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("--admin-token-file: %w", err)
		}
	}
	client.http.Transport = &withToken{transport, token}
	// An admin port does not redirect, and no other server may get the token.
	client.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client, nil
}

// HTTP returns the client of the port's URLs.
func (c *Client) HTTP() *http.Client { return &c.http }

// URL returns the URL of a page.
func (c *Client) URL(path string) string { return strings.TrimSuffix(c.base, "/") + path }

// Get returns at most so many bytes of the answer to a GET of a page, which may have a query, and the HTTP status.
func (c *Client) Get(ctx context.Context, path string, most int64) (body []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL(path), http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, most))
	return body, resp.StatusCode, err
}

// withToken adds a token to requests.
type withToken struct {
	next  http.RoundTripper
	token string
}

// RoundTrip sends a request.
func (t *withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+t.token)
	}
	return t.next.RoundTrip(r)
}
