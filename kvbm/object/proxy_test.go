package object_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// proxy passes requests on to a server. It counts them, delays them, and changes them on the way.
type proxy struct {
	*httptest.Server

	mu     sync.Mutex
	seen   []string // method, path and range, without the requests of probes
	delay  time.Duration
	change func(r *http.Request)
}

func newProxy(t *testing.T, endpoint string) *proxy {
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{}
	pass := &httputil.ReverseProxy{
		// The host stays as it is, because it is part of the signature.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme = to.Scheme
			r.Out.URL.Host = to.Host
			r.Out.Host = r.In.Host
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			// The connection ends, as if the server had ended.
			panic(http.ErrAbortHandler)
		},
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		if !strings.Contains(r.URL.String(), "probe") {
			p.seen = append(p.seen, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Range")))
		}
		delay := p.delay
		change := p.change
		p.mu.Unlock()

		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return
		}
		if change != nil {
			change(r)
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) set(delay time.Duration, change func(r *http.Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
	p.change = change
}

// requests returns the requests that have been sent since the last call.
func (p *proxy) requests() (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list = p.seen
	p.seen = nil
	return list
}
