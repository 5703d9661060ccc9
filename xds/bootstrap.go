package xds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	heapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	injectedv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/injected_resource/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// BootstrapSettings are the settings of an Envoy that it cannot get from the control plane.
type BootstrapSettings struct {
	// NodeID is the name of the Envoy in logs.
	NodeID string
	// Admin is the address of Envoy's admin server: ip:port, or unix:///path. Port 0 means a free port. The
	// admin server has no authentication, and can stop Envoy.
	Admin string
	// MaxConnections bounds the connections of clients. 0 is no bound.
	MaxConnections int
	// PressureFile is a file with the part of MaxConnections that is open, from 0 to 1: near the bound, Envoy closes the
	// connections that have been idle for longest. Empty means that there is no such file.
	PressureFile string
	// MaxHeapBytes bounds Envoy's heap: near it, Envoy answers requests with 503. 0 is no bound.
	MaxHeapBytes int64
	// XDS is the address of the control plane: ip:port, name:port or unix:///path. Several have commas between them.
	XDS string
	// Secrets is the folder of secrets, as Envoy sees it; see SecretFiles. Empty means no TLS. A Unix socket has none.
	Secrets string
	// XDSServerName is the DNS name in the certificate of the control plane.
	XDSServerName string
}

// xdsCluster is the name of the cluster of the control plane.
const xdsCluster = "stator-xds"

// pingInterval is the time between Envoy's pings to the control plane.
const pingInterval = 30 * time.Second

// Bootstrap returns an Envoy bootstrap in JSON: node, admin server and the cluster of the control plane. Everything
// else comes from the control plane.
func Bootstrap(b BootstrapSettings) ([]byte, error) {
	admin, err := grpcAddress(b.Admin)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	control, err := buildXDSCluster(b.XDS, b.Secrets, b.XDSServerName)
	if err != nil {
		return nil, err
	}

	var p packer
	boot := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: b.NodeID, Cluster: "gateway"},
		// An operator must be able to look at an Envoy that refuses connections.
		Admin:           &bootstrapv3.Admin{Address: admin, IgnoreGlobalConnLimit: true},
		OverloadManager: buildOverload(b, &p),
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: xdsSource(),
			LdsConfig: adsSource(),
			CdsConfig: adsSource(),
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters: []*clusterv3.Cluster{control},
		},
	}

	if p.err != nil {
		return nil, p.err
	}
	if err := boot.ValidateAll(); err != nil {
		return nil, fmt.Errorf("bootstrap is invalid: %w", err)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(boot)
	if err != nil {
		return nil, err
	}
	// The protobuf library varies the white space of JSON between builds, so it is indented again.
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil {
		return nil, fmt.Errorf("format bootstrap: %w", err)
	}
	return indented.Bytes(), nil
}

// xdsSource returns the way in which an Envoy asks the control plane.
func xdsSource() *corev3.ApiConfigSource {
	return &corev3.ApiConfigSource{
		// Only differences are sent, so a change costs the same with many workers.
		ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
		TransportApiVersion: corev3.ApiVersion_V3,
		// The node is large; it does not change within a stream.
		SetNodeOnFirstMessageOnly: true,
		GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: xdsCluster, Authority: "stator", RetryPolicy: xdsRetries()},
		}}},
	}
}

// buildXDSCluster builds the cluster of the control planes at addresses with commas. secrets is empty without TLS.
func buildXDSCluster(addresses, secrets, serverName string) (*clusterv3.Cluster, error) {
	list := strings.Split(addresses, ",")
	isSocket := func(a string) bool { return strings.HasPrefix(a, unixPrefix) }
	withTLS := secrets != "" && !slices.ContainsFunc(list, isSocket)
	if err := CheckServers(list, withTLS); err != nil {
		return nil, fmt.Errorf("xds: %w", err)
	}
	c, err := buildServers(xdsCluster, list)
	if err != nil {
		return nil, fmt.Errorf("xds: %w", err)
	}

	var p packer
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: p.pack(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
				// Without pings, a half-open connection would hide that the control plane has stopped.
				ConnectionKeepalive: &corev3.KeepaliveSettings{Interval: seconds(pingInterval), Timeout: seconds(10e9)},
			}},
		}},
	})}
	if withTLS {
		c.TransportSocket = clientTLS(secrets, serverName, &p)
	}
	return c, p.err
}

// Shares of MaxHeapBytes at which Envoy returns free memory to the system, and at which it refuses requests.
const (
	shrinkAt = 0.9
	refuseAt = 0.95
)

