package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/metric"
)

// Config is read by New and not changed later.
type Config struct {
	Requests *exchange.Service
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Handler serves the requests that Envoy sends to the relay. Create it with [New].
type Handler struct {
	requests *exchange.Service
	log      *slog.Logger
	engines  *http.Transport
	outcomes *prometheus.CounterVec
}

// The outcomes of attempts.
const (
	answered      = "answered"
	brokeOff      = "broke_off"
	workerFailed  = "worker_failed"
	prefillFailed = "prefill_failed"
	clientLeft    = "client_left"
	noAttempt     = "no_worker"
)

// New returns a handler.
func New(cfg Config) *Handler {
	h := &Handler{requests: cfg.Requests, log: cfg.Log, engines: prefill.NewTransport(connectWithin)}
	h.outcomes = metric.For(cfg.Metrics, "relay").Counters("attempts_total",
		"Attempts of the relay by outcome: worker_failed and prefill_failed are followed by another attempt, if there is one left.",
		"outcome")
	for _, o := range []string{answered, brokeOff, workerFailed, prefillFailed, clientLeft, noAttempt} {
		h.outcomes.WithLabelValues(o)
	}
	return h
}

// connectWithin bounds the time for a connection to a decode worker, as Envoy's pools do.
const connectWithin = 2 * time.Second

// Serve serves on ln until ctx ends. Then it waits a moment for the requests that are in flight.
func (h *Handler) Serve(ctx context.Context, ln net.Listener) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 128 << 10,
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() {
		last, cancel := context.WithTimeout(context.Background(), drainFor)
		defer cancel()
		_ = server.Shutdown(last)
		_ = server.Close()
	})
	defer stop()
	defer h.engines.CloseIdleConnections()
	err := server.Serve(ln)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// drainFor is how long the requests in flight may last after the end of the process was asked for.
const drainFor = 2 * time.Second

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, free, answer := h.read(r)
	defer free()
	if answer != nil {
		write(w, answer)
		return
	}
	head := exchange.Head{Method: r.Method, Path: r.URL.RequestURI(), RequestID: r.Header.Get(prefill.HeaderRequestID),
		Authorization: r.Header.Get("authorization")}
	relayed, answer := h.requests.Relay(head, r.Header.Get(envoynames.HeaderDecision), body, r.Context().Done())
	if answer != nil {
		write(w, answer)
		return
	}

	if at := relayed.FailedAt(); at != "" && accepts(r.Context(), at) {
		relayed.IsAlive()
	}

	for !h.attempt(w, r, relayed) {
	}
}

// attempt makes the next attempt, and reports whether the client has its answer, or has left. Both legs end with it.
func (h *Handler) attempt(w http.ResponseWriter, r *http.Request, relayed *exchange.Relayed) (done bool) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	attempt, answer := relayed.Next(ctx, time.Now())
	if answer != nil {
		h.count(noAttempt)
		write(w, answer)
		return true
	}
	return h.try(ctx, cancel, w, r, attempt)
}

