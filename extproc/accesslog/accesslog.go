// Package accesslog receives Envoy's access log over gRPC and ends the bookings of finished requests.
//
// Every request that Envoy has finished is one entry, however it ended. An entry contains the id of its
// booking if there was one, the worker that was picked and the one that served. Entries are matched
// by the router's own id and never by a client's request id. The package sees no bodies and decides
// nothing. Its counters show whether Envoy obeys the decisions.
//
// # Concurrency
//
// Each Envoy worker thread has a stream, which a goroutine of the gRPC server reads. [Server.Run] watches
// for closed streams.
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
	"github.com/stator-project/stator/internal/metric"
)

// Bookings are ended by entries. *route.Router implements it.
type Bookings interface {
	End(id string, now time.Time) bool
	EndBefore(source string, t time.Time) int
}

// lateEntries is how long after the end of an Envoy's log the entries may still arrive that were on their
// way. Then the bookings of before end, because no entry will end them.
const lateEntries = 5 * time.Second

// Config is read by NewServer and not changed later.
type Config struct {
	Bookings Bookings
	// Ended receives each entry with the outcome of its request. It must not keep the entry. May be
	// nil.
	Ended   func(e *messages.Entry, outcome string, now time.Time)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Server implements Envoy's AccessLogService. Give it to [Register].
type Server struct {
	cfg     Config
	metrics *metrics

	mu      sync.Mutex
	sources map[string]*source // guarded by mu; by name
}

// source is one Envoy. Its bookings end as follows:
//
//	streams                      bookings made before   end
//	---------------------------  ---------------------  -----------------------------------------
//	all closed for lateEntries   now                    at once; the source is dropped
//	closed and open again        the last close         lateEntries after the first close
//	open                         -                      by their entries
type source struct {
	open int // streams
	// closed is when the last open stream was closed most recently; zero before the first time.
	closed time.Time
	// due is when the bookings from before closed end; zero if none have to.
	due time.Time
}

// NewServer returns a server that ends bookings.
func NewServer(cfg Config) *Server {
	return &Server{cfg: cfg, metrics: newMetrics(cfg.Metrics), sources: map[string]*source{}}
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
			return nil // Envoy, or one of its worker threads, has ended: that is no error here
		}

		now := time.Now()
		for i := range msg.Entries {
			s.entry(&msg.Entries[i], now)
		}
	}
}

// entry ends the booking of one request and counts its outcome.
func (s *Server) entry(e *messages.Entry, now time.Time) {
	if e.Booking != "" {
		s.cfg.Bookings.End(e.Booking, now)
	}

	outcome := outcomeOf(e)
	s.metrics.requests.WithLabelValues(outcome).Inc()
	if s.cfg.Ended != nil {
		s.cfg.Ended(e, outcome, now)
	}
	if outcome == Misdirected || outcome == Unpicked {
		s.cfg.Log.Debug("request not served as picked",
			"outcome", outcome, "decision", e.Decision, "picked", e.Picked, "served", e.Served)
	}
	if e.FirstByte > 0 && outcome == AsPicked {
		s.metrics.firstByte.Observe(e.FirstByte.Seconds())
	}
}

// The outcomes of requests.
const (
	AsPicked    = "as_picked"   // served by the picked worker
	Retried     = "retried"     // served by another worker after a failed attempt
	Misdirected = "misdirected" // served by another worker without a failed attempt: the pick was ignored
	Unpicked    = "unpicked"    // served by a worker that Envoy chose without a decision
	Unserved    = "unserved"    // picked, but no worker was reached
	Answered    = "answered"    // answered by the gateway without a worker
)

// outcomeOf returns how a request was served.
func outcomeOf(e *messages.Entry) string {
	decided := e.Decision != ""
	first, _, _ := strings.Cut(e.Picked, ",") // the others are for retries

	switch {
	case !decided && !e.Upstream:
		return Answered
	case !decided:
		return Unpicked
	case !e.Upstream:
		return Unserved
	case e.Served == first:
		return AsPicked
	case e.Attempts > 1:
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
	src.open--
	if src.open > 0 {
		return
	}
	src.closed = time.Now()
	if src.due.IsZero() {
		src.due = src.closed.Add(lateEntries)
	}
}

// Run ends the bookings of Envoys that closed their log, until ctx ends.
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
	for name, before := range s.overdue(now) {
		n := s.cfg.Bookings.EndBefore(name, before)
		if n == 0 {
			continue
		}
		s.metrics.abandoned.Add(float64(n))
		s.cfg.Log.Warn("access log closed; earlier bookings ended", "source", name, "bookings", n)
	}
}

// overdue returns the Envoys whose bookings have to end, with the time before which these were made. It
// drops the Envoys that are still away.
//
// Bookings also end for an Envoy that has connected again. It may be a new process, which does not
// report the requests of the old one. If it is the old process, the requests that it still serves are
// counted from the engine's reports only. The alternative is worse: bookings that never end.
func (s *Server) overdue(now time.Time) map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := map[string]time.Time{}
	for name, src := range s.sources {
		switch {
		case src.open == 0 && now.Sub(src.closed) > lateEntries:
			before[name] = now
			delete(s.sources, name)
		case !src.due.IsZero() && now.After(src.due):
			before[name] = src.closed
			src.due = time.Time{}
		}
	}
	return before
}

// Source returns the name of the Envoy at the other end of a stream: its host. The port is left out,
// because decisions and access log arrive by different connections.
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
	requests  *prometheus.CounterVec
	firstByte prometheus.Histogram
	abandoned prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	part := metric.For(reg, "accesslog")
	m := &metrics{
		streams: part.Gauge("streams", "Open access log streams: one per Envoy worker thread that has logged a request."),
		requests: part.Counters("requests_total",
			"Finished requests by outcome: as_picked, retried, misdirected, unpicked, unserved, or answered by the gateway.", "outcome"),
		firstByte: part.Histogram("first_byte_duration_seconds",
			"Time to the first byte of the worker's response headers. Streaming engines send them before the first token.",
			prometheus.ExponentialBuckets(1e-3, 2, 16)),
		abandoned: part.Counter("abandoned_bookings_total",
			"Bookings ended because their Envoy closed its access log without an entry for them."),
	}

	for _, outcome := range []string{AsPicked, Retried, Misdirected, Unpicked, Unserved, Answered} {
		m.requests.WithLabelValues(outcome)
	}
	return m
}
