package main

import (
	"errors"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
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
	return staticBootstrap(cfg, nowhere, func(manager *hcmv3.HttpConnectionManager) error {
		manager.AccessLog = nil
		manager.HttpFilters = manager.HttpFilters[len(manager.HttpFilters)-1:]
		return nil
	})
}

// nowhere is the address of routers if there are none.
const nowhere = "unix:///nowhere"

// duplexBootstrap is the same with all filters, asking extproc in mode FULL_DUPLEX_STREAMED.
func duplexBootstrap(cfg *config.Config, extproc string) ([]byte, error) {
	return staticBootstrap(cfg, extproc, func(manager *hcmv3.HttpConnectionManager) error {
		for _, f := range manager.GetHttpFilters() {
			var filter extprocv3.ExternalProcessor
			if f.GetTypedConfig().MessageIs(&filter) {
				return setDuplex(f, &filter)
			}
		}
		return errors.New("there is no ext_proc filter")
	})
}

// setDuplex sets the mode of an ext_proc filter. Envoy demands the trailers too in this mode.
func setDuplex(f *hcmv3.HttpFilter, filter *extprocv3.ExternalProcessor) error {
	if err := f.GetTypedConfig().UnmarshalTo(filter); err != nil {
		return err
	}
	filter.ProcessingMode.RequestBodyMode = extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED
	filter.ProcessingMode.RequestTrailerMode = extprocv3.ProcessingMode_SEND
	packed, err := anypb.New(filter)
	f.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed}
	return err
}

// staticBootstrap is the configuration that stator xds would serve for cfg, as a static one, with a changed connection
// manager.
func staticBootstrap(cfg *config.Config, extproc string, change func(*hcmv3.HttpConnectionManager) error) ([]byte, error) {
	r, err := resources(cfg, extproc)
	if err != nil {
		return nil, err
	}

	if err := changeManager(r.Listeners[0], r.Routes[0], change); err != nil {
		return nil, fmt.Errorf("change listener: %w", err)
	}

	boot := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: "static", Cluster: "static"},
		Admin: &bootstrapv3.Admin{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
		}}}},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Listeners: r.Listeners},
	}

	for _, c := range r.Clusters {
		if extproc == nowhere && c.GetName() == "stator-extproc" {
			continue
		}
		if c.GetType() != clusterv3.Cluster_EDS { // clusters of routers and of requests without a decision stay as they are
			boot.StaticResources.Clusters = append(boot.StaticResources.Clusters, c)
			continue
		}
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		c.EdsClusterConfig = nil
		c.LoadAssignment = r.Endpoints[0] // there is one model
		boot.StaticResources.Clusters = append(boot.StaticResources.Clusters, c)
	}

	if err := boot.ValidateAll(); err != nil {
		return nil, fmt.Errorf("static bootstrap is invalid: %w", err)
	}
	return protojson.Marshal(boot)
}

// resources asks package xds as stator xds does.
func resources(cfg *config.Config, extproc string) (xds.Resources, error) {
	m := &cfg.Models[0]
	f := fleet.New(fleet.Hooks{})
	for _, w := range m.Workers {
		if _, err := f.Put(fleet.Worker{Name: w.Name, Model: m.Name, Address: w.Address, Ranks: 1, Weight: uint32(w.Weight),
			BlockSize: m.LaunchBlockSize(), State: fleet.Ready}); err != nil {
			return xds.Resources{}, fmt.Errorf("add worker: %w", err)
		}
	}

	g := &cfg.Gateway
	return xds.Build(xds.Settings{
		Listen: g.Listen, ExtProc: []string{extproc}, Models: []string{m.Name}, MaxBodyBytes: g.MaxBodyBytes,
		DecisionTimeout: g.DecisionTimeout.Std(), IdleTimeout: g.IdleTimeout.Std(), SessionHeaders: g.SessionHeaders(),
	}, f.Snapshot())
}

// changeManager changes the connection manager of a listener, and puts the routes in place.
func changeManager(l *listenerv3.Listener, routes *routev3.RouteConfiguration, change func(*hcmv3.HttpConnectionManager) error) error {
	filter := l.GetFilterChains()[0].GetFilters()[0]
	var manager hcmv3.HttpConnectionManager
	if err := filter.GetTypedConfig().UnmarshalTo(&manager); err != nil {
		return err
	}

	if err := change(&manager); err != nil {
		return err
	}
	manager.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	packed, err := anypb.New(&manager)
	if err != nil {
		return err
	}

	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
	return nil
}
