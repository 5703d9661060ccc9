package main

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"

	"github.com/stator-project/stator/test/loopback"
)

// front is a server in front of an engine. It passes all requests, and can act between an answer of the engine and its arrival at
// the gateway.
type front struct {
	engine *engine
	server *http.Server

	mu    sync.Mutex
	after func(answer []byte) []byte // guarded by mu; of the next answer to a POST
}

// startFront starts a server in front of an engine, and has the gateway use it.
func startFront(e *engine) (*front, error) {
	address, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	f := &front{engine: e}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: e.address})
	proxy.ModifyResponse = f.modify
	proxy.FlushInterval = -1
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	// A dead engine has no connections, so this server closes its own.
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }

	f.server = &http.Server{Addr: address, Handler: proxy}
	go func() { _ = f.server.ListenAndServe() }()
	e.front = address
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

// modify changes one answer.
func (f *front) modify(r *http.Response) error {
	if r.Request.Method != http.MethodPost {
		return nil
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
