// Package accesslog receives Envoy's access log over gRPC and ends the bookings of finished requests.
//
// Every request that Envoy has finished is one entry, however it ended. An entry contains the id of its
// booking if there was one, the worker that was picked and the one that served. Entries are matched
// by the router's own id and never by a client's request id. The package sees no bodies and decides
// nothing. Its counters show whether Envoy obeys the decisions.
//
// # Ends without an access log
//
// If an Envoy has no access log here, or one without ids, package exchange follows its requests and reports their ends;
// see [Server.Ended]. A booking ends by the first of these sources, in order of trust, and later ones are ignored:
//
//	source       what is known                                 who served, and whether it failed
//	-----------  --------------------------------------------  ---------------------------------
//	access_log   everything                                    yes
//	response     the status, the first byte and the last one   if the filter sends it
//	stream_end   the end                                       no
//	engines      nothing: an engine reports that it is idle    no
//
// While it is not known whether an Envoy has a log, ends of streams wait for lateEntries, so that an entry comes first.
// Token counts of responses are not read: no part of the router learns from the counts of the access log either.
//
// # Several routers
//
// Envoy balances decisions over all routers, and sends the log of each of its worker threads to one of them.
// An id begins with the name of the router that made it. An entry of another router goes to Config.Foreign,
// which passes it on, and arrives there at [Server.Apply].
//
// # Several Envoys
//
// A booking belongs to the Envoy whose stream asked for it; see [Source]. An Envoy that dies sends no more
// entries, so its bookings end when it has no connection any more: [Server.Listener] watches them.
//
// # Concurrency
//
// Each Envoy worker thread has a stream, which a goroutine of the gRPC server reads. [Server.Run] watches
// for closed streams and connections.
package accesslog

import (
	"cmp"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/pick"
)

// Bookings are ended by entries. *route.Router implements it.
type Bookings interface {
	Ended(e route.Ending, now time.Time) (pick.Booking, bool)
	EndBefore(source string, t time.Time) int
	Bookings() int // that have not ended
	IsBooked(id string) bool
	// IDFor returns the id that the booking of a request had if Envoy did not learn it.
	IDFor(source, requestID string) string
}

// lateEntries is the time after the end of an Envoy's log in which entries that were on their way may
// still arrive. Then the bookings of before end, because no entry will end them.
const lateEntries = 5 * time.Second

// Config is read by NewServer and not changed later.
type Config struct {
	Bookings Bookings
	// Replica is the name with which the ids of this router begin. Entries of other routers go to Foreign. Both
	// are empty if there is one router alone.
	Replica string
	Foreign func(replica string, e *messages.Entry)
	// Gone is called when a log of an Envoy was closed: entries were lost with it, also the entries of other
	// routers. It passes the time of the end on to them. May be nil.
	Gone func(source string, closed time.Time)
	// Ended receives each entry with the outcome of its request, and the booking that it has ended, or nil. It must not keep
	// them. May be nil.
	Ended   func(e *messages.Entry, outcome string, k *pick.Booking, now time.Time)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Server implements Envoy's AccessLogService. Give it to [Register].
type Server struct {
	cfg     Config
	metrics *metrics
	panics  sync.Once // the first one is logged with its stack
	noIDs   noIDs
	silent  noEntries

	mu      sync.Mutex
	sources map[string]*source // guarded by mu; by name
	awaited map[string]*end    // guarded by mu; by booking, at most maxAwaited
}

// NewServer returns a server that ends bookings.
func NewServer(cfg Config) *Server {
	s := &Server{cfg: cfg, metrics: newMetrics(cfg.Metrics), sources: map[string]*source{}, awaited: map[string]*end{}}
	cfg.Metrics.MustRegister(NewEnvoyCollector(s.Envoys))
	return s
}

// Register serves s on a gRPC server that has the codec of package messages.
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
			s.entry(name, &msg.Entries[i], now)
		}
	}
}

