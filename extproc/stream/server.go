package stream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
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

// Settings can be replaced while the server runs.
type Settings struct {
	// BodyBytes bounds a body, and BodiesBytes the sum of those for which decisions are being made. A request
	// beyond the sum is answered with 503.
	BodyBytes, BodiesBytes int64
	// PassPaths are the paths whose requests reach workers although their bodies are not parsed. One that ends
	// in "/*" stands for all paths below it.
	PassPaths []string
	// DefaultModel serves the requests that name no model. It is the first one.
	DefaultModel string
	// SeveralPools means that there is more than one pool, so that Envoy needs the pool of every pick.
	SeveralPools bool
	// SessionHeader is the header with a client's session, in lower case.
	SessionHeader string

	// Hints selects the routing hints of trusted clients that count. Empty means HintsBody.
	Hints Hints
	// TrustEveryone trusts all clients. Otherwise a client is trusted on Envoy's listener for trusted clients,
	// and where Envoy's own authentication has set RoleHeader, in lower case, to one of TrustedRoles.
	TrustEveryone bool
	RoleHeader    string
	TrustedRoles  []string
	// TenantHeader is the header with the client's tenant by Envoy's own authentication, in lower case. Empty
	// means that there are no tenants.
	TenantHeader string
}

// headerNames returns the headers to read.
func (s *Settings) headerNames() messages.Names {
	return messages.Names{Session: s.SessionHeader, Role: s.RoleHeader, Tenant: s.TenantHeader}
}

// Server implements Envoy's ExternalProcessor service. Give it to [Register].
type Server struct {
	router   *route.Router
	log      *slog.Logger
	metrics  *metrics
	started  time.Time
	settings atomic.Pointer[Settings]
	bodies   bodyBudget
	panics   panicLog
	notices  notices
	// decisions keeps the memory of decisions for later requests.
	decisions sync.Pool // of *route.Decision
}

// NewServer returns a server that decides with router.
func NewServer(set Settings, router *route.Router, log *slog.Logger, reg prometheus.Registerer) *Server {
	s := &Server{router: router, log: log, started: time.Now()}
	s.metrics = newMetrics(reg, &s.bodies)
	s.panics.log, s.notices.log = log, log
	s.decisions.New = func() any { return new(route.Decision) }
	s.Reload(set)
	return s
}

// Reload replaces the settings. A request that has begun may use old and new ones.
func (s *Server) Reload(set Settings) {
	s.bodies.limit.Store(set.BodiesBytes)
	s.settings.Store(&set)
}

const (
	// headerRoom is the size of a message beside its body: the headers, and protobuf's own bytes.
	headerRoom = 1 << 20
	// streamWindow and connectionWindow are HTTP/2 flow-control windows. They hold several large
	// bodies, so that one does not wait for window updates.
	streamWindow     = 4 << 20
	connectionWindow = 16 << 20
	// maxStreams exceeds the requests that wait for a decision at one time. gRPC's default would make
	// Envoy queue requests where the router cannot see them.
	maxStreams = 100_000
)

// Options returns the options of a gRPC server for this service, with bodies of so many bytes.
func Options(bodyBytes int64) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(messages.Codec()),
		grpc.MaxRecvMsgSize(int(bodyBytes) + headerRoom),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.MaxConcurrentStreams(maxStreams),
	}
}

// Register serves s on a gRPC server that was made with [Options]. The generated registration only
// supports the generated messages; see package messages.
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
	growStack()

	x := s.newExchange(stream.Context())
	msg := messages.Request{Names: s.settings.Load().headerNames(), Reserve: s.bodies.reserve, Free: s.bodies.free}
	defer msg.Release()
	defer x.drop()
	for {
		if err := stream.RecvMsg(&msg); err != nil {
			return streamEnd(err)
		}
		last, err := x.serve(stream, &msg)
		if last || err != nil {
			return err
		}
	}
}

// newExchange returns the exchange of a stream with this context.
func (s *Server) newExchange(ctx context.Context) *exchange {
	return &exchange{
		srv: s, source: accesslog.Source(ctx), done: ctx.Done(),
		configured:      isConfiguredHere(ctx),
		trustedListener: hasMetadata(ctx, envoynames.MetadataTrusted, "true"),
	}
}

