package spans

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/stator-project/stator/internal/metric"
)

const (
	// queueLength bounds the spans that wait for the export. Most have less than typicalSpan.
	queueLength = 4096
	// maxBatch bounds the spans of one message, and batchWait the time for which the first one waits for others.
	maxBatch  = 512
	batchWait = time.Second
	// sendTimeout bounds the export of one batch.
	sendTimeout = 5 * time.Second
	// maxReply bounds the part of an HTTP answer that is read.
	maxReply = 64 << 10
	// logErrorsEvery is the least time between two logged errors.
	logErrorsEvery = time.Minute
)

// Config is read by New and not changed later.
type Config struct {
	// Endpoint is the receiver: http://host:4318 or https://host for OTLP over HTTP, with a path before /v1/traces if it has one, or
	// grpc://host:4317 for OTLP over gRPC without TLS.
	Endpoint string
	// Ratio is the share of the requests without a trace context that are sampled, 0 to 1.
	Ratio float64
	// SlowerThan has the spans of requests exported whose first token takes at least so long; 0 for none.
	SlowerThan time.Duration
	// Instance is the name of this process.
	Instance string
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Tracer exports spans. Create it with [New]. A nil Tracer makes none.
type Tracer struct {
	cfg      Config
	send     func(ctx context.Context, message []byte) error
	close    func()
	queue    chan []byte
	head     []byte // the fields of opentelemetry.proto.trace.v1.ResourceSpans before the spans
	exported prometheus.Counter
	dropped  *prometheus.CounterVec
	logged   time.Time // belongs to Run
}

// The reasons for which spans are dropped.
const (
	droppedFull   = "queue_full"
	droppedFailed = "export_failed"
)

// New returns a tracer that queues spans until it is run. It does not connect. The error names an endpoint that is no URL.
func New(cfg Config) (*Tracer, error) {
	t := &Tracer{cfg: cfg, queue: make(chan []byte, queueLength)}
	at, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	if at.Scheme == "grpc" {
		if err := t.overGRPC(at.Host); err != nil {
			return nil, fmt.Errorf("tracing.endpoint: %w", err)
		}
	} else {
		t.overHTTP(at.JoinPath("v1", "traces").String())
	}

	// A resource is opentelemetry.proto.resource.v1.Resource, and its field 1 are attributes.
	resource := appendAttribute(nil, 1, "service.name", "stator")
	resource = appendAttribute(resource, 1, "service.instance.id", cfg.Instance)
	t.head = appendBytes(nil, resourceSpansResource, resource)
	part := metric.For(cfg.Metrics, "spans")
	t.exported = part.Counter("exported_total", "Spans of requests that the receiver of traces has accepted.")
	t.dropped = part.Counters("dropped_total",
		"Spans of requests that were lost: the queue was full, or the receiver of traces did not accept them in time.", "reason")
	for _, reason := range []string{droppedFull, droppedFailed} {
		t.dropped.WithLabelValues(reason)
	}
	return t, nil
}

// exportMethod is the method of opentelemetry.proto.collector.trace.v1.TraceService.
const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// overGRPC sends messages by gRPC. An empty message whose unknown fields are the fields of the message is encoded as the message.
func (t *Tracer) overGRPC(host string) error {
	connection, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	t.close = func() { _ = connection.Close() }
	t.send = func(ctx context.Context, message []byte) error {
		var request, reply emptypb.Empty
		request.ProtoReflect().SetUnknown(message)
		return connection.Invoke(ctx, exportMethod, &request, &reply)
	}
	return nil
}

// overHTTP sends messages by HTTP. It follows no redirects.
func (t *Tracer) overHTTP(to string) {
	transport := &http.Transport{MaxConnsPerHost: 1, IdleConnTimeout: time.Minute}
	t.close = transport.CloseIdleConnections
	t.send = func(ctx context.Context, message []byte) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(message))
		if err != nil {
			return err
		}
		request.Header.Set("content-type", "application/x-protobuf")
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		_, _ = io.CopyN(io.Discard, answer.Body, maxReply) // so that the connection can be used again
		if answer.StatusCode/100 != 2 {
			return fmt.Errorf("the receiver answered %s", answer.Status)
		}
		return nil
	}
}

// enqueue queues an encoded span, or drops it if the queue is full.
func (t *Tracer) enqueue(span []byte) {
	select {
	case t.queue <- span:
	default:
		t.dropped.WithLabelValues(droppedFull).Inc()
	}
}

// Run exports spans until ctx ends, and then the queued ones, until one batch fails. It must be called once.
func (t *Tracer) Run(ctx context.Context) {
	defer t.close()
	for {
		select {
		case span := <-t.queue:
			t.export(t.gather(ctx, span))
		case <-ctx.Done():
			for len(t.queue) > 0 {
				if !t.export(t.gather(ctx, <-t.queue)) {
					t.dropped.WithLabelValues(droppedFailed).Add(float64(len(t.queue)))
					return
				}
			}
			return
		}
	}
}

// gather returns a batch that begins with a span. Once ctx has ended it does not wait for more.
func (t *Tracer) gather(ctx context.Context, span []byte) [][]byte {
	batch := [][]byte{span}
	wait := time.NewTimer(batchWait)
	defer wait.Stop()
	for len(batch) < maxBatch {
		select {
		case span := <-t.queue:
			batch = append(batch, span)
			continue
		default:
		}

		select {
		case span := <-t.queue:
			batch = append(batch, span)
		case <-wait.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// export sends a batch. It returns false if the batch was dropped.
func (t *Tracer) export(batch [][]byte) bool {
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	err := t.send(ctx, t.message(batch))
	if err == nil {
		t.exported.Add(float64(len(batch)))
		return true
	}

	t.dropped.WithLabelValues(droppedFailed).Add(float64(len(batch)))
	if now := time.Now(); now.Sub(t.logged) >= logErrorsEvery {
		t.logged = now
		t.cfg.Log.Warn("spans are lost, because the receiver of traces does not accept them", "endpoint", t.cfg.Endpoint,
			"spans", len(batch), "err", err)
	}
	return false
}

// The fields of opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest, and of ResourceSpans and ScopeSpans in it.
const (
	requestResourceSpans  = 1
	resourceSpansResource = 1
	resourceSpansScope    = 2
	scopeSpansScope       = 1
	scopeSpansSpans       = 2
	scopeName             = 1
)

// scope names the part of the program that makes the spans.
var scope = appendBytes(nil, scopeSpansScope, appendText(nil, scopeName, "stator/extproc"))

// message returns an ExportTraceServiceRequest with the spans.
func (t *Tracer) message(batch [][]byte) []byte {
	spans := len(scope)
	for _, s := range batch {
		spans += sizeOfTag + protowire.SizeBytes(len(s))
	}
	all := len(t.head) + sizeOfTag + protowire.SizeBytes(spans)

	b := make([]byte, 0, sizeOfTag+protowire.SizeBytes(all))
	b = protowire.AppendTag(b, requestResourceSpans, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(all))
	b = append(b, t.head...)
	b = protowire.AppendTag(b, resourceSpansScope, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(spans))
	b = append(b, scope...)
	for _, s := range batch {
		b = appendBytes(b, scopeSpansSpans, s)
	}
	return b
}
