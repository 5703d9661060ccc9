package accesslog

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Half-open connections are found by pings from both ends. A router that vanished would otherwise delay every
// request by the decision timeout, and an Envoy that vanished would keep its bookings. Envoy's interval comes from
// package xds.
const (
	pingInterval = 10 * time.Second
	pingTimeout  = 10 * time.Second
	// minPings is the shortest interval between an Envoy's pings. By default grpc-go treats more than one ping in
	// five minutes as abuse.
	minPings = time.Second
)

// Options returns the options of a gRPC server for Envoys.
func Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPings, PermitWithoutStream: true}),
	}
}