// serve handles one message of Envoy and sends the reply. It returns true after the last one. A panic fails this
// request only: see failOpen.
func (x *exchange) serve(stream grpc.ServerStream, msg *messages.Request) (last bool, err error) {
	answered := x.phase
	defer func() {
		if v := recover(); v != nil {
			last, err = true, x.failOpen(stream, answered, v)
		}
		x.recycle()
	}()

	r, err := x.handle(msg)
	if err != nil {
		x.srv.metrics.outcomes.WithLabelValues("protocol_error").Inc()
		x.srv.notices.add(x.source, status.Convert(err).Message())
		return true, err
	}

	if r.pick != nil && stream.Context().Err() != nil {
		// Envoy reset the stream during the decision, because the client cancelled. On one connection
		// the access-log entry follows the reset, so it may have arrived before the booking was made.
		// The booking must end here then. After SendMsg the check would be wrong: an Envoy that has
		// read the reply also ends the stream.
		x.srv.router.End(r.pick.ID, time.Now())
		return true, nil
	}
	if r.queued != nil {
		if r.queued.body == nil {
			msg.Release() // the body can be freed during the wait; a new one counts in its place
		}
		r, err = x.wait(stream, r.queued)
		if !r.last {
			return true, err
		}
	}

	if err := x.send(stream, r, answered); err != nil {
		if r.pick != nil && x.mode == messages.FullDuplex {
			x.srv.router.End(r.pick.ID, time.Now()) // Envoy may not have read the reply, which has the booking's id
		}
		return true, streamEnd(err)
	}
	return r.last, nil
}

// recycle gives the memory of the decision back, after the reply was sent.
func (x *exchange) recycle() {
	if x.decision != nil {
		x.srv.decisions.Put(x.decision)
		x.decision = nil
	}
}

// handle passes a message to the exchange and counts the outcome.
func (x *exchange) handle(m *messages.Request) (r reply, err error) {
	began := time.Now()
	switch {
	case m.Refused:
		r = x.answerWith(overloaded())
	case m.Observed:
		x.srv.notices.add(x.source, "it ignores all decisions: remove observability_mode")
		return reply{last: true, silent: true}, nil
	case m.Kind == messages.Headers && x.phase == wantHeaders:
		x.mode = m.Mode
		r = x.onHeaders(headOf(m), began)
	case m.Kind == messages.Headers:
		err = status.Error(codes.InvalidArgument, "request headers arrived twice")
	case m.Kind == messages.Body:
		r, err = x.onBodyMessage(m, began)
	case m.Kind == messages.Trailers:
		r, err = x.onTrailers(m, began)
	default:
		err = unexpected(m)
	}
	if err != nil {
		return r, err
	}

	x.srv.observe(x, r, time.Since(began))
	return r, nil
}

// observe counts a reply that ends the exchange. Decisions after a wait are not part of the duration: their
// time is the queue's.
func (s *Server) observe(x *exchange, r reply, duration time.Duration) {
	if !r.last {
		return
	}
	outcome := outcomePicked
	if r.answer != nil {
		outcome = r.answer.detail
		s.metrics.outcomes.WithLabelValues(outcome).Inc()
	} else {
		s.metrics.picked.Inc()
	}
	if r.pick != nil {
		if r.pick.Wait == nil {
			s.metrics.duration.Observe(duration.Seconds())
		}
		s.metrics.blocks.Observe(float64(r.pick.Blocks))
	}
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.logReply(x, r, outcome, duration)
	}
}

// logReply logs one request at level debug.
func (s *Server) logReply(x *exchange, r reply, outcome string, duration time.Duration) {
	if r.pick == nil {
		s.log.Debug("request answered", "outcome", outcome, "method", x.head.method, "path", clip(x.head.path),
			"status", r.answer.status, "duration", duration)
		return
	}
	s.log.Debug("request picked", "decision", r.pick.ID, "model", r.pick.Model, "worker", r.pick.Worker, "rank", r.pick.Rank,
		"blocks", r.pick.Blocks, "overlap", r.pick.Overlap, "duration", duration)
}

// streamEnd returns nil for the errors with which a stream ends regularly: Envoy closed it, or reset it because
// the client cancelled.
func streamEnd(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// isConfiguredHere reports whether the Envoy at the other end has its configuration from package xds.
func isConfiguredHere(ctx context.Context) bool {
	return hasMetadata(ctx, ":authority", envoynames.Authority)
}

// hasMetadata reports whether the metadata with which Envoy opened the stream has this value. Clients of the
// gateway cannot set it.
func hasMetadata(ctx context.Context, key, value string) bool {
	values := metadata.ValueFromIncomingContext(ctx, key)
	return len(values) == 1 && values[0] == value
}
