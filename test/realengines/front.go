package main

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"

	"github.com/stator-project/stator/test/loopback"
)

// front is a server in front of an engine. It passes all requests, and can act before the engine gets one, and between its answer
// and the arrival of that at the gateway.
type front struct {
	engine *engine
	server *http.Server
	onBody func(body []byte)                      // gets the body of every POST; nil for none
	stream func(body io.ReadCloser) io.ReadCloser // replaces the body of every answer to a POST; nil for none

	mu     sync.Mutex
	before func()                     // guarded by mu; of the next POST
	after  func(answer []byte) []byte // guarded by mu; of the next answer to a POST
}

// startFront starts a server in front of an engine, and has the gateway use it.
func startFront(e *engine) (*front, error) {
	address, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	f, err := startFrontAt(e, address)
	if err == nil {
		e.front = address
	}
	return f, err
}

// startFrontAt starts a server in front of an engine at an address. It listens when this returns.
func startFrontAt(e *engine, address string) (*front, error) {
	f := &front{engine: e}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: e.address})
	proxy.ModifyResponse = f.modify
	proxy.FlushInterval = -1
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	// A dead engine has no connections, so this server closes its own.
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }

	f.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.arrive(r)
		if f.onBody != nil && r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			f.onBody(body)
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		proxy.ServeHTTP(w, r)
	})}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go func() { _ = f.server.Serve(listener) }()
	return f, nil
}

// stop stops the server. Gateways that start later use the engine itself.
func (f *front) stop() {
	f.engine.front = ""
	_ = f.server.Close()
}

// onNext sets what happens to the next answer to a POST: after returns the answer that the gateway gets.
func (f *front) onNext(after func(answer []byte) []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = after
}

// onArrival sets what happens before the engine gets the next POST.
func (f *front) onArrival(before func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

// arrive calls the function that is set for one request.
func (f *front) arrive(r *http.Request) {
	if r.Method != http.MethodPost {
		return
	}
	f.mu.Lock()
	before := f.before
	f.before = nil
	f.mu.Unlock()
	if before != nil {
		before()
	}
}

// modify changes one answer.
func (f *front) modify(r *http.Response) error {
	if r.Request.Method != http.MethodPost {
		return nil
	}
	if f.stream != nil {
		r.Body = f.stream(r.Body)
	}
	f.mu.Lock()
	after := f.after
	f.after = nil
	f.mu.Unlock()
	if after == nil {
		return nil
	}

	answer, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil {
		return err
	}
	answer = after(answer)
	r.Body = io.NopCloser(bytes.NewReader(answer))
	r.ContentLength = int64(len(answer))
	r.Header.Set("Content-Length", strconv.Itoa(len(answer)))
	return nil
}
