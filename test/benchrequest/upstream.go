package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
)

// answer is the response of every worker to every request: one token.
const answer = `{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"sim","choices":[{"index":0,` +
	`"message":{"role":"assistant","content":"Yes"},"finish_reason":"length"}],` +
	`"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`

// workers are HTTP servers that read a request and answer it at once.
type workers struct {
	addresses []string
	served    atomic.Int64
	servers   []*http.Server
	running   sync.WaitGroup
}

func startWorkers(n int) (*workers, error) {
	w := &workers{}
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			w.stop()
			return nil, err
		}
		s := &http.Server{Handler: http.HandlerFunc(w.serve)}
		w.addresses = append(w.addresses, ln.Addr().String())
		w.servers = append(w.servers, s)
		w.running.Go(func() {
			if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				panic(err) // a listener on loopback does not fail by itself
			}
		})
	}

	return w, nil
}

func (w *workers) serve(rw http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	if r.Method == http.MethodPost { // routers also ask a worker for its models, now and then
		w.served.Add(1)
	}
	rw.Header()["Content-Type"] = []string{"application/json"}
	rw.Header()["Content-Length"] = []string{strconv.Itoa(len(answer))}
	_, _ = io.WriteString(rw, answer)
}

func (w *workers) stop() {
	for _, s := range w.servers {
		_ = s.Close()
	}
	w.running.Wait()
}