// entry passes the entry of another router's request on, and applies one of this router's. A client that left at the moment
// of the decision may have left no id of it in Envoy.
func (s *Server) entry(source string, e *messages.Entry, now time.Time) {
	hasIDs := e.Booking != "" || e.Decision != ""
	if e.Booking == "" && e.RequestID != "" && e.Left {
		e.Booking = s.cfg.Bookings.IDFor(source, e.RequestID)
	}
	owner := ownerOf(cmp.Or(e.Booking, e.Decision))
	if s.cfg.Foreign != nil && owner != "" && owner != s.cfg.Replica {
		s.cfg.Foreign(owner, e)
		return
	}
	s.apply(source, hasIDs, e, now)
}

// ownerOf returns the name of the router that made an id; empty for an id without one.
func ownerOf(id string) string {
	i := strings.LastIndexByte(id, '-')
	if i < 0 {
		return ""
	}
	return id[:i]
}

// Apply ends the booking of one request, whose entry another router received, and counts its outcome.
func (s *Server) Apply(e *messages.Entry, now time.Time) { s.apply("", true, e, now) }

// apply applies the entry of an Envoy. source is empty if another router received it. hasIDs means that the entry carries
// an id itself. A panic is counted, and costs this entry alone.
func (s *Server) apply(source string, hasIDs bool, e *messages.Entry, now time.Time) {
	defer func() {
		if cause := recover(); cause != nil {
			s.metrics.panics.Inc()
			s.panics.Do(func() {
				s.cfg.Log.Error("an access-log entry was dropped after a panic; later ones are counted only", "panic", cause,
					"stack", string(debug.Stack()))
			})
		}
	}()

	s.silent.entries.Add(1)
	if s.noIDs.observe(e) && s.cfg.Bookings.Bookings() >= manyWithoutID {
		s.cfg.Log.Warn("entries of the access log carry no ids of decisions, so bookings stay: set "+
			"metadata_options.receiving_namespaces.untyped of Envoy's ext_proc filter to [envoy.lb, stator]; "+
			"compare your filter with `stator envoy bootstrap` and docs/operations.md", "bookings", s.cfg.Bookings.Bookings())
	}

	outcome := outcomeOf(e)
	s.metrics.count(outcome)
	var k *pick.Booking
	if e.Booking != "" {
		ended, ok := s.cfg.Bookings.Ended(endingOf(e), now)
		if ok {
			k = &ended
		}
		s.logged(source, e.Booking, hasIDs, ok)
	}
	if s.cfg.Ended != nil {
		s.cfg.Ended(e, outcome, k, now)
	}

	if outcome == Misdirected || outcome == Unpicked {
		s.cfg.Log.Debug("request not served as picked",
			"outcome", outcome, "decision", e.Decision, "picked", e.Picked, "served", e.Served)
	}
}

type metrics struct {
	streams   prometheus.Gauge
	requests  *prometheus.CounterVec
	asPicked  prometheus.Counter // the one of AsPicked, which is found faster than by its label
	abandoned prometheus.Counter
	panics    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	part := metric.For(reg, "accesslog")
	m := &metrics{
		streams: part.Gauge("streams", "Open access log streams: one per Envoy worker thread that has logged a request."),
		requests: part.Counters("requests_total",
			"Finished requests by outcome: as_picked, retried, failed, misdirected, unpicked, unserved, answered by the gateway, or "+
				"unconfirmed: picked, by an Envoy without an access log, which does not report who served.",
			"outcome"),
		abandoned: part.Counter("abandoned_bookings_total",
			"Bookings ended because their Envoy closed its access log without an entry for them."),
		panics: part.Counter("panics_total", "Access-log entries that were dropped after a panic, which is a bug of this program."),
	}

	for _, outcome := range []string{AsPicked, Retried, Failed, Misdirected, Unpicked, Unserved, Answered, Unconfirmed} {
		m.requests.WithLabelValues(outcome)
	}
	m.asPicked = m.requests.WithLabelValues(AsPicked)
	return m
}

// count counts a finished request.
func (m *metrics) count(outcome string) {
	if outcome == AsPicked {
		m.asPicked.Inc()
		return
	}
	m.requests.WithLabelValues(outcome).Inc()
}
