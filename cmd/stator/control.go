package main

import (
	"context"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/grpcserve"
	"github.com/stator-project/stator/xds"
)

// control is the control plane with its fleet.
type control struct {
	// fleet is apart from a router's in the same process, because a router adds a worker only when Envoys have it.
	fleet *fleet.Fleet
	// members keeps the fleet up to date.
	members *discovery.Members
	// server makes Envoys' resources of the fleet, and grpc serves them.
	server *xds.Server
	grpc   *grpc.Server
	start  xds.Settings // of the start, which has the certificates for engines that this process uses itself
}

// newControl returns a control plane with the workers of a configuration. members logs the changes of the fleet, and followed registers
// the metrics of the members that it follows; nil for none.
func newControl(cfg *config.Config, s xds.Settings, engines *enginetls.Client, log, members *slog.Logger,
	reg, followed prometheus.Registerer,
) (*control, error) {
	workers, err := cfg.FleetWorkers()
	if err != nil {
		return nil, err
	}
	c := &control{fleet: fleet.New(fleet.Hooks{}), grpc: grpc.NewServer(xds.Options()...), start: s}
	c.members, err = discovery.NewMembers(discovery.MembersConfig{
		Fleet: c.fleet, Listed: workers, Log: members, Engines: engines, Metrics: followed,
	})
	if err != nil {
		return nil, err
	}
	c.server = xds.NewServer(s, c.fleet, log, reg)
	return c, nil
}

// addParts adds the parts of the control plane. Each of them runs until its context ends.
func (c *control) addParts(part func(func(context.Context) error), ln net.Listener, b *bus.Bus) {
	part(func(ctx context.Context) error {
		c.members.Run(ctx)
		return nil
	})
	part(func(ctx context.Context) error { return c.members.FollowBus(ctx, b) })
	if b != nil {
		part(func(ctx context.Context) error { return b.HoldPart(ctx, bus.PartControl, "") })
	}
	part(func(ctx context.Context) error {
		// An Envoy that already has workers would lose them for a moment if it were served before the fleet is complete. It
		// keeps its workers while it waits.
		c.members.AwaitComplete(ctx)
		c.server.Register(ctx, c.grpc)
		return grpcserve.Run(ctx, c.grpc, ln, c.server.Run)
	})
}

// reload replaces the listed workers and the settings. After an error nothing has changed.
func (c *control) reload(cfg *config.Config, s xds.Settings) error {
	workers, err := cfg.FleetWorkers()
	if err != nil {
		return err
	}
	if err := c.members.Set(workers); err != nil {
		return err
	}
	s.EngineTLS, s.EngineServerName = c.start.EngineTLS, c.start.EngineServerName
	s.EnginesInClear = c.start.EnginesInClear
	c.server.Reload(s)
	return nil
}
