package xds

import (
	"crypto/sha256"
	"fmt"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stator-project/stator/internal/fleet"
)

const (
	filterName     = "stator.ext_proc"
	extProcCluster = "stator-extproc"
	listenerName   = "gateway"
	routesName     = "gateway"
)

// Settings are what Build needs beside the fleet. They change with the configuration file.
type Settings struct {
	// Listen is ip:port of the gateway.
	Listen string
	// ExtProc lists the addresses of routers, at least one: ip:port, or unix:///path.
	ExtProc []string
	// Models are the names with pools of their own; the first serves what names no model.
	Models []string
	// MaxBodyBytes bounds a request body.
	MaxBodyBytes int64
	// DecisionTimeout bounds a decision, IdleTimeout a silent stream.
	DecisionTimeout, IdleTimeout time.Duration
	// AffinityHeader is what the fallback hashes.
	AffinityHeader string
	// HintHeaders lets extproc see the headers of package wire's Hints: clients are trusted with them.
	HintHeaders bool
}

// Resources is one consistent configuration.
type Resources struct {
	Listeners []*listenerv3.Listener
	Routes    []*routev3.RouteConfiguration
	Clusters  []*clusterv3.Cluster
	Endpoints []*endpointv3.ClusterLoadAssignment
}

// Leaving is a worker that has gone from the fleet a moment ago. Picks that name it are still
// on their way, and one whose endpoint is not there is passed over in silence: the request
// would be served by another worker as if that had been decided. So the endpoint stays for a
// while, unhealthy: such a pick then fails to connect, and is retried where it says.
type Leaving struct{ Model, Address string }

// Build returns the configuration for the fleet. Equal input gives equal output.
func Build(s Settings, f *fleet.Snapshot, leaving ...Leaving) (Resources, error) {
	listener, err := buildListener(s)
	if err != nil {
		return Resources{}, fmt.Errorf("build listener: %w", err)
	}
	extproc, err := buildExtProcCluster(s)
	if err != nil {
		return Resources{}, fmt.Errorf("build extproc cluster: %w", err)
	}
	r := Resources{
		Listeners: []*listenerv3.Listener{listener},
		Routes:    []*routev3.RouteConfiguration{buildRoutes(s)},
		Clusters:  []*clusterv3.Cluster{extproc},
	}
	for _, m := range s.Models {
		pool, err := buildPool(m)
		if err != nil {
			return Resources{}, fmt.Errorf("build pool of model %s: %w", m, err)
		}
		r.Clusters = append(r.Clusters, pool)
		r.Endpoints = append(r.Endpoints, buildEndpoints(m, f, leaving))
	}
	return r, r.validate()
}

// validate runs the checks that come with Envoy's API.
func (r Resources) validate() error {
	check := func(name string, m interface{ ValidateAll() error }) error {
		if err := m.ValidateAll(); err != nil {
			return fmt.Errorf("%s is invalid: %w", name, err)
		}
		return nil
	}
	for _, l := range r.Listeners {
		if err := check("listener "+l.Name, l); err != nil {
			return err
		}
	}
	for _, x := range r.Routes {
		if err := check("routes "+x.Name, x); err != nil {
			return err
		}
	}
	for _, c := range r.Clusters {
		if err := check("cluster "+c.Name, c); err != nil {
			return err
		}
	}
	for _, e := range r.Endpoints {
		if err := check("endpoints of "+e.ClusterName, e); err != nil {
			return err
		}
	}
	return nil
}

// fingerprint tells two configurations apart.
func (r Resources) fingerprint() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, l := range r.Listeners {
		h.Write(bytesOf(l))
	}
	for _, x := range r.Routes {
		h.Write(bytesOf(x))
	}
	for _, c := range r.Clusters {
		h.Write(bytesOf(c))
	}
	for _, e := range r.Endpoints {
		h.Write(bytesOf(e))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// bytesOf is the wire form of a message, equal for equal messages; nil for one that has none,
// and validated messages have one.
func bytesOf(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil
	}
	return b
}

// PoolName is the cluster of a model's workers.
func PoolName(model string) string { return "pool/" + model }

// packer turns messages into Any and keeps the first error, so that builders read as data.
type packer struct{ err error }

func (p *packer) any(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err == nil {
		// Equal messages must be equal bytes: a changed cluster is warmed again.
		a.Value, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	}
	if err != nil && p.err == nil {
		p.err = err
	}
	return a
}

func seconds(d time.Duration) *durationpb.Duration { return durationpb.New(d) }
