package stream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
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
	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/envoynames"
)

// Server implements Envoy's ExternalProcessor service. Give it to [Register].
type Server struct {
	// requests has the exchanges of all requests, of other doors as well.
	requests *exchange.Service
	metrics  *metrics
	notices  notices
	// draining is closed when Drain begins, and cut when its time is over.
	draining, cut chan struct{}
	drain         sync.Once
	followed      atomic.Int64 // streams that are open after their decision
	streams       atomic.Int64 // all that are open
}

// NewServer returns a server whose streams are exchanges of requests.
func NewServer(requests *exchange.Service, log *slog.Logger, reg prometheus.Registerer) *Server {
	return &Server{
		requests: requests, metrics: newMetrics(reg), notices: notices{log: log}, draining: make(chan struct{}), cut: make(chan struct{}),
	}
}

const (
	// headerRoom is the size of a message beside its body: the headers, and protobuf's own bytes.
	headerRoom = 1 << 20
	// streamWindow and connectionWindow are HTTP/2 flow-control windows. They hold several large
	// bodies, so that one does not wait for window updates.
	streamWindow     = 4 << 20
	connectionWindow = 16 << 20
	// maxStreams exceeds the requests that wait for a decision at one time. gRPC's default would make Envoy queue
	// requests, invisible to the router.
	maxStreams = 100_000
)

// Options returns the options of a gRPC server for this service, with bodies up to the given number of bytes.
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

// door is the stream of one request: the exchange, and the state that only ext_proc's protocol has. It belongs to
// the goroutine of the stream.
type door struct {
	exchange.Exchange
	srv    *Server
	stream grpc.ServerStream
	// mode is the way in which Envoy sends bodies of requests, and responseMode the way in which it sends bodies of responses.
	mode, responseMode messages.Mode
	// foreign means that neither xds nor the snippet has configured the filter, so it may pass on the load balancer's namespace alone.
	foreign  bool
	trailers bool  // the request has trailers, in mode FullDuplex
	observed bool  // Envoy ignores replies, so there are none
	usage    usage // of an observed response
	passing  bool  // the decision was made with the headers, in mode Streamed, and the body follows
}

// Process serves one request of a client: a stream of *messages.Request.
func (s *Server) Process(stream grpc.ServerStream) error {
	s.streams.Add(1)
	defer s.streams.Add(-1)
	d := s.open(stream)
	defer func() { d.OnEnd(true, time.Now()) }() // for ends that do not come from Envoy
	if err := d.decide(); err != nil || d.Phase() != exchange.Following {
		return streamEnd(err)
	}
	return d.follow()
}

// decide answers messages until the decision was sent. Its memory is free again when it returns.
func (d *door) decide() error {
	d.srv.metrics.streams.Inc()
	defer d.srv.metrics.streams.Dec()
	growStack()

	requests := d.srv.requests
	msg := messages.Request{Names: headerNames(requests.Settings()), Reserve: requests.Reserve, Free: requests.Free}
	defer msg.Release()
	defer d.Drop()
	for {
		if err := d.stream.RecvMsg(&msg); err != nil {
			return err
		}
		last, err := d.serve(&msg)
		if last || err != nil {
			return err
		}
	}
}

// open returns the door of a new stream.
func (s *Server) open(stream grpc.ServerStream) *door {
	ctx := stream.Context()
	configured := hasMetadata(ctx, ":authority", envoynames.Authority)
	ours := configured || hasMetadata(ctx, ":authority", envoynames.SnippetAuthority)
	origin := exchange.Origin{
		Source: accesslog.Source(ctx), Context: ctx, Configured: configured, ReadsMetadata: ours,
		TrustedListener: hasMetadata(ctx, envoynames.MetadataTrusted, "true"),
	}
	if s.requests.Traces() {
		origin.Traceparent = metadataOf(ctx, "traceparent")
	}
	return &door{srv: s, stream: stream, foreign: !ours, Exchange: s.requests.Begin(origin)}
}

// headerNames returns the headers to read.
func headerNames(s *exchange.Settings) messages.Names {
	return messages.Names{Sessions: s.SessionHeaders(), Role: s.RoleHeader, Tenant: s.TenantHeader}
}