// Shares of a bound from which on connections without a request end earlier than after their time-out, and at which they
// end after leastIdle. Between the two the time falls evenly, so the connections that have been idle for longest end
// first.
const (
	shortenFrom = 0.75
	shortestAt  = 0.95
	leastIdle   = time.Second
)

// overloadInterval is the interval at which Envoy looks at its heap and its connections.
const overloadInterval = 250 * time.Millisecond

// Names of Envoy's monitors of resources.
const (
	connectionsMonitor = "envoy.resource_monitors.global_downstream_max_connections"
	pressureMonitor    = "envoy.resource_monitors.injected_resource"
	heapMonitor        = "envoy.resource_monitors.fixed_heap"
)

// buildOverload bounds the memory and the connections that clients can make Envoy hold.
func buildOverload(b BootstrapSettings, p *packer) *overloadv3.OverloadManager {
	if b.MaxConnections == 0 && b.MaxHeapBytes == 0 {
		return nil
	}
	o := &overloadv3.OverloadManager{RefreshInterval: seconds(overloadInterval)}
	var shorten []*overloadv3.Trigger

	if b.MaxConnections > 0 {
		o.ResourceMonitors = append(o.ResourceMonitors, monitor(connectionsMonitor,
			p.pack(&connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: int64(b.MaxConnections)})))
	}
	if b.MaxConnections > 0 && b.PressureFile != "" {
		o.ResourceMonitors = append(o.ResourceMonitors, monitor(pressureMonitor,
			p.pack(&injectedv3.InjectedResourceConfig{Filename: b.PressureFile})))
		shorten = append(shorten, between(pressureMonitor, shortenFrom, shortestAt))
	}
	if b.MaxHeapBytes > 0 {
		o.ResourceMonitors = append(o.ResourceMonitors, monitor(heapMonitor,
			p.pack(&heapv3.FixedHeapConfig{MaxHeapSizeBytes: uint64(b.MaxHeapBytes)})))
		shorten = append(shorten, between(heapMonitor, shortenFrom, shortestAt))
	}

	if len(shorten) > 0 {
		idle := &overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer{
			Timer:          overloadv3.ScaleTimersOverloadActionConfig_HTTP_DOWNSTREAM_CONNECTION_IDLE,
			OverloadAdjust: &overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer_MinTimeout{MinTimeout: seconds(leastIdle)},
		}
		action := overloadAction("reduce_timeouts", shorten...)
		action.TypedConfig = p.pack(&overloadv3.ScaleTimersOverloadActionConfig{
			TimerScaleFactors: []*overloadv3.ScaleTimersOverloadActionConfig_ScaleTimer{idle},
		})
		o.Actions = append(o.Actions, action)
	}
	if b.MaxHeapBytes > 0 {
		o.Actions = append(o.Actions, overloadAction("shrink_heap", from(heapMonitor, shrinkAt)),
			overloadAction("stop_accepting_requests", from(heapMonitor, refuseAt)))
	}
	return o
}

// overloadAction returns what Envoy does when a trigger acts.
func overloadAction(name string, triggers ...*overloadv3.Trigger) *overloadv3.OverloadAction {
	return &overloadv3.OverloadAction{Name: "envoy.overload_actions." + name, Triggers: triggers}
}

// from returns a trigger that acts at a share of the bound of a resource.
func from(resource string, share float64) *overloadv3.Trigger {
	return &overloadv3.Trigger{Name: resource, TriggerOneof: &overloadv3.Trigger_Threshold{
		Threshold: &overloadv3.ThresholdTrigger{Value: share},
	}}
}

// between returns a trigger that acts more and more between two shares of the bound of a resource.
func between(resource string, low, high float64) *overloadv3.Trigger {
	return &overloadv3.Trigger{Name: resource, TriggerOneof: &overloadv3.Trigger_Scaled{
		Scaled: &overloadv3.ScaledTrigger{ScalingThreshold: low, SaturationThreshold: high},
	}}
}

// monitor returns a monitor of a resource.
func monitor(name string, config *anypb.Any) *overloadv3.ResourceMonitor {
	return &overloadv3.ResourceMonitor{Name: name, ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: config}}
}

// The pauses between an Envoy's attempts to reach the control plane. By default they grow to 30 s, and an Envoy that
// starts a few seconds before its control plane would wait for as long.
const (
	xdsRetryMin = 250 * time.Millisecond
	xdsRetryMax = 2 * time.Second
)

func xdsRetries() *corev3.RetryPolicy {
	return &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
		BaseInterval: durationpb.New(xdsRetryMin), MaxInterval: durationpb.New(xdsRetryMax),
	}}
}
