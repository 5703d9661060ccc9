package stream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/route"
)

// Settings are what a reload may change.
type Settings struct {
	// BodyBytes bounds a body, as received and after decompression.
	BodyBytes int64
	// RejectUnknown answers 404 on paths that are not parsed; else they are routed by load.
	RejectUnknown bool
	// DefaultModel is the first model: it serves what names no model.
	DefaultModel string
	// Pools gives for each name the model whose workers serve it.
	Pools map[string]string
	// AffinityHeader is the header that names a client's session, in lower case.
	AffinityHeader string
	// Hints says what clients are trusted with: see the Hints values. Empty means HintsBody.
	Hints Hints
}

// Server implements Envoy's ExternalProcessor service. Give it to [Register].
type Server struct {
	router   *route.Router
	log      *slog.Logger
	metrics  *metrics
	started  time.Time
	settings atomic.Pointer[Settings]
}

// NewServer returns a server that decides with router.
func NewServer(set Settings, router *route.Router, log *slog.Logger, reg prometheus.Registerer) *Server {
	s := &Server{router: router, log: log, metrics: newMetrics(reg), started: time.Now()}
	s.settings.Store(&set)
	return s
}

// Reload replaces the settings; requests that have begun keep a mixture of both.
func (s *Server) Reload(set Settings) { s.settings.Store(&set) }

// Options are what a gRPC server for this service needs: the codec of its messages, room for
// the largest body in one, windows that do not stall on it, and no bound of its own on
// decisions in flight.
func Options(bodyBytes int64) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(messages.Codec()),
		grpc.MaxRecvMsgSize(int(bodyBytes) + 1<<20),
		grpc.InitialWindowSize(4 << 20),
		grpc.InitialConnWindowSize(16 << 20),
		grpc.MaxConcurrentStreams(100_000),
	}
}

// Register serves s on a gRPC server that was made with [Options]. The generated registration
// would not do: it knows the generated messages only (see package envoywire).
func Register(g *grpc.Server, s *Server) {
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: extprocv3.ExternalProcessor_ServiceDesc.ServiceName,
		HandlerType: (*interface{ Process(grpc.ServerStream) error })(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Process", ServerStreams: true, ClientStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error { return srv.(*Server).Process(stream) },
		}},
		Metadata: extprocv3.ExternalProcessor_ServiceDesc.Metadata,
	}, s)
}

// Process serves one request of a client: a stream of *messages.Request.
func (s *Server) Process(stream grpc.ServerStream) error {
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	deepen()
	x := exchange{srv: s, source: accesslog.Source(stream.Context()), ours: ours(stream.Context())}
	msg := messages.Request{Affinity: s.settings.Load().AffinityHeader}
	for {
		if err := stream.RecvMsg(&msg); err != nil {
			return ended(err)
		}
		answered, r, err := x.on(&msg)
		if err != nil {
			s.metrics.outcomes.WithLabelValues("protocol_error").Inc()
			return err
		}
		if r.pick != nil && stream.Context().Err() != nil {
			// Envoy gave the request up while we decided. Its access-log entry may have come before
			// the booking was made, and found none: entries follow a reset on one connection. Asked
			// after the answer is sent, this would take an Envoy that has read it for one that left.
			s.router.End(r.pick.ID, time.Now())
			return nil
		}
		if r.parked != nil {
			msg = messages.Request{Affinity: msg.Affinity} // a body is large, and a wait may be long
			if r, err = x.park(stream, r.parked); !r.last {
				return err
			}
		}
		if err := stream.SendMsg(s.toMessage(r, answered)); err != nil {
			return ended(err)
		}
		if r.last {
			return nil
		}
	}
}

// on hands a message to the exchange and counts what became of it.
func (x *exchange) on(m *messages.Request) (answered phase, r reply, err error) {
	answered, began := x.phase, time.Now()
	switch m.Kind {
	case messages.Headers:
		if x.phase != wantHeaders {
			return answered, r, status.Error(codes.InvalidArgument, "request headers came twice")
		}
		x.whole = m.Buffered
		r = x.onHeaders(headOf(m), began)
	case messages.Body:
		// In mode BUFFERED the body is whole even where it is not the end, because trailers follow.
		if x.phase != wantBody || !x.whole && !m.EndOfStream {
			return answered, r, status.Error(codes.InvalidArgument,
				"the body came in pieces or out of turn: set request_body_mode to BUFFERED and request_header_mode to SEND")
		}
		r = x.onBody(m.Body, began)
	case messages.Other:
		return answered, r, status.Errorf(codes.InvalidArgument,
			"message %s is not expected: set request_body_mode to BUFFERED and all other modes but request_header_mode to SKIP", m)
	}
	x.srv.observe(x, r, time.Since(began))
	return answered, r, nil
}

// observe counts a reply that ends the exchange.
func (s *Server) observe(x *exchange, r reply, took time.Duration) {
	if !r.last {
		return
	}
	outcome := "picked"
	if r.answer != nil {
		outcome = r.answer.detail
	}
	s.metrics.outcomes.WithLabelValues(outcome).Inc()
	if r.pick != nil {
		if r.pick.Wait == nil {
			s.metrics.duration.Observe(took.Seconds())
		}
		s.metrics.blocks.Observe(float64(r.pick.Blocks))
	}
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.debug(x, r, outcome, took)
	}
}

func (s *Server) debug(x *exchange, r reply, outcome string, took time.Duration) {
	if r.pick == nil {
		s.log.Debug("request answered", "outcome", outcome, "method", x.head.method, "path", clip(x.head.path), "status", r.answer.status, "duration", took)
		return
	}
	s.log.Debug("request picked", "decision", r.pick.ID, "model", r.pick.Model, "worker", r.pick.Worker, "rank", r.pick.Rank,
		"blocks", r.pick.Blocks, "overlap", r.pick.Overlap, "duration", took)
}

// ended turns the end of a stream, by Envoy or by a client that left, into no error.
func ended(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// ours says whether the Envoy at the other end has its configuration from package xds.
func ours(ctx context.Context) bool {
	authority := metadata.ValueFromIncomingContext(ctx, ":authority")
	return len(authority) == 1 && authority[0] == envoynames.Authority
}

// otherPool says which pool serves a model, and whether that is not the default one.
func (s *Server) otherPool(model string) (pool string, other bool) {
	set := s.settings.Load()
	pool = set.Pools[model]
	if pool == "" {
		pool = model
	}
	return pool, pool != "" && pool != set.DefaultModel
}
