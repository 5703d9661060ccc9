package grpcserve

import (
	"context"
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc"
)

// TestRunEndsBeforeItServes: the context ends before the server has begun to serve, which is no failure.
func TestRunEndsBeforeItServes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	srv := grpc.NewServer()
	srv.Stop() // as the task would have it, had it ended first
	if err := Run(ctx, srv, listen(t), waitForEnd); err != nil {
		t.Error(err)
	}
}

// TestRunReportsFailures: the error of the task ends the server, and that of the listener the task.
func TestRunReportsFailures(t *testing.T) {
	broken := errors.New("broken")
	err := Run(t.Context(), grpc.NewServer(), listen(t), func(context.Context) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("the task fails: %v", err)
	}
	closed := listen(t)
	_ = closed.Close()
	if err := Run(t.Context(), grpc.NewServer(), closed, waitForEnd); err == nil {
		t.Error("the listener is closed: no error")
	}
}

func waitForEnd(ctx context.Context) error { <-ctx.Done(); return nil }

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}
