package xds

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"
)

// An Envoy that pings as its bootstrap configures keeps its connection, for hours: each loss would be
// a reconnection and a full exchange of the configuration.
func TestPingsAreWelcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln, srv := bufconn.Listen(1<<20), grpc.NewServer(Options()...)
		go func() { _ = srv.Serve(ln) }()
		client, err := grpc.NewClient("passthrough:envoy",
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: 10 * time.Second, PermitWithoutStream: true}),
			grpc.WithIdleTimeout(0))
		if err != nil {
			t.Fatal(err)
		}
		client.Connect()
		for client.GetState() != connectivity.Ready {
			client.WaitForStateChange(t.Context(), client.GetState())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		if client.WaitForStateChange(ctx, connectivity.Ready) {
			t.Errorf("the connection became %s", client.GetState())
		}
		_ = client.Close()
		srv.Stop()
	})
}
