// Package grpcserve runs a gRPC server together with the task that feeds it, and ends streams together with their last message.
//
// Its functions and [Endings] are safe for concurrent use.
package grpcserve

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
)

// Run serves on ln, and runs task beside it, until ctx ends or one of the two fails. The context of task
// ends with the server. Run returns when both have ended.
func Run(ctx context.Context, srv *grpc.Server, ln net.Listener, task func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	done := make(chan error, 1)
	go func() {
		err := task(ctx)
		srv.Stop() // and not GracefulStop: Envoy's streams do not end by themselves
		done <- err
	}()

	err := srv.Serve(ln)
	stop()
	if errors.Is(err, grpc.ErrServerStopped) { // the task has ended before the server began to serve
		err = nil
	}
	if taskErr := <-done; err == nil {
		err = taskErr
	}
	return err
}