// accepts reports whether a worker accepts connections.
func accepts(ctx context.Context, address string) bool {
	connection, err := (&net.Dialer{Timeout: acceptWithin}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// acceptWithin bounds the wait for a connection: engines are on the same network.
const acceptWithin = 200 * time.Millisecond

// read reads the body, of as many bytes as the gateway accepts. free gives back its part of the budget.
func (h *Handler) read(r *http.Request) (body []byte, free func(), answer *exchange.Answer) {
	free = func() {}
	limit := h.requests.Settings().BodyBytes
	if r.ContentLength > limit {
		return nil, free, exchange.TooLarge(limit)
	}

	var buf bytes.Buffer
	_, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		return nil, free, exchange.Incomplete()
	case int64(buf.Len()) > limit:
		return nil, free, exchange.TooLarge(limit)
	case !h.requests.Reserve(buf.Len()):
		return nil, free, exchange.Overloaded()
	}
	return buf.Bytes(), func() { h.requests.Free(buf.Len()) }, nil
}

// write writes an answer of this process.
func write(w http.ResponseWriter, a *exchange.Answer) {
	w.Header().Set("content-type", "application/json")
	if seconds := a.RetrySeconds(); seconds != "" {
		w.Header().Set("retry-after", seconds)
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}

// try sends an attempt, and reports whether the client has its answer, or has left. Cancel stops both legs.
func (h *Handler) try(
	ctx context.Context, cancel context.CancelFunc, w http.ResponseWriter, r *http.Request, a *exchange.Attempt,
) (done bool) {
	response, prefillOK, err := h.send(ctx, cancel, r, a)
	if response != nil {
		defer func() { _ = response.Body.Close() }()
	}

	switch {
	case r.Context().Err() != nil:
		h.count(clientLeft)
		a.Left(time.Now())
		return true
	case !prefillOK && !a.Last():
		h.count(prefillFailed)
		a.PrefillFailed(err, time.Now())
		return false
	case err != nil && a.Last():
		cancel()
		h.count(workerFailed)
		a.Failed(err, time.Now())
		write(w, exchange.NoAnswer())
		return true
	case err != nil, a.MayRetry(response.StatusCode):
		cancel()
		h.count(workerFailed)
		a.Failed(err, time.Now())
		return false
	}
	h.forward(w, r, response, a)
	return true
}

// The states of an attempt before its answer.
const (
	waiting int32 = iota
	begun         // the answer has begun, or will not
	stopped       // the prefill worker has failed
)

// send sends the request of an attempt, and returns the response when its headers are there. prefillOK is false where the leg to
// the prefill worker has failed before; cancel has then stopped the request.
func (h *Handler) send(
	ctx context.Context, cancel context.CancelFunc, r *http.Request, a *exchange.Attempt,
) (response *http.Response, prefillOK bool, err error) {
	request, err := newRequest(ctx, r, a)
	if err != nil {
		return nil, true, err
	}

	var state atomic.Int32
	if leg := a.Leg; leg != nil {
		go func() {
			select {
			case <-leg.Done():
			case <-ctx.Done():
				return
			}
			if leg.Outcome() != prefill.Transferred && state.CompareAndSwap(waiting, stopped) {
				cancel()
			}
		}()
	}
	response, err = h.engines.RoundTrip(request)
	return response, state.CompareAndSwap(waiting, begun), err
}

// newRequest returns the request of an attempt, with the client's headers.
func newRequest(ctx context.Context, r *http.Request, a *exchange.Attempt) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, r.Method, "http://"+a.Address+r.URL.RequestURI(), bytes.NewReader(a.Body))
	if err != nil {
		return nil, err
	}
	request.Header = r.Header.Clone()
	request.Host = r.Host
	for _, name := range hopByHop {
		request.Header.Del(name)
	}
	request.Header.Del(envoynames.HeaderDecision)
	request.Header.Del("Content-Length")
	request.Header.Del(prefill.HeaderRank)
	for _, h := range a.Set {
		request.Header.Set(h.Key, h.Value)
	}
	return request, nil
}

// hopByHop are the headers of one connection.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// forward copies the response to the client, each piece as it comes.
func (h *Handler) forward(w http.ResponseWriter, r *http.Request, response *http.Response, a *exchange.Attempt) {
	header := w.Header()
	maps.Copy(header, response.Header)
	for _, name := range hopByHop {
		header.Del(name)
	}
	w.WriteHeader(response.StatusCode)

	err := copyFlushed(w, response.Body)
	left := r.Context().Err() != nil
	a.Answered(response.StatusCode, err != nil && !left, time.Now())
	switch {
	case left:
		h.count(clientLeft)
	case err != nil:
		h.count(brokeOff)
		panic(http.ErrAbortHandler) // the client must see that something is missing
	default:
		h.count(answered)
	}
}

// copyFlushed copies a response's body, and flushes each piece.
func copyFlushed(w http.ResponseWriter, body io.Reader) error {
	control := http.NewResponseController(w)
	piece := make([]byte, 16<<10)
	for {
		n, err := body.Read(piece)
		if n > 0 {
			if _, err := w.Write(piece[:n]); err != nil {
				return err
			}
			if err := control.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (h *Handler) count(outcome string) { h.outcomes.WithLabelValues(outcome).Inc() }
