package xds

import (
	"crypto/sha256"
	"fmt"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
)

// Names of resources. Dashboards and Envoy's statistics contain them, so they do not change.
const (
	filterName     = envoynames.Filter
	extProcCluster = envoynames.Routers
	listenerName   = "gateway"
	trustedName    = "trusted"
	routesName     = "gateway"

	// undecidedName is the name of a route, and of the cluster without endpoints to which it leads.
	undecidedName = envoynames.Undecided
)

// Settings are the inputs of Build besides the fleet. They change with the configuration file.
type Settings struct {
	// Listen is ip:port of the gateway. TrustedListen is ip:port for clients whose hints in headers count; empty
	// for none.
	Listen, TrustedListen string
	// TLS has the certificates of both listeners. No certificate means no TLS. With a CA, clients need certificates of it.
	TLS PEMFiles
	// Auth admits clients on the gateway's listener, and sets TenantHeader.
	Auth Auth
	// CORSOrigins are the origins whose pages may call the gateway. "*" is every origin.
	CORSOrigins []string
	// AccessLog is the file to which Envoys write lines of JSON, as they see it: empty for none, and StdoutLog for their output.
	AccessLog string
	// Tracing has Envoys export spans.
	Tracing Tracing
	// AnswerTokens has Envoys read the usage in answers for the access log of routers.
	AnswerTokens bool
	// ExtProc lists the addresses of routers, at least one: ip:port, name:port, or unix:///path; see CheckServers.
	ExtProc []string
	// ExtProcSecrets is the folder of secrets for connections to routers, as Envoys see it; see SecretFiles. Empty means
	// no TLS. ExtProcServerName is the DNS name in the certificates of routers.
	ExtProcSecrets, ExtProcServerName string
	// EngineTLS has the certificates of connections to engines: no CA means no TLS. EngineServerName is the DNS name in the
	// certificates of engines.
	EngineTLS        PEMFiles
	EngineServerName string
	// EnginesInClear are the engines that are reached without TLS all the same.
	EnginesInClear fleet.Addresses
	// Splits means that a model has prefill and decode workers. Relays are the relays of routers, ip:port: they are in all
	// pools, and get the requests that name them alone.
	Splits bool
	Relays []string
	// FailClosed refuses requests for which no router has decided, also with one model: routers remove members of transfers from
	// bodies, and salt the prompts of tenants.
	FailClosed bool
	// Models are the models, each with its own pool. The first one serves requests without a decision.
	Models []string
	// MaxBodyBytes bounds the body of a request. Envoy buffers it for the decision.
	MaxBodyBytes int64
	// DecisionTimeout bounds a decision. After it the request goes on without one. IdleTimeout ends a stream
	// without data.
	DecisionTimeout, IdleTimeout time.Duration
	// AttemptIdleTimeout ends an attempt at a worker without data, and the request is tried at another. 0 is no bound.
	AttemptIdleTimeout time.Duration
	// PassPaths are further paths whose requests reach workers if no router decides. One that ends in "/*"
	// stands for all paths below it.
	PassPaths []string
	// HeadersTimeout and BodyTimeout bound how long the headers and the whole of a request may take to arrive. 0
	// is no bound.
	HeadersTimeout, BodyTimeout time.Duration
	// ConnectionIdleTimeout ends connections of clients without a request. 0 is no bound.
	ConnectionIdleTimeout time.Duration
	// SessionHeaders are the headers with clients' sessions. If there is no decision, Envoy hashes the first one that a request has.
	SessionHeaders []string
	// AffinityModule is the path of the Wasm module that computes such a header from the prompt of requests without
	// one, as Envoys see it. Empty means none.
	AffinityModule string
	// TenantHeader is the header with a client's tenant, which routers get of trusted clients, and RoleHeader the header
	// with a client's role, which they get from an Envoy with the snippet. Empty means none.
	TenantHeader, RoleHeader string
	// HintHeaders forwards the headers of envoynames.HintHeaders to routers, because clients are trusted.
	HintHeaders bool

	ownEnvoy bool // the Envoy is its operator's own: see Snippet
}

// StdoutLog is an access log on the standard output.
const StdoutLog = "stdout"