// serve handles one message of Envoy and sends the reply. It returns true after the last one. A panic fails this
// request only.
func (d *door) serve(msg *messages.Request) (last bool, err error) {
	answered := d.Phase()
	defer func() {
		if cause := recover(); cause != nil {
			last = true
			err = streamEnd(d.send(d.OnPanic(cause, debug.Stack(), time.Now()), answered))
		}
		d.Recycle()
	}()

	r, err := d.handle(msg, time.Now())
	if err != nil {
		d.srv.requests.CountProtocolError()
		d.srv.notices.logOnce(d.Source(), status.Convert(err).Message())
		if d.observed {
			return true, nil // an error would harm the request
		}
		return true, err
	}

	if r.Pick != nil && d.Gone() {
		// Envoy reset the stream during the decision, because the client cancelled. On one connection
		// the access-log entry follows the reset, so it may have arrived before the booking was made.
		// The booking must end here then. After SendMsg the check would be wrong: an Envoy that has
		// read the reply also ends the stream.
		d.OnUndelivered(r.Pick, time.Now())
		return true, nil
	}
	if r.Queued != nil {
		if r.Body == nil {
			msg.Release() // the body can be freed during the wait; a new one counts in its place
		}
		var decided bool
		r, decided, err = d.wait(r)
		if !decided {
			return true, err
		}
	}

	if err := d.send(r, answered); err != nil {
		if r.Pick != nil && d.mode == messages.FullDuplex {
			d.OnUndelivered(r.Pick, time.Now()) // Envoy may not have read the reply, which has the booking's id
		}
		return true, streamEnd(err)
	}
	if r.Pick != nil && d.mode == messages.Streamed && answered == exchange.WantHeaders && !msg.EndOfStream {
		d.passing = true
		return false, nil
	}
	return r.Last, nil
}

// handle passes a message to the exchange.
func (d *door) handle(m *messages.Request, now time.Time) (exchange.Reply, error) {
	switch {
	case m.Refused:
		return d.OnOverload(now), nil
	case m.Observed != d.srv.requests.IsShadow():
		problem := "it ignores all decisions: remove observability_mode, or start the router with --shadow"
		if !m.Observed {
			problem = "it awaits decisions, and this router is a shadow: set observability_mode"
		}
		d.srv.notices.logOnce(d.Source(), problem)
		return exchange.Reply{Last: true, Silent: true}, nil
	case m.Kind == messages.Headers && d.Phase() == exchange.WantHeaders:
		return d.onHeaders(m, now), nil
	case m.Kind == messages.Headers:
		return exchange.Reply{}, status.Error(codes.InvalidArgument, "request headers arrived twice")
	case m.Kind == messages.Body:
		return d.onBody(m, now)
	case m.Kind == messages.Trailers:
		return d.onTrailers(m, now)
	}

	if d.observed {
		return exchange.Reply{}, status.Error(codes.InvalidArgument, "a response came before the body of its request: set "+
			"request_body_mode to STREAMED")
	}
	return exchange.Reply{}, unexpected(m)
}

// onHeaders handles the first message.
func (d *door) onHeaders(m *messages.Request, now time.Time) exchange.Reply {
	d.mode = m.Mode
	d.responseMode = m.ResponseMode
	d.observed = m.Observed
	head := headOf(m)
	if d.observed { // Envoy names no mode, and sends bodies in pieces
		d.mode = messages.FullDuplex
		head.Unread, head.Pieces = "", true
	}
	r := d.OnHeaders(head, now)
	if d.Unread() {
		d.noteUnread()
	}
	return r
}

// envoyPatience is the time by which Envoy waits longer than the request: the decision must reach Envoy before it
// forwards the request without a pick.
const envoyPatience = 5 * time.Second

// wait returns the reply of a queued request. False means that the client has left. Envoy accepts a new timeout once
// for each of its messages, so there is one wait, which always ends with a decision.
func (d *door) wait(r exchange.Reply) (decision exchange.Reply, decided bool, err error) {
	// Envoy's timeout is longer than the wait, so that it does not end first. In mode FullDuplex it has none.
	if d.mode != messages.FullDuplex {
		longest := max(0, time.Until(r.Queued.Until()))
		if err := d.stream.SendMsg(&messages.Response{Wait: longest + envoyPatience}); err != nil {
			d.CancelQueued(r.Queued)
			return r, false, streamEnd(err)
		}
	}
	decision, decided = d.Await(r.Queued, r.Body)
	return decision, decided, nil
}

// streamEnd returns nil for the errors with which a stream ends regularly: Envoy closed it, or reset it because
// the client cancelled.
func streamEnd(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// hasMetadata reports whether the metadata with which Envoy opened the stream has this value, which is not empty.
func hasMetadata(ctx context.Context, key, value string) bool { return metadataOf(ctx, key) == value }

// metadataOf returns a value of the metadata with which Envoy opened the stream; empty without it. Clients of the gateway cannot set it.
func metadataOf(ctx context.Context, key string) string {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) != 1 {
		return ""
	}
	return values[0]
}
