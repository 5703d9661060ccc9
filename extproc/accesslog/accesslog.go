// Package accesslog receives Envoy's access log over gRPC and ends the bookings it names.
//
// Every request that Envoy has finished, however it ended, is one entry: with the id of its
// booking where there was one, the worker that was picked and the one that served. Entries
// are joined on our own id, never on a client's request id. The package does not see bodies
// and does not decide anything; what it counts is the proof that decisions are obeyed.
//
// # Concurrency
//
// Each Envoy worker thread has a stream, served by a goroutine of the gRPC server. Run owns
// the watch over closed streams.
package accesslog

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/stator-project/stator/extproc/messages"
)

// Bookings are what entries end. *route.Router is one.
type Bookings interface {
	End(id string, now time.Time) bool
	EndBefore(source string, t time.Time) int
}

// patience is how long after an Envoy's log was closed its bookings of before end: nobody else
// will say how they ended. It is there for entries that are still on their way.
const patience = 5 * time.Second

// Server implements Envoy's AccessLogService. Give it to [Register].
type Server struct {
	// Ended is told of each entry, with how its request was served; it must keep nothing of it. Nil
	// is not told. Set it before the server serves.
	Ended func(e *messages.Entry, how string, now time.Time)

	bookings Bookings
	log      *slog.Logger
	metrics  *metrics

	mu      sync.Mutex
	sources map[string]*source // guarded by mu
}

// source is one Envoy.
type source struct {
	open int // streams
	// closed is when the last open stream was closed last; zero if that never was. What was
	// booked before it is unsettled until the time due; zero when nothing is.
	closed, due time.Time
}

// NewServer returns a server that ends bookings.
func NewServer(b Bookings, log *slog.Logger, reg prometheus.Registerer) *Server {
	return &Server{bookings: b, log: log, metrics: newMetrics(reg), sources: map[string]*source{}}
}

// Register serves s on a gRPC server whose codec is that of package messages.
func Register(g *grpc.Server, s *Server) {
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: alsv3.AccessLogService_ServiceDesc.ServiceName,
		HandlerType: (*interface{ StreamAccessLogs(grpc.ServerStream) error })(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "StreamAccessLogs", ClientStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error { return srv.(*Server).StreamAccessLogs(stream) },
		}},
		Metadata: alsv3.AccessLogService_ServiceDesc.Metadata,
	}, s)
}

// StreamAccessLogs reads one stream of *messages.Log until Envoy closes it.
func (s *Server) StreamAccessLogs(stream grpc.ServerStream) error {
	name := Source(stream.Context())
	s.opened(name)
	defer s.closed(name)
	var msg messages.Log
	for {
		if err := stream.RecvMsg(&msg); err != nil {
			return nil // Envoy went away, or its worker thread ended: both are its affair
		}
		now := time.Now()
		for i := range msg.Entries {
			s.entry(&msg.Entries[i], now)
		}
	}
}

// entry ends the booking of one request and counts how it was served.
func (s *Server) entry(e *messages.Entry, now time.Time) {
	if e.Booking != "" {
		s.bookings.End(e.Booking, now)
	}
	how := outcome(e.Decision != "", e.Upstream, e.Attempts, e.Picked, e.Served)
	s.metrics.served.WithLabelValues(how).Inc()
	if s.Ended != nil {
		s.Ended(e, how, now)
	}
	if how == Misdirected || how == Unpicked {
		s.log.Debug("request not served as picked", "outcome", how, "decision", e.Decision, "picked", e.Picked, "served", e.Served)
	}
	if e.FirstByte > 0 && how == AsPicked {
		s.metrics.firstByte.Observe(e.FirstByte.Seconds())
	}
}

// How a request was served.
const (
	AsPicked    = "as_picked"   // by the worker that was picked
	Retried     = "retried"     // by another, after an attempt failed
	Misdirected = "misdirected" // by another, although no attempt failed: the pick was ignored
	Unpicked    = "unpicked"    // by Envoy's own choice: nobody decided
	Unserved    = "unserved"    // picked, but no worker was reached
	Answered    = "answered"    // by the gateway itself
)

func outcome(decided, upstream bool, attempts uint32, picked, served string) string {
	first, _, _ := strings.Cut(picked, ",")
	switch {
	case !decided && !upstream:
		return Answered
	case !decided:
		return Unpicked
	case !upstream:
		return Unserved
	case served == first:
		return AsPicked
	case attempts > 1:
		return Retried
	default:
		return Misdirected
	}
}

func (s *Server) opened(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.streams.Inc()
	if s.sources[name] == nil {
		s.sources[name] = &source{}
	}
	s.sources[name].open++
}

func (s *Server) closed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.streams.Dec()
	src := s.sources[name]
	if src.open--; src.open > 0 {
		return
	}
	src.closed = time.Now()
	if src.due.IsZero() {
		src.due = src.closed.Add(patience)
	}
}

// Run ends the bookings of Envoys whose log was closed, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.sweep(now)
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Server) sweep(now time.Time) {
	for name, before := range s.unsettled(now) {
		n := s.bookings.EndBefore(name, before)
		if n == 0 {
			continue
		}
		s.metrics.abandoned.Add(float64(n))
		s.log.Warn("access log was closed; the bookings of before were ended", "source", name, "bookings", n)
	}
}

// unsettled returns the Envoys that have gone, with the time before which their bookings are
// over, and forgets those that are still away.
//
// An Envoy that has come back is not asked to have stayed away: it may be a new process, which
// will not report what the old one carried. If it is the old one, then what it still carries is
// counted by the engine's own word alone from now on. A booking that never ends would be worse.
func (s *Server) unsettled(now time.Time) map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := map[string]time.Time{}
	for name, src := range s.sources {
		switch {
		case src.open == 0 && now.Sub(src.closed) > patience:
			before[name] = now
			delete(s.sources, name)
		case !src.due.IsZero() && now.After(src.due):
			before[name] = src.closed
			src.due = time.Time{}
		}
	}
	return before
}

// Source names the Envoy at the other end of a stream: by its host, because its decisions and
// its access log come by different connections.
func Source(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.Network() // a Unix socket: the Envoy on this host
	}
	return host
}

type metrics struct {
	streams   prometheus.Gauge
	served    *prometheus.CounterVec
	firstByte prometheus.Histogram
	abandoned prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "stator", Subsystem: "accesslog", Name: "streams",
			Help: "Access log streams open now: one per Envoy worker thread that has had something to say.",
		}),
		served: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "accesslog", Name: "requests_total",
			Help: "Finished requests: as_picked, retried, misdirected, unpicked, unserved, or answered by the gateway.",
		}, []string{"outcome"}),
		firstByte: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "stator", Subsystem: "accesslog", Name: "first_byte_seconds",
			Help:    "Time to the first byte of the worker's response headers. Streaming engines send them before the first token.",
			Buckets: prometheus.ExponentialBuckets(1e-3, 2, 16),
		}),
		abandoned: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "stator", Subsystem: "accesslog", Name: "abandoned_bookings_total",
			Help: "Bookings ended because their Envoy's access log was closed before it told of them.",
		}),
	}
	for _, how := range []string{AsPicked, Retried, Misdirected, Unpicked, Unserved, Answered} {
		m.served.WithLabelValues(how)
	}
	reg.MustRegister(m.streams, m.served, m.firstByte, m.abandoned)
	return m
}
