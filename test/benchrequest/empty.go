package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"

	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// emptyCommand, as the first argument, makes this program the empty handler: it is followed
// by the path of its Unix socket and the address of its counts.
const emptyCommand = "--serve-empty-handler"

// emptyHandler lets every request go on as it is, and drops the access log.
type emptyHandler struct {
	extprocv3.UnimplementedExternalProcessorServer
	alsv3.UnimplementedAccessLogServiceServer

	headers, bodies, entries atomic.Int64
}

// emptyOptions returns the options of package extproc, written out. They are the defaults of
// grpc-go with room for large bodies, and the yardstick must not move when extproc's improve.
func emptyOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(65 << 20),
		grpc.InitialWindowSize(4 << 20),
		grpc.InitialConnWindowSize(16 << 20),
		grpc.MaxConcurrentStreams(100_000),
	}
}

// Process answers headers and body with nothing, and returns as soon as extproc would.
func (h *emptyHandler) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err // the stream is gone, so Envoy does not receive the error
		}
		switch msg.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			h.headers.Add(1)
			err = stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}})
		case *extprocv3.ProcessingRequest_RequestBody:
			h.bodies.Add(1)
			return stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}})
		default:
			return errors.New("unexpected message")
		}
		if err != nil {
			return err
		}
	}
}

// StreamAccessLogs counts entries and forgets them.
func (h *emptyHandler) StreamAccessLogs(stream alsv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		h.entries.Add(int64(len(msg.GetHttpLogs().GetLogEntry())))
	}
}

// serveEmpty is the process: Envoy on a Unix socket, counts and profiles on admin.
func serveEmpty(ctx context.Context, socket, admin string) error {
	h := &emptyHandler{}
	g := grpc.NewServer(emptyOptions()...)
	extprocv3.RegisterExternalProcessorServer(g, h)
	alsv3.RegisterAccessLogServiceServer(g, h)
	healthv1.RegisterHealthServer(g, health.NewServer()) // Envoy asks for it
	ln, err := net.Listen("unix", strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return fmt.Errorf("listen for envoy: %w", err)
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(counts{
			"headers": float64(h.headers.Load()), "bodies": float64(h.bodies.Load()), "entries": float64(h.entries.Load()),
		})
	})

	pages := &http.Server{Addr: admin, Handler: mux}
	go func() {
		<-ctx.Done()
		_ = pages.Close()
		g.Stop()
	}()

	failed := make(chan error, 1)
	go func() { failed <- pages.ListenAndServe() }()
	if err := g.Serve(ln); err != nil {
		return err
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