// Resources is one consistent configuration: every name that it refers to is part of it. The listeners are made for
// an Envoy without a node id, and all of it is for the newest version.
type Resources struct {
	Listeners []*listenerv3.Listener
	Secrets   []*tlsv3.Secret
	Routes    []*routev3.RouteConfiguration
	Clusters  []*clusterv3.Cluster
	Endpoints []*endpointv3.ClusterLoadAssignment
}

// Leaving is a worker that left the fleet a moment ago. Decisions for it may still be on their way. Envoy ignores
// a picked address without an endpoint, and would serve the request by another worker without a trace. So the
// endpoint stays for a while as unhealthy: such a request fails to connect, and is retried on the next address of
// its decision.
type Leaving struct{ Model, Address string }

// Build returns the configuration for a fleet. Equal inputs have equal outputs, to the byte.
func Build(s Settings, f *fleet.Snapshot, leaving ...Leaving) (Resources, error) {
	r, err := buildTables(s)
	if err != nil {
		return Resources{}, err
	}

	workers := byModel(f)
	for _, m := range s.Models {
		e := buildEndpoints(m, workers[m], &s, leaving)
		if err := e.ValidateAll(); err != nil {
			return Resources{}, fmt.Errorf("endpoints of %s are invalid: %w", e.ClusterName, err)
		}
		r.Endpoints = append(r.Endpoints, e)
	}
	return r, nil
}

// buildTables returns all but the endpoints. It does not depend on the fleet.
func buildTables(s Settings) (Resources, error) {
	listeners, err := buildListeners(s, "", newestVersion)
	if err != nil {
		return Resources{}, fmt.Errorf("build listeners: %w", err)
	}
	extproc, err := buildExtProcCluster(s)
	if err != nil {
		return Resources{}, fmt.Errorf("build extproc cluster: %w", err)
	}

	r := Resources{
		Listeners: listeners,
		Secrets:   append(pemSecrets(s.TLS, gatewayCASecret, gatewaySecret), pemSecrets(s.EngineTLS, engineCASecret, engineSecret)...),
		Routes:    []*routev3.RouteConfiguration{buildRoutes(s)},
		Clusters:  []*clusterv3.Cluster{extproc, emptyCluster()},
	}

	jwks, err := buildJWKSClusters(s.Auth)
	if err != nil {
		return Resources{}, fmt.Errorf("build clusters of issuers: %w", err)
	}
	r.Clusters = append(r.Clusters, jwks...)
	traces, err := buildTraces(s)
	if err != nil {
		return Resources{}, fmt.Errorf("build cluster: %w", err)
	}
	if traces != nil {
		r.Clusters = append(r.Clusters, traces)
	}
	for _, m := range s.Models {
		pool, err := buildPool(m, s)
		if err != nil {
			return Resources{}, fmt.Errorf("build pool of model %s: %w", m, err)
		}
		r.Clusters = append(r.Clusters, pool)
	}
	return r, r.validate()
}

// validate runs the generated checks of Envoy's API on all but the endpoints.
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
	for _, x := range r.Secrets {
		if err := check("secret "+x.Name, x); err != nil {
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
	return nil
}

// fingerprint returns a hash of all but the endpoints, by which equal configurations are recognized.
func (r Resources) fingerprint() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, l := range r.Listeners {
		h.Write(bytesOf(l))
	}
	for _, x := range r.Secrets {
		h.Write(bytesOf(x))
	}
	for _, x := range r.Routes {
		h.Write(bytesOf(x))
	}
	for _, c := range r.Clusters {
		h.Write(bytesOf(c))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// bytesOf returns the wire format of a message. Equal messages have equal bytes. A message that cannot be encoded
// has none, but messages are validated before.
func bytesOf(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil
	}
	return b
}

// PoolName returns the name of the cluster of a model's workers.
func PoolName(model string) string { return "pool/" + model }

// packer packs messages into Any and keeps the first error, so that builders can be written as one expression.
type packer struct{ err error }

// pack packs a message.
func (p *packer) pack(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err == nil {
		// Equal messages must have equal bytes, or Envoy would warm an unchanged cluster again.
		a.Value, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	}
	if err != nil && p.err == nil {
		p.err = err
	}
	return a
}

func seconds(d time.Duration) *durationpb.Duration { return durationpb.New(d) }
