package main

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/xds"
)

// plainBootstrap is the configuration that stator xds would serve for cfg, as a static one
// and without what asks extproc anything: no ext_proc filter and no access log.
func plainBootstrap(cfg *config.Config) ([]byte, error) {
	r, err := resources(cfg)
	if err != nil {
		return nil, err
	}

	listener := r.Listeners[0]
	if err := strip(listener, r.Routes[0]); err != nil {
		return nil, fmt.Errorf("strip listener: %w", err)
	}

	boot := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: "plain", Cluster: "plain"},
		Admin: &bootstrapv3.Admin{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
		}}}},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Listeners: r.Listeners},
	}

	for _, c := range r.Clusters {
		if c.GetName() == "stator-extproc" {
			continue
		}
		if c.GetType() != clusterv3.Cluster_EDS { // that of requests without a decision: as it is
			boot.StaticResources.Clusters = append(boot.StaticResources.Clusters, c)
			continue
		}
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		c.EdsClusterConfig = nil
		c.LoadAssignment = r.Endpoints[0] // there is one model
		boot.StaticResources.Clusters = append(boot.StaticResources.Clusters, c)
	}

	if err := boot.ValidateAll(); err != nil {
		return nil, fmt.Errorf("plain bootstrap is invalid: %w", err)
	}
	return protojson.Marshal(boot)
}

// resources asks package xds as stator xds does.
func resources(cfg *config.Config) (xds.Resources, error) {
	m := &cfg.Models[0]
	f := fleet.New(fleet.Hooks{})
	for _, w := range m.Workers {
		if _, err := f.Put(fleet.Worker{Name: w.Name, Model: m.Name, Address: w.Address, Ranks: 1, Weight: uint32(w.Weight),
			BlockSize: m.BlockSize, State: fleet.Ready}); err != nil {
			return xds.Resources{}, fmt.Errorf("add worker: %w", err)
		}
	}

	g := &cfg.Gateway
	return xds.Build(xds.Settings{
		Listen: g.Listen, ExtProc: []string{"unix:///nowhere"}, Models: []string{m.Name}, MaxBodyBytes: g.MaxBodyBytes,
		DecisionTimeout: g.DecisionTimeout.Std(), IdleTimeout: g.IdleTimeout.Std(), AffinityHeader: g.AffinityHeader,
	}, f.Snapshot())
}

// strip leaves the router as the only filter, and puts the routes in place.
func strip(l *listenerv3.Listener, routes *routev3.RouteConfiguration) error {
	filter := l.GetFilterChains()[0].GetFilters()[0]
	var manager hcmv3.HttpConnectionManager
	if err := filter.GetTypedConfig().UnmarshalTo(&manager); err != nil {
		return err
	}

	manager.AccessLog = nil
	manager.HttpFilters = manager.HttpFilters[len(manager.HttpFilters)-1:]
	manager.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	packed, err := anypb.New(&manager)
	if err != nil {
		return err
	}

	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
	return nil
}
