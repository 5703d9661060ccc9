package relay

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/metric"
)

// Config is read by New and not changed later.
type Config struct {
	Requests *exchange.Service
	Log      *slog.Logger
	Metrics  prometheus.Registerer
	// Engines makes the connections to engines; nil makes them without TLS.
	Engines *enginetls.Client
}

// Handler serves the requests that Envoy sends to the relay. Create it with [New].
type Handler struct {
	requests *exchange.Service
	log      *slog.Logger
	engines  *http.Transport
	outcomes *prometheus.CounterVec

	streams, losses, migrations *prometheus.CounterVec
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
	h := &Handler{requests: cfg.Requests, log: cfg.Log, engines: prefill.NewTransport(cfg.Engines, connectWithin)}
	part := metric.For(cfg.Metrics, "relay")
	part.GaugeFunc("body_bytes", "Bytes of the bodies at the relay whose answers have not begun.",
		func() float64 { return float64(h.requests.RelayBudget().Used()) })
	h.outcomes = part.Counters("attempts_total",
		"Attempts of the relay by outcome: worker_failed and prefill_failed are followed by another attempt, if there is one left.",
		"outcome")
	for _, o := range []string{answered, brokeOff, workerFailed, prefillFailed, clientLeft, noAttempt} {
		h.outcomes.WithLabelValues(o)
	}
	h.addStreams(part)
	return h
}

const (
	// connectWithin bounds the time for a connection to a decode worker, as Envoy's pools do.
	connectWithin = 2 * time.Second
	// bodyWithin bounds the time in which a body arrives. Envoy sends bodies that it has as a whole.
	bodyWithin = 30 * time.Second
	// idleWithin ends connections without a request. Envoy ends its own after 4 s.
	idleWithin = 30 * time.Second
	// maxConnections bounds connections; each has one request at a time. Further ones wait to be accepted.
	maxConnections = 1 << 14
)

// Serve serves on ln until ctx ends. Then it waits for the requests that are in flight, until hard ends, at most for drain: streams break
// when it returns.
func (h *Handler) Serve(ctx context.Context, ln net.Listener, drain time.Duration, hard context.Context) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleWithin, MaxHeaderBytes: 128 << 10,
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() {
		last, cancel := context.WithTimeout(hard, drain)
		defer cancel()
		_ = server.Shutdown(last)
		_ = server.Close()
	})
	defer stop()
	defer h.engines.CloseIdleConnections()
	err := server.Serve(netutil.LimitListener(ln, maxConnections))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := &held{budget: h.requests.RelayBudget()}
	defer body.free()
	if answer := body.readBody(w, r, h.requests.Settings().BodyBytes); answer != nil {
		write(w, r, answer)
		return
	}
	head := exchange.Head{Method: r.Method, Path: r.URL.RequestURI(), RequestID: r.Header.Get(prefill.HeaderRequestID),
		Authorization: r.Header.Get("authorization"), Trace: spans.Parse([]byte(r.Header.Get(spans.Header)))}
	relayed, answer := h.requests.Relay(r.Context(), head, r.Header.Get(envoynames.HeaderDecision), body.bytes)
	if answer != nil {
		write(w, r, answer)
		return
	}

	if at := relayed.FailedAt(); at != "" && accepts(r.Context(), at) {
		relayed.IsAlive()
	}

	if p := relayed.Promise(); p != "" {
		h.streams.WithLabelValues(string(p)).Inc()
	}

	c := &call{h: h, w: w, r: r, body: body, relayed: relayed}
	for !c.attempt() {
	}
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

// write writes an answer of this process, in the form of the API of the request.
func write(w http.ResponseWriter, r *http.Request, a *exchange.Answer) {
	a = a.For(strings.TrimSuffix(r.URL.Path, "/"))
	w.Header().Set("content-type", "application/json")
	if seconds := a.RetrySeconds(); seconds != "" {
		w.Header().Set("retry-after", seconds)
	}
	if a.Allow != "" {
		w.Header().Set("allow", a.Allow)
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}

func (h *Handler) count(outcome string) { h.outcomes.WithLabelValues(outcome).Inc() }
